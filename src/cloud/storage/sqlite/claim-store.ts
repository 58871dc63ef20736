/**
 * Allows one cloud process per SQLite store: devices of a second process would miss change notifications of the first. Uses
 * a kernel lock, which ends with the process.
 */
import Sqlite from 'better-sqlite3'
import { CodedError } from '../../../protocol/errors.ts'
import { codedAtOpen, makeForOwner } from './database.ts'

/** How long to wait for a process that is exiting, ms. */
const WAIT_MS = 1_000

/**
 * Returns a function that releases the lock.
 * @param path lock file, created if missing
 * @throws CodedError STATE_IN_USE, STATE_UNWRITABLE
 */
export function claimStore(path: string): () => void {
  let lock: Sqlite.Database | undefined
  try {
    makeForOwner(path)
    lock = new Sqlite(path, { timeout: WAIT_MS })
    const claimed = lock
    claimed.exec('BEGIN EXCLUSIVE')
    return () => claimed.close()
  } catch (error) {
    lock?.close()
    if (error instanceof Sqlite.SqliteError && error.code.startsWith('SQLITE_BUSY')) {
      throw new CodedError('STATE_IN_USE', `${path} is in use by another cloud process.`, { cause: error })
    }
    throw codedAtOpen(error, path)
  }
}
