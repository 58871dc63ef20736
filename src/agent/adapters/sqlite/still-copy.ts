/**
 * A copy of a database and its write-ahead log that belong together, made while another process goes on writing them: the
 * agent holds its files for itself, and whoever reads them must not disturb it. Nothing beside them is made or changed.
 */
import { createReadStream } from 'node:fs'
import { copyFile, mkdtemp, open, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { CodedError } from '../../../protocol/errors.ts'
import { scratchAt } from '../system/scratch.ts'

/** How often a copy is begun anew because the agent has folded its log into the database meanwhile. */
const ATTEMPTS = 20

/** Bytes of the head of a write-ahead log: they change when it begins anew. */
const LOG_HEAD_BYTES = 32

/** Reads a copy, which is removed afterwards. @throws CodedError LEDGER_UNREADABLE, and what `read` throws */
export async function withStillCopy<T>(path: string, read: (copy: string) => Promise<T>): Promise<T> {
  const folder = await mkdtemp(join(tmpdir(), 'tallygate-ledger-'))
  const isGone = scratchAt(folder)
  try {
    await copyStill(path, join(folder, 'journal.db'))
    return await read(join(folder, 'journal.db'))
  } finally {
    await rm(folder, { recursive: true, force: true })
    isGone()
  }
}

/** A copy in which database and log belong together: neither was written over while it was made. */
export async function copyStill(path: string, to: string): Promise<void> {
  for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
    try {
      const head = await logHead(path)
      await copyFile(path, to)
      if (head === null) await rm(`${to}-wal`, { force: true })
      else await copyFile(`${path}-wal`, `${to}-wal`)
      if (head === (await logHead(path)) && (await same(path, to))) return
    } catch (cause) {
      throw new CodedError('LEDGER_UNREADABLE', `${path} cannot be read: ${reasonOf(cause)}.`, {
        cause,
        facts: { path },
      })
    }
  }
  throw new CodedError('LEDGER_UNREADABLE', `${path} does not hold still for long enough to be copied.`, {
    facts: { path },
  })
}

/** Null for none. */
async function logHead(path: string): Promise<string | null> {
  try {
    await using file = await open(`${path}-wal`, 'r')
    const { buffer, bytesRead } = await file.read(Buffer.alloc(LOG_HEAD_BYTES), 0, LOG_HEAD_BYTES, 0)
    return bytesRead === 0 ? null : buffer.toString('hex')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null
    throw error
  }
}

async function same(one: string, other: string): Promise<boolean> {
  const left = createReadStream(one)[Symbol.asyncIterator]()
  const right = createReadStream(other)[Symbol.asyncIterator]()
  for (;;) {
    const [a, b] = [await left.next(), await right.next()]
    if (a.done === true || b.done === true) return a.done === b.done
    if (!(a.value as Buffer).equals(b.value as Buffer)) return false
  }
}

function reasonOf(error: unknown): string {
  const { code = '', message } = error as NodeJS.ErrnoException
  return REASONS[code] ?? message
}

const REASONS: Readonly<Record<string, string>> = {
  ENOENT: 'there is no such file',
  EACCES: 'this user may not read it',
  EISDIR: 'it is a directory',
  ENOSPC: `there is no room for a copy in ${tmpdir()} (set TMPDIR to a directory with more)`,
}
