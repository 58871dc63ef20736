/** Reads a ledger file that no process has open. */
import Database from 'better-sqlite3'

export function countEntries(path: string): number {
  return look(path, 'SELECT count(*) FROM entry')
}

export function meanEntryBytes(path: string): number {
  return Math.round(look(path, 'SELECT coalesce(avg(octet_length(body)), 0) FROM entry'))
}

function look(path: string, query: string): number {
  const database = new Database(path)
  try {
    return database.prepare(query).pluck().get() as number
  } finally {
    database.close()
  }
}
