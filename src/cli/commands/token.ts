/** `tallygate token`: an access token, made from a private key without asking anybody. Prints the JWT and nothing else. */
import { Command, Option } from 'commander'
import { makeAccessToken } from '../../client/access-token.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { Io } from '../io.ts'
import { collect, durationArgument, readFileArgument, uuidArgument } from '../arguments.ts'

interface TokenFlags {
  readonly admin?: true
  readonly client?: true
  readonly key: string
  readonly kid?: string
  readonly instance?: readonly string[]
  readonly issuer: string
  readonly ttl: number
}

export function command(io: Io): Command {
  return new Command('token')
    .description('Makes an access token from a private key whose public half the service knows, and prints it.')
    .addOption(new Option('--admin', 'for AdministrationAccess').conflicts('client'))
    .option('--client', 'for ClientAccess: needs --instance')
    .requiredOption('--key <file>', 'private key, PEM')
    .option('--kid <id>', 'id of the key (default: its RFC 7638 thumbprint)')
    .option('--instance <uuid>', 'instance that a client token may use; may be repeated', collect(uuidArgument))
    .option('--issuer <name>', 'claim iss', 'tallygate')
    .addOption(
      new Option('--ttl <duration>', 'how long the token is valid')
        .argParser(durationArgument)
        .default(3_600_000, '1h'),
    )
    .action(async (flags: TokenFlags) => {
      if (flags.admin === undefined && flags.client === undefined) {
        throw new CodedError('USAGE', 'Give --admin or --client.')
      }
      const instanceIds = flags.instance ?? []
      if (flags.client === true && instanceIds.length === 0) {
        throw new CodedError('USAGE', 'A client token needs at least one --instance.')
      }
      if (flags.admin === true && instanceIds.length > 0) {
        throw new CodedError('USAGE', 'An administration token is not bound to an instance: leave --instance out.')
      }
      const token = await makeAccessToken({
        kind: flags.admin === true ? 'ADMIN' : 'CLIENT',
        privateKey: readFileArgument(io, flags.key, 'KEY_UNUSABLE'),
        ...(flags.kid === undefined ? {} : { keyId: flags.kid }),
        instanceIds,
        issuer: flags.issuer,
        now: io.now(),
        lifetimeMs: flags.ttl,
      })
      io.stdout.write(`${token}\n`)
    })
}
