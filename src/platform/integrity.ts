import type Database from 'better-sqlite3'

/** `ok`, or what SQLite finds first, in one line. */
export function integrityOf(database: Database.Database, check: 'quick_check' | 'integrity_check'): string {
  const found = String(database.pragma(`${check}(1)`, { simple: true }))
  return found.replace('*** in database main ***\n', '').replaceAll('\n', '; ')
}
