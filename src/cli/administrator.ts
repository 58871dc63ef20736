/** Which cloud a command calls, and as whom: options, else environment variables, else the context as a whole. */
import type { Command } from 'commander'
import { makeAccessToken } from '../client/access-token.ts'
import { CodedError, messageOf } from '../protocol/errors.ts'
import { cellArgument, cloudArgument, readAuthority, readFileArgument } from './arguments.ts'
import { contextNamed, readContexts } from './contexts.ts'
import type { Io } from './io.ts'
import { writeLines } from './lines.ts'
import { Service } from './nouns/service.ts'
import { onlySignIn } from './sign-in/kept-sign-in.ts'
import { signInToken } from './sign-in/sign-in-token.ts'

const TOKEN_LIFETIME_MS = 300_000

export interface AdministratorFlags {
  readonly url?: string
  readonly adminKey?: string
  readonly kid?: string
  readonly caFile?: string
  readonly context?: string
  readonly cell?: string
  readonly json?: true
}

export interface Target {
  readonly url: string
  /** Path of the key; absent: the signed-in user. */
  readonly adminKey?: string | undefined
  readonly kid?: string | undefined
  readonly caFile?: string | undefined
  readonly cell?: string | undefined
}

export function withAdministratorFlags(command: Command): Command {
  return withCloudFlags(command)
    .option('--admin-key <file>', 'private administration key (PEM); default: the user whom tallygate login signed in')
    .option('--kid <id>', 'id of the administration key (default: its RFC 7638 thumbprint)')
    .option('--cell <name>', 'cell of the cloud, for what concerns the data of one (CELL_REQUIRED)', cellArgument)
}

export function withCloudFlags(command: Command): Command {
  return command
    .option('--context <name>', 'context to use (default: TALLYGATE_CONTEXT, or that of tallygate context use)')
    .option('--url <url>', 'address of the cloud, in place of a context', cloudArgument)
    .option('--ca-file <file>', "authority of the cloud's certificate (PEM), besides those of the system")
}

/** @throws CodedError USAGE if no cloud is selected */
export function targetOf(flags: AdministratorFlags, io: Io): Target {
  if (flags.url !== undefined && flags.context !== undefined)
    throw new CodedError('USAGE', 'Give --url or --context, not both.')
  const context = contextOf(flags, io)
  const adminKey = flags.adminKey ?? variable('TALLYGATE_ADMIN_KEY', io) ?? context.adminKey
  // A key id belongs to its key.
  const kid = flags.kid ?? (adminKey === context.adminKey ? context.kid : undefined)
  if (adminKey === undefined && kid !== undefined) throw new CodedError('USAGE', '--kid requires --admin-key.')
  return {
    url: context.url,
    adminKey,
    kid,
    caFile: flags.caFile ?? variable('TALLYGATE_CA_FILE', io) ?? context.caFile,
    cell: flags.cell,
  }
}

function contextOf(flags: AdministratorFlags, io: Io): Target {
  if (flags.context !== undefined) return contextNamed(flags.context, readContexts(io))
  if (flags.url !== undefined) return { url: flags.url }
  const url = variable('TALLYGATE_URL', io)
  if (url !== undefined) return { url: cloudInVariable('TALLYGATE_URL', url) }
  const contexts = readContexts(io)
  const name = variable('TALLYGATE_CONTEXT', io) ?? contexts.current
  return name === null ? { url: onlySignIn(io) } : contextNamed(name, contexts)
}

function cloudInVariable(name: string, text: string): string {
  try {
    return cloudArgument(text)
  } catch (cause) {
    throw new CodedError('USAGE', `The variable ${name} has no valid address. ${messageOf(cause)}`, { cause })
  }
}

function variable(name: string, { env }: Io): string | undefined {
  const value = env[name]
  return value === '' ? undefined : value
}

export async function administrator(flags: AdministratorFlags, io: Io): Promise<Service> {
  const target = targetOf(flags, io)
  return clientWith(target, await administratorToken(target, io), io)
}

export async function administratorToken(
  { url, adminKey, kid }: Target,
  io: Io,
  lifetimeMs = TOKEN_LIFETIME_MS,
): Promise<string> {
  return adminKey === undefined ? signInToken(url, io) : keyToken(adminKey, kid, io, lifetimeMs)
}

export function clientWith({ url, caFile, cell }: Target, token: string | null, io: Io): Service {
  return new Service({
    address: url,
    headers: {
      ...(token === null ? {} : { authorization: `Bearer ${token}` }),
      ...(cell === undefined ? {} : { 'x-cell': cell }),
    },
    ...(caFile === undefined ? {} : { ca: readAuthority(io, caFile) }),
    proxy: io.env,
    unreachable: 'SERVICE_UNREACHABLE',
    ...(io.stderr.isTTY === true ? { onSlow: (from) => writeLines(io.stderr, [`Waiting for ${from} ...`]) } : {}),
  })
}

export async function keyToken(
  file: string,
  kid: string | undefined,
  io: Io,
  lifetimeMs = TOKEN_LIFETIME_MS,
): Promise<string> {
  return makeAccessToken({
    kind: 'ADMIN',
    file,
    privateKey: readFileArgument(io, file, 'KEY_UNUSABLE'),
    ...(kid === undefined ? {} : { keyId: kid }),
    instanceIds: [],
    issuer: 'tallygate',
    now: io.now(),
    lifetimeMs,
  })
}
