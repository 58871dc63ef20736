/** Shared by all commands that call the cloud as an administrator. */
import type { Command } from 'commander'
import { makeAccessToken } from '../client/access-token.ts'
import { HttpClient } from '../client/http.ts'
import { readFileArgument, urlArgument } from './arguments.ts'
import type { Io } from './io.ts'

export interface AdministratorFlags {
  readonly url: string
  readonly adminKey: string
  readonly kid?: string
}

export function withAdministratorFlags(command: Command): Command {
  return command
    .requiredOption('--url <url>', 'address of the cloud, including its path prefix', urlArgument)
    .requiredOption('--admin-key <file>', 'private administration key (PEM)')
    .option('--kid <id>', 'key id (default: its RFC 7638 thumbprint)')
}

/** @throws CodedError KEY_UNUSABLE */
export async function administrator(flags: AdministratorFlags, io: Io): Promise<HttpClient> {
  const token = await makeAccessToken({
    kind: 'ADMIN',
    privateKey: readFileArgument(io, flags.adminKey, 'KEY_UNUSABLE'),
    ...(flags.kid === undefined ? {} : { keyId: flags.kid }),
    instanceIds: [],
    issuer: 'tallygate',
    now: io.now(),
    lifetimeMs: 300_000,
  })
  return new HttpClient({
    address: flags.url,
    headers: { authorization: `Bearer ${token}` },
    unreachable: 'CLOUD_UNREACHABLE',
  })
}
