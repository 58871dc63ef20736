/** Reads the file of an agent or a floor that no process has open. */
import Database from 'better-sqlite3'
import { entriesBetween } from '../../src/agent/platform/sqlite/entry-blocks.ts'
import { foldDatabase } from '../../src/agent/platform/sqlite/pending-batches.ts'

export function countEntries(path: string): number {
  return look(path, (database) => {
    foldDatabase(database)
    return database.prepare('SELECT coalesce(sum(entries), 0) FROM block').pluck().get() as number
  })
}

/** Of the floor. */
export function countRows(path: string): number {
  return look(path, (database) => database.prepare('SELECT count(*) FROM entry').pluck().get() as number)
}

export function meanEntryBytes(path: string): number {
  return look(path, (database) => {
    foldDatabase(database)
    const lengths = Array.from(entriesBetween(database, 0n, 2n ** 63n - 1n), ({ body }) => Buffer.byteLength(body))
    return Math.round(lengths.reduce((sum, length) => sum + length, 0) / Math.max(1, lengths.length))
  })
}

function look(path: string, read: (database: Database.Database) => number): number {
  const database = new Database(path)
  try {
    return read(database)
  } finally {
    database.close()
  }
}
