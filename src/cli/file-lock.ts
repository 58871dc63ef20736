import { setTimeout as pause } from 'node:timers/promises'
import { CodedError } from '../protocol/errors.ts'
import { unwritableReason } from '../protocol/file-reasons.ts'

const LOCK_EVERY_MS = 100
const LOCK_WAIT_MS = 60_000

/**
 * One process at a time.
 * @param takeRights for the lock and the work: they may not permit to read this installation
 * @throws CodedError OUTPUT_UNWRITABLE, and errors of `work`
 */
export async function underFileLock<T>(
  path: string,
  work: () => Promise<T>,
  takeRights: () => Disposable = () => new DisposableStack(),
): Promise<T> {
  const { default: Sqlite } = await import('better-sqlite3')
  // Loads the native part of the library.
  new Sqlite(':memory:').close()
  using _rights = takeRights()
  for (const end = performance.now() + LOCK_WAIT_MS; ;) {
    let lock
    try {
      lock = new Sqlite(path, { timeout: 0 })
      // A kernel lock, which ends with the process.
      lock.exec('BEGIN EXCLUSIVE')
    } catch (cause) {
      lock?.close()
      const isBusy = cause instanceof Sqlite.SqliteError && cause.code.startsWith('SQLITE_BUSY')
      if (!isBusy || performance.now() > end)
        throw new CodedError('OUTPUT_UNWRITABLE', `Cannot lock ${path}: ${unwritableReason(cause)}.`, { cause })
      await pause(LOCK_EVERY_MS)
      continue
    }
    try {
      return await work()
    } finally {
      lock.close()
    }
  }
}
