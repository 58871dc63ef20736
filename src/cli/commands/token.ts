import { Command, Option } from 'commander'
import { makeAccessToken } from '../../client/access-token.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { Io } from '../io.ts'
import { uuid } from '../../protocol/wire.ts'
import { type AdministratorFlags, administrator, targetOf, withCloudFlags } from '../administrator.ts'
import { durationBetween, readFileArgument } from '../arguments.ts'
import { collect } from '../collect.ts'

type CloudFlags = Pick<AdministratorFlags, 'context' | 'url' | 'caFile'>

interface TokenFlags extends CloudFlags {
  readonly admin?: true
  readonly client?: true
  readonly key?: string
  readonly kid?: string
  readonly instance?: readonly string[]
  readonly issuer: string
  readonly ttl: number
}

export function command(io: Io): Command {
  return withCloudFlags(new Command('token'))
    .description('Makes an access token from a private key and prints it. The service must know the public key.')
    .addOption(new Option('--admin', 'make an AdministrationAccess token').conflicts('client'))
    .option('--client', 'make a ClientAccess token; requires --instance')
    .option('--key <file>', 'private key (PEM); default with --admin: the administration key of the context')
    .option('--kid <id>', 'key id (default: its RFC 7638 thumbprint)')
    .option(
      '--instance <name>',
      'instance that a client token can use: its id, or its name in the context; can be repeated',
      collect((text) => text),
    )
    .option('--issuer <name>', 'value of the iss claim', 'tallygate')
    .addOption(
      new Option('--ttl <duration>', 'validity of the token')
        .argParser(durationBetween('1s', '3660d'))
        .default(3_600_000, '1h'),
    )
    .action(async ({ key, kid, ...flags }: TokenFlags) => {
      const problem = problemOf(flags)
      if (problem !== null) throw new CodedError('USAGE', problem)
      const signer = key === undefined ? administrationKey(flags, io) : { file: key }
      const keyId = kid ?? signer.kid
      const token = await makeAccessToken({
        kind: flags.admin === true ? 'ADMIN' : 'CLIENT',
        file: signer.file,
        privateKey: readFileArgument(io, signer.file, 'KEY_UNUSABLE'),
        ...(keyId === undefined ? {} : { keyId }),
        instanceIds: await idsOf(flags.instance ?? [], flags, io),
        issuer: flags.issuer,
        now: io.now(),
        lifetimeMs: flags.ttl,
      })
      io.stdout.write(`${token}\n`)
    })
}

function problemOf({ admin, client, instance = [] }: Pick<TokenFlags, 'admin' | 'client' | 'instance'>): string | null {
  if (admin === undefined && client === undefined) return 'Give --admin or --client.'
  if (client === true && instance.length === 0) return 'A client token needs at least one --instance.'
  if (admin === undefined || instance.length === 0) return null
  return 'An administration token is not bound to an instance: omit --instance.'
}

function administrationKey(
  flags: CloudFlags & Pick<TokenFlags, 'client'>,
  io: Io,
): { readonly file: string; readonly kid?: string | undefined } {
  if (flags.client === true)
    throw new CodedError('USAGE', 'A client token needs --key: contexts contain no client keys.')
  const { url, adminKey, kid } = targetOf(flags, io)
  if (adminKey !== undefined) return { file: adminKey, kid }
  throw new CodedError('USAGE', `There is no administration key for ${url}: give --key.`)
}

async function idsOf(named: readonly string[], flags: CloudFlags, io: Io): Promise<readonly string[]> {
  if (named.every((each) => uuid.safeParse(each).success)) return named
  using service = await administrator(flags, io)
  const ids: string[] = []
  for (const each of named) ids.push(await service.instanceId(each))
  return ids
}
