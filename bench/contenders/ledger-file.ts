/** Reads a ledger file that no process has open. */
import Database from 'better-sqlite3'
import { entriesBetween } from '../../src/agent/platform/sqlite/entry-blocks.ts'
import { foldDatabase } from '../../src/agent/platform/sqlite/pending-batches.ts'

export function countEntries(path: string): number {
  return look(
    path,
    (database) => database.prepare('SELECT coalesce(sum(entries), 0) FROM block').pluck().get() as number,
  )
}

export function meanEntryBytes(path: string): number {
  return look(path, (database) => {
    const lengths = Array.from(entriesBetween(database, 0n, 2n ** 63n - 1n), ({ body }) => Buffer.byteLength(body))
    return Math.round(lengths.reduce((sum, length) => sum + length, 0) / Math.max(1, lengths.length))
  })
}

function look(path: string, read: (database: Database.Database) => number): number {
  const database = new Database(path)
  try {
    foldDatabase(database)
    return read(database)
  } finally {
    database.close()
  }
}
