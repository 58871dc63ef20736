/** Shared by all commands that call the cloud as an administrator. */
import type { Command } from 'commander'
import { makeAccessToken } from '../client/access-token.ts'
import { HttpClient } from '../client/http.ts'
import { CodedError } from '../protocol/errors.ts'
import { readFileArgument, urlArgument } from './arguments.ts'
import type { Io } from './io.ts'
import { signInToken } from './sign-in/sign-in-token.ts'

export interface AdministratorFlags {
  readonly url: string
  readonly adminKey?: string
  readonly kid?: string
}

export function withAdministratorFlags(command: Command): Command {
  return withKeyFlags(
    command.requiredOption('--url <url>', 'address of the cloud, including its path prefix', urlArgument),
  )
}

export function withKeyFlags(command: Command): Command {
  return command
    .option('--admin-key <file>', 'private administration key (PEM); default: the user whom tallygate login signed in')
    .option('--kid <id>', 'key id (default: its RFC 7638 thumbprint)')
}

/** @throws CodedError KEY_UNUSABLE, SIGN_IN_REQUIRED, SIGN_IN_UNAVAILABLE */
export async function administrator(flags: AdministratorFlags, io: Io): Promise<HttpClient> {
  return clientWith(flags.url, await administratorToken(flags, io))
}

/** @throws CodedError KEY_UNUSABLE, SIGN_IN_REQUIRED, SIGN_IN_UNAVAILABLE */
export async function administratorToken({ url, adminKey, kid }: AdministratorFlags, io: Io): Promise<string> {
  if (adminKey === undefined && kid !== undefined) throw new CodedError('USAGE', '--kid requires --admin-key.')
  return adminKey === undefined ? signInToken(url, io) : keyToken(adminKey, kid, io)
}

export function clientWith(url: string, token: string): HttpClient {
  return new HttpClient({
    address: url,
    headers: { authorization: `Bearer ${token}` },
    unreachable: 'CLOUD_UNREACHABLE',
  })
}

/** @throws CodedError KEY_UNUSABLE */
export async function keyToken(file: string, kid: string | undefined, io: Io): Promise<string> {
  return makeAccessToken({
    kind: 'ADMIN',
    privateKey: readFileArgument(io, file, 'KEY_UNUSABLE'),
    ...(kid === undefined ? {} : { keyId: kid }),
    instanceIds: [],
    issuer: 'tallygate',
    now: io.now(),
    lifetimeMs: 300_000,
  })
}
