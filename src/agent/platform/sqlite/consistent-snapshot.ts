/**
 * Copies a database and its write-ahead log while the agent keeps writing. The agent locks the files and must not be
 * disturbed; nothing beside them is created or changed.
 */
import { createReadStream, mkdtempSync } from 'node:fs'
import { copyFile, open, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { lacksSpace } from '../../../platform/disk-space.ts'
import { CodedError } from '../../../protocol/errors.ts'
import { systemFailure, unreadableReason, unwritableReason } from '../../../protocol/file-reasons.ts'
import { scratchAt } from '../../../platform/scratch.ts'

/** The agent may write a checkpoint during a copy. */
const ATTEMPTS = 20

/** Bytes of the write-ahead log's header, which changes when the log restarts. */
const LOG_HEAD_BYTES = 32

/** Calls `read` with a copy that is removed afterwards. @throws CodedError LEDGER_UNREADABLE, and any error of `read` */
export async function withConsistentSnapshot<T>(path: string, read: (copy: string) => Promise<T>): Promise<T> {
  const folder = temporaryFolder(path)
  const isGone = scratchAt(folder)
  try {
    await copyConsistently(path, join(folder, 'journal.db'))
    return await read(join(folder, 'journal.db'))
  } catch (error) {
    throw !(error instanceof CodedError) && lacksSpace(error, folder)
      ? unreadable(path, error, `${tmpdir()} has no space for a copy; set TMPDIR to a directory with more space`)
      : error
  } finally {
    await rm(folder, { recursive: true, force: true })
    isGone()
  }
}

function temporaryFolder(path: string): string {
  try {
    // Synchronous: a signal while another thread makes it could leave it behind.
    return mkdtempSync(join(tmpdir(), 'tallygate-ledger-'))
  } catch (cause) {
    const reason = `no copy can be made in ${tmpdir()} (${unwritableReason(cause)}); set TMPDIR to another directory`
    throw unreadable(path, cause, reason)
  }
}

/** Copies database and log so that neither was overwritten during the copy. @throws CodedError LEDGER_UNREADABLE; {@link lacksSpace} */
export async function copyConsistently(path: string, to: string): Promise<void> {
  await requireEnding(path)
  for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
    try {
      const head = await logHead(path)
      await copyFile(path, to)
      if (head === null) await rm(`${to}-wal`, { force: true })
      else await copyFile(`${path}-wal`, `${to}-wal`)
      if (head === (await logHead(path)) && (await same(path, to))) return
    } catch (cause) {
      throw lacksSpace(cause, to) ? cause : (systemFailure(cause, path) ?? unreadable(path, cause, reasonOf(cause)))
    }
  }
  throw new CodedError(
    'LEDGER_UNREADABLE',
    `${path} changes too fast to be copied. Try again when the agent is less busy.`,
    {
      details: { path },
    },
  )
}

/** A pipe or a device may never end. @throws CodedError LEDGER_UNREADABLE */
async function requireEnding(path: string): Promise<void> {
  const found = await stat(path).catch(() => undefined)
  if (found === undefined || found.isFile() || found.isDirectory()) return
  throw new CodedError('LEDGER_UNREADABLE', `${path} is not a file.`, { details: { path } })
}

function unreadable(path: string, cause: unknown, reason: string): CodedError {
  return new CodedError('LEDGER_UNREADABLE', `${path} cannot be read: ${reason}.`, { cause, details: { path } })
}

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
  const advice = '; run the command as root or as the user of the agent'
  return `${unreadableReason(error)}${(error as NodeJS.ErrnoException).code === 'EACCES' ? advice : ''}`
}
