/**
 * One twin for each store of SQLite: a second process would charge correctly, but its devices would hear of nothing that the
 * first one changes. The claim is a lock of the kernel, so it ends with the process, however that ends.
 */
import Sqlite from 'better-sqlite3'
import { CodedError } from '../../../protocol/errors.ts'
import { coded, makeForOwner } from './database.ts'

/** How long to wait for a process that is just ending, ms. */
const WAIT_MS = 1_000

/**
 * Returns what gives the claim up.
 * @param path of a file for the lock alone; made when it does not exist
 * @throws CodedError STATE_IN_USE, STATE_UNWRITABLE
 */
export function claimStore(path: string): () => void {
  let lock: Sqlite.Database | undefined
  try {
    makeForOwner(path)
    lock = new Sqlite(path, { timeout: WAIT_MS })
    const held = lock
    held.exec('BEGIN EXCLUSIVE')
    return () => held.close()
  } catch (error) {
    lock?.close()
    if (error instanceof Sqlite.SqliteError && error.code.startsWith('SQLITE_BUSY')) {
      throw new CodedError('STATE_IN_USE', `${path} is held by another twin.`, { cause: error })
    }
    throw coded(error, path)
  }
}
