import { setTimeout as pause } from 'node:timers/promises'
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
  const begin = performance.now()
  for (let isNoticed = false; ;) {
    let lock
    try {
      lock = new Sqlite(path, { timeout: 0 })
      // A kernel lock, which ends with the process.
      lock.exec('BEGIN EXCLUSIVE')
    } catch (cause) {
      lock?.close()
      const isBusy = cause instanceof Sqlite.SqliteError && cause.code.startsWith('SQLITE_BUSY')
      const waitedMs = performance.now() - begin
      if (!isBusy || waitedMs > LOCK_WAIT_MS) {
        const reason = isBusy
          ? `another process has had the lock for ${LOCK_WAIT_MS / 1_000} s. If no tallygate command runs, remove the file`
          : unwritableReason(cause)
        throw new CodedError('OUTPUT_UNWRITABLE', `Cannot lock ${path}: ${reason}.`, { cause })
      }
      if (!isNoticed && waitedMs > NOTICE_AFTER_MS) {
        isNoticed = true
        stderr.write(`Waiting for another process that has locked ${path}\n`)
      }
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
