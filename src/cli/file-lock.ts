import { setTimeout as pause } from 'node:timers/promises'
import type Database from 'better-sqlite3'
import { CodedError } from '../protocol/errors.ts'
import { unwritableReason } from '../protocol/file-reasons.ts'
import type { Io } from './io.ts'

const LOCK_EVERY_MS = 100
const LOCK_WAIT_MS = 60_000

/** After this wait, `stderr` gets a notice. */
const NOTICE_AFTER_MS = 2_000

/**
 * One process at a time.
 * @param io gets a notice of a long wait
 * @param takeRights for the lock and the work: they may not permit to read this installation
 * @throws CodedError OUTPUT_UNWRITABLE, and errors of `work`
 */
export async function underFileLock<T>(
  path: string,
  work: () => Promise<T>,
  { stderr }: Pick<Io, 'stderr'>,
  takeRights: () => Disposable = () => new DisposableStack(),
): Promise<T> {
  const { default: Sqlite } = await import('better-sqlite3')
  // Loads the native part of the library.
  new Sqlite(':memory:').close()
  using _rights = takeRights()
  const lock = await locked(path, stderr, Sqlite)
  try {
    return await work()
  } finally {
    lock.close()
  }
}

async function locked(path: string, stderr: Io['stderr'], Sqlite: typeof Database): Promise<Database.Database> {
  const begin = performance.now()
  for (let isNoticed = false; ;) {
    const lock = lockNow(path, Sqlite)
    if (lock !== null) return lock
    const waitedMs = performance.now() - begin
    if (waitedMs > LOCK_WAIT_MS)
      throw unlockable(
        path,
        `another process has had the lock for ${LOCK_WAIT_MS / 1_000} s. If no tallygate command runs, remove the file`,
      )
    if (!isNoticed && waitedMs > NOTICE_AFTER_MS) {
      isNoticed = true
      stderr.write(`Waiting for another process that has locked ${path}\n`)
    }
    await pause(LOCK_EVERY_MS)
  }
}

/** Null: another process has the lock. @throws CodedError OUTPUT_UNWRITABLE */
function lockNow(path: string, Sqlite: typeof Database): Database.Database | null {
  let lock
  try {
    lock = new Sqlite(path, { timeout: 0 })
    // A kernel lock, which ends with the process.
    lock.exec('BEGIN EXCLUSIVE')
    return lock
  } catch (cause) {
    lock?.close()
    if (cause instanceof Sqlite.SqliteError && cause.code.startsWith('SQLITE_BUSY')) return null
    throw unlockable(path, unwritableReason(cause), cause)
  }
}

function unlockable(path: string, reason: string, cause?: unknown): CodedError {
  return new CodedError('OUTPUT_UNWRITABLE', `Cannot lock ${path}: ${reason}.`, { cause })
}
