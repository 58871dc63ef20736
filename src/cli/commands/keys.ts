import { type KeyObject, createPublicKey } from 'node:crypto'
import { Command, InvalidArgumentError, Option } from 'commander'
import { accessTokenAlgorithm } from '../../client/access-token.ts'
import { CodedError } from '../../protocol/errors.ts'
import { ROLES, type Role, publicKeys } from '../../protocol/service/keys.ts'
import { thumbprint } from '../../protocol/signing.ts'
import { type AdministratorFlags, administrator, withAdministratorFlags } from '../administrator.ts'
import { readFileArgument } from '../arguments.ts'
import { collect } from '../collect.ts'
import { writeLines } from '../lines.ts'
import { nounCommand } from '../nouns/command.ts'
import type { Io } from '../io.ts'

interface SetFlags extends AdministratorFlags {
  readonly client?: true
  readonly id?: string
  readonly name?: string
  readonly role?: readonly Role[]
  readonly instance?: readonly string[]
}

export function command(io: Io): Command {
  const keys = nounCommand('keys', io).description(
    'Manages the authorization keys of administrators and clients in the cloud.',
  )
  withAdministratorFlags(keys.command('set'))
    .description('Registers a public key. If the id already exists, the new key replaces the old one.')
    .argument('<file>', 'PEM file with a public key, or with a private key, of which only the public key is sent')
    .option('--id <id>', 'id of the registered key (default: its RFC 7638 thumbprint)')
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
      '--instance <name>',
      'limits the key to this instance, by its name or id; can be repeated; not with the role keys',
      collect((text) => text),
    )
    .option('--client', 'a client key instead of an administration key')
    .action((file: string, flags: SetFlags) => set(file, flags, io))
  return keys
}

async function set(file: string, flags: SetFlags, io: Io): Promise<void> {
  if (flags.client === true && flags.role !== undefined) {
    throw new CodedError('USAGE', 'A client key has no roles: omit --role.')
  }
  const { pem, id } = await publicHalf(readFileArgument(io, file, 'KEY_UNUSABLE'), file)
  using service = await administrator(flags, io)
  const path = `/api/v1.1/${flags.client === true ? 'client' : 'administration'}-keys`
  const instances = flags.instance && (await Promise.all(flags.instance.map((named) => service.instanceId(named))))
  const body = [{ id: flags.id ?? id, publicKey: pem, name: flags.name, roles: flags.role, instances }]
  const [saved] = await service.json({ method: 'PUT', path, body }, publicKeys)
  writeLines(io.stdout, [saved?.id ?? id])
}

async function publicHalf(text: string, file: string): Promise<{ readonly pem: string; readonly id: string }> {
  const key = readPublicKey(text, file)
  accessTokenAlgorithm(key, file)
  return { pem: key.export({ type: 'spki', format: 'pem' }), id: await thumbprint(key.export({ format: 'jwk' })) }
}

function readPublicKey(text: string, file: string): KeyObject {
  try {
    return createPublicKey(text)
  } catch (cause) {
    throw new CodedError('KEY_UNUSABLE', `${file} does not contain a PEM key.`, { cause })
  }
}

function roleArgument(text: string): Role {
  const role = ROLES.find((each) => each === text)
  if (role === undefined) throw new InvalidArgumentError(`Use one of ${ROLES.join(', ')}.`)
  return role
}
