/** One file per cloud, only for the user. Locked: providers take a refresh token that is used twice for theft. */
import { hash } from 'node:crypto'
import { readdirSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import { z } from 'zod'
import { CodedError } from '../../protocol/errors.ts'
import { parseJson } from '../../protocol/parse-json.ts'
import { makePrivateDirectory, writeFileAtomically } from '../atomic-write.ts'
import { underFileLock } from '../file-lock.ts'
import type { Io } from '../io.ts'
import { userDirectory } from '../user-directory.ts'

const keptSignIn = z.object({
  /** Address of the cloud, the only receiver of the ID token. */
  cloud: z.string(),
  /** The only receiver of the refresh token. */
  issuer: z.string(),
  clientId: z.string(),
  idToken: z.string(),
  refreshToken: z.string().nullable(),
  /** POSIX ms, by the clock of this machine. */
  savedAt: z.number(),
  usableMs: z.number(),
})
export type KeptSignIn = Readonly<z.infer<typeof keptSignIn>>

/** One spelling for each address. */
export function cloudAddress(url: string): string {
  return new URL(url).href.replace(/\/+$/, '')
}

export function readSignIn(cloud: string, io: Io): KeptSignIn | undefined {
  const kept = read(fileOf(cloud, io), io)
  return kept?.cloud === cloud ? kept : undefined
}

export function onlySignIn(io: Io): string {
  const [first, ...others] = listSignIns(io)
  if (first === undefined) {
    throw new CodedError(
      'USAGE',
      'No cloud is selected. Add a context (tallygate context add), or give --url or the variable TALLYGATE_URL.',
    )
  }
  if (others.length === 0) return first.cloud
  const all = [first, ...others].map(({ cloud }) => cloud).join(', ')
  throw new CodedError('USAGE', `Users are signed in to several clouds (${all}). Name one with --url or --context.`)
}

function listSignIns(io: Io): readonly KeptSignIn[] {
  try {
    const directory = directoryOf(io)
    const names = readdirSync(directory).filter((name) => name.endsWith('.json'))
    return names.flatMap((name) => read(join(directory, name), io) ?? [])
  } catch {
    return []
  }
}

/** Calls `obtain` once the file can be written. @throws CodedError OUTPUT_UNWRITABLE, and errors of `obtain` */
export async function saveSignIn(cloud: string, io: Io, obtain: () => Promise<KeptSignIn>): Promise<void> {
  makePrivateDirectory(directoryOf(io))
  const text = async function* () {
    yield Buffer.from(JSON.stringify(await obtain()))
  }
  await writeFileAtomically(fileOf(cloud, io), text())
}

export async function removeSignIn(cloud: string, io: Io): Promise<void> {
  await rm(fileOf(cloud, io), { force: true })
}

export function withSignInLock<T>(cloud: string, io: Pick<Io, 'env' | 'stderr'>, work: () => Promise<T>): Promise<T> {
  makePrivateDirectory(directoryOf(io))
  return underFileLock(fileOf(cloud, io).replace(/json$/, 'lock'), work, io)
}

function read(path: string, io: Io): KeptSignIn | undefined {
  try {
    return keptSignIn.safeParse(parseJson(io.readText(path))).data
  } catch {
    return undefined
  }
}

function fileOf(cloud: string, io: Pick<Io, 'env'>): string {
  return join(directoryOf(io), `${hash('sha256', cloud, 'hex').slice(0, 32)}.json`)
}

function directoryOf(io: Pick<Io, 'env'>): string {
  return join(userDirectory('XDG_STATE_HOME', io), 'sign-in')
}
