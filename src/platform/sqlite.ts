/** The SQLite databases of agent and cloud. */
import type { Database } from 'better-sqlite3'
import type { Migration } from './migrations.ts'

/** Sets a pragma and reads it back. */
export function setPragma(database: Database, pragma: string, value: string | bigint): void {
  database.pragma(`${pragma} = ${value}`)
  const actual = database.pragma(pragma, { simple: true })
  if (actual !== value) throw new Error(`SQLite did not apply ${pragma} = ${value}: it is ${String(actual)}`)
}

/** `ok`, or what SQLite finds first, in one line. */
export function integrityOf(database: Database, check: 'quick_check' | 'integrity_check'): string {
  const found = String(database.pragma(`${check}(1)`, { simple: true }))
  return found.replace('*** in database main ***\n', '').replaceAll('\n', '; ')
}

/** Read-only check: another program's file stays as it is. An empty file is one whose creation was interrupted. */
export function isForeign(database: Database, applicationId: number): boolean {
  const id = database.pragma('application_id', { simple: true })
  if (id === BigInt(applicationId)) return false
  return id !== 0n || database.prepare('SELECT count(*) = 0 FROM sqlite_schema').pluck().get() !== 1n
}

export function schemaVersionOf(database: Database): number {
  return Number(database.pragma('user_version', { simple: true }))
}

/** Runs pending migrations, each in a transaction that also sets the schema's version to its number. */
export function runMigrations(database: Database, all: readonly Migration[], applicationId: number): void {
  // A file that is up to date is opened without its lock: another connection may write.
  for (const { number, sql } of all.filter((each) => each.number > schemaVersionOf(database))) {
    database
      .transaction(() => {
        if (schemaVersionOf(database) >= number) return
        database.exec(sql)
        database.pragma(`application_id = ${applicationId}`)
        database.pragma(`user_version = ${number}`)
      })
      .immediate()
  }
}
