import { createPublicKey } from 'node:crypto'
import { Command, InvalidArgumentError, Option } from 'commander'
import { CodedError } from '../../protocol/errors.ts'
import {
  type PublicKeyWire,
  ROLES,
  type Role,
  keyDeleted,
  publicKeyPage,
  publicKeys,
} from '../../protocol/service/keys.ts'
import { thumbprint } from '../../protocol/signing.ts'
import { type AdministratorFlags, administrator, withAdministratorFlags } from '../administrator.ts'
import { collect, readFileArgument, uuidArgument } from '../arguments.ts'
import { columns, jsonLine, writeLines } from '../lines.ts'
import type { Io } from '../io.ts'

interface KindFlags extends AdministratorFlags {
  readonly client?: true
}

interface AddFlags extends KindFlags {
  readonly id?: string
  readonly name?: string
  readonly role?: readonly Role[]
  readonly instance?: readonly string[]
}

interface ListFlags extends AdministratorFlags {
  readonly json?: true
}

const OF_CLIENTS = 'a client key instead of an administration key'

export function command(io: Io): Command {
  const keys = new Command('keys').description(
    'Manages the authorization keys of administrators and clients in the cloud.',
  )
  withAdministratorFlags(keys.command('list'))
    .description('Lists the keys.')
    .option('--json', 'print one JSON document per line for each key')
    .action((flags: ListFlags) => list(flags, io))
  withAdministratorFlags(keys.command('add'))
    .description('Registers a public key. If the id already exists, the new key replaces the old one.')
    .argument('<file>', 'PEM file with a public key, or with a private key, of which only the public key is sent')
    .option('--id <id>', 'key id (default: its RFC 7638 thumbprint)')
    .option('--name <name>', 'name of the key, which lists and the audit show (default: that of the replaced key)')
    .addOption(
      new Option(
        '--role <role>',
        'role of an administration key; can be repeated (default: all, or those of the replaced key)',
      )
        .choices(ROLES)
        .argParser(collect(roleArgument)),
    )
    .option(
      '--instance <uuid>',
      'limits the key to this instance; can be repeated; not with the role keys',
      collect(uuidArgument),
    )
    .option('--client', OF_CLIENTS)
    .action((file: string, flags: AddFlags) => add(file, flags, io))
  withAdministratorFlags(keys.command('delete'))
    .description(
      'Deletes a key. Its tokens are no longer accepted. One administration key with the role keys must remain.',
    )
    .argument('<id>', 'id of the key')
    .option('--client', OF_CLIENTS)
    .action((id: string, flags: KindFlags) => remove(id, flags, io))
  return keys
}

async function list(flags: ListFlags, io: Io): Promise<void> {
  using client = await administrator(flags, io)
  const found = []
  for (let next = 0, isFirst = true; isFirst || next !== 0; isFirst = false) {
    const page = await client.json({ method: 'GET', path: `/api/v1.1/public-keys?next=${next}` }, publicKeyPage)
    found.push(...page.keys)
    next = page.next
  }
  const rows = found.map(({ id, name = '', type, modified, ...limits }) => {
    return [id, name, type, ...limitsText(type, limits), new Date(modified).toISOString()]
  })
  const lines =
    flags.json === true
      ? found.map(jsonLine)
      : columns([['ID', 'NAME', 'TYPE', 'ROLES', 'INSTANCES', 'SINCE'], ...rows])
  writeLines(io.stdout, lines)
}

function limitsText(type: PublicKeyWire['type'], { roles, instances }: Pick<PublicKeyWire, 'roles' | 'instances'>) {
  return [type === 'client-key' ? '' : (roles?.join(',') ?? 'all'), instances?.join(',') ?? 'all']
}

async function add(file: string, flags: AddFlags, io: Io): Promise<void> {
  if (flags.client === true && flags.role !== undefined) {
    throw new CodedError('USAGE', 'A client key has no roles: omit --role.')
  }
  const { pem, id } = await publicHalf(readFileArgument(io, file, 'KEY_UNUSABLE'), file)
  using client = await administrator(flags, io)
  const body = [{ id: flags.id ?? id, publicKey: pem, name: flags.name, roles: flags.role, instances: flags.instance }]
  const [saved] = await client.json({ method: 'PUT', path: pathOf(flags), body }, publicKeys)
  writeLines(io.stdout, [saved?.id ?? id])
}

async function remove(id: string, flags: KindFlags, io: Io): Promise<void> {
  using client = await administrator(flags, io)
  const path = `${pathOf(flags)}/${encodeURIComponent(id)}`
  await client.json({ method: 'DELETE', path }, keyDeleted)
}

function pathOf({ client }: KindFlags): string {
  return `/api/v1.1/${client === true ? 'client' : 'administration'}-keys`
}

/** @throws CodedError KEY_UNUSABLE */
async function publicHalf(text: string, file: string): Promise<{ readonly pem: string; readonly id: string }> {
  try {
    const key = createPublicKey(text)
    return { pem: key.export({ type: 'spki', format: 'pem' }), id: await thumbprint(key.export({ format: 'jwk' })) }
  } catch (cause) {
    throw new CodedError('KEY_UNUSABLE', `${file} does not contain a PEM key.`, { cause })
  }
}

function roleArgument(text: string): Role {
  const role = ROLES.find((each) => each === text)
  if (role === undefined) throw new InvalidArgumentError(`Use one of ${ROLES.join(', ')}.`)
  return role
}
