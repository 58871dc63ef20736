/**
 * Opens a database file so that a commit survives a power cut, and brings its tables up to date. Whatever SQLite promises
 * is asked for at every open and read back: a setting that did not take is a start that does not happen.
 */
import { closeSync, existsSync, openSync } from 'node:fs'
import Sqlite from 'better-sqlite3'
import { CodedError } from '../../../protocol/errors.ts'
import { type Migration, readMigrations } from '../sql/migrations.ts'

export type Database = Sqlite.Database

/** Stands in the file's header and says whose database it is: `TGcl`. */
const APPLICATION_ID = 0x54_47_63_6c

/** How long a statement waits for another process that holds the file. */
const BUSY_TIMEOUT_MS = 5_000

/**
 * @param path of the file; made when it does not exist
 * @param check reads the whole file and verifies it, which takes about a second per gigabyte
 * @throws CodedError DATABASE_CORRUPT, DATABASE_NEWER or STATE_UNWRITABLE
 */
export function openDatabase(path: string, { check }: { readonly check: boolean }): Database {
  let database: Database | undefined
  try {
    makeForOwner(path)
    database = connect(path)
    own(database, path)
    if (check) verify(database, path)
    migrate(database, path)
    return database
  } catch (error) {
    database?.close()
    throw coded(error, path)
  }
}

/** A second connection to a file that {@link openDatabase} has opened; it cannot write. */
export function openReader(path: string): Database {
  let database: Database | undefined
  try {
    database = connect(path)
    database.pragma('query_only = ON')
    return database
  } catch (error) {
    database?.close()
    throw coded(error, path)
  }
}

/**
 * Whoever may write it could write the bill, and requesters are named in it: it is for its owner only, whatever directory it
 * is in. What SQLite puts beside it gets the same permissions. A file that is there keeps its own.
 */
export function makeForOwner(path: string): void {
  if (existsSync(path)) return
  try {
    closeSync(openSync(path, 'ax', 0o600))
  } catch {
    // Whoever opens it is told why.
  }
}

function connect(path: string): Database {
  const database = new Sqlite(path, { timeout: BUSY_TIMEOUT_MS })
  // Readers never wait for the writer, and a commit costs one flush.
  demand(database, 'journal_mode', 'wal')
  // NORMAL, which SQLite may be built to fall back to in WAL mode, loses the last commits in a power cut.
  demand(database, 'synchronous', 2n)
  demand(database, 'foreign_keys', 1n)
  // A database file from elsewhere must not run code of its own.
  demand(database, 'trusted_schema', 0n)
  database.defaultSafeIntegers(true)
  return database
}

function demand(database: Database, pragma: string, value: string | bigint): void {
  database.defaultSafeIntegers(true)
  database.pragma(`${pragma} = ${value}`)
  const actual = database.pragma(pragma, { simple: true })
  if (actual !== value) throw new Error(`SQLite did not take ${pragma} = ${value}: it is ${String(actual)}`)
}

/** Marks an empty file as ours, and refuses one that is somebody else's. */
function own(database: Database, path: string): void {
  const id = database.pragma('application_id', { simple: true })
  if (id === BigInt(APPLICATION_ID)) return
  const tables = database.prepare('SELECT count(*) AS count FROM sqlite_schema').get() as { count: bigint }
  if (id !== 0n || tables.count !== 0n) {
    throw new CodedError('DATABASE_CORRUPT', `${path} is a database of another program.`)
  }
  database.pragma(`application_id = ${APPLICATION_ID}`)
}

function verify(database: Database, path: string): void {
  const answer = database.pragma('quick_check(1)', { simple: true })
  if (answer !== 'ok') throw new CodedError('DATABASE_CORRUPT', `${path} is damaged: ${String(answer)}`)
}

export function migrations(folder = new URL('./migrations/', import.meta.url)): readonly Migration[] {
  return readMigrations(folder)
}

/** The number of the last migration that ran is SQLite's `user_version`; each runs in a transaction with its number. */
function migrate(database: Database, path: string, all = migrations()): void {
  const versionOf = () => Number(database.pragma('user_version', { simple: true }))
  const newest = all.at(-1)?.number ?? 0
  if (versionOf() > newest) {
    throw new CodedError('DATABASE_NEWER', `${path} has version ${versionOf()}, this program knows ${newest}.`)
  }
  for (const { number, sql } of all) {
    database
      .transaction(() => {
        if (versionOf() >= number) return
        database.exec(sql)
        database.pragma(`user_version = ${number}`)
      })
      .immediate()
  }
}

/** SQLite's own words for what happened, as a code that the operator can look up. Others are passed on as they are. */
export function coded(error: unknown, path: string): unknown {
  if (!(error instanceof Sqlite.SqliteError)) {
    // The binding reports a missing or unwritable folder as a TypeError.
    const missing = error instanceof TypeError && !existsSync(path)
    return missing ? new CodedError('STATE_UNWRITABLE', `${path}: ${error.message}`, { cause: error }) : error
  }
  const { code } = error
  if (code.startsWith('SQLITE_CORRUPT') || code === 'SQLITE_NOTADB') {
    return new CodedError('DATABASE_CORRUPT', `${path}: ${error.message}`, { cause: error })
  }
  if (code === 'SQLITE_FULL') {
    return new CodedError('NOT_RECORDED', `${path}: ${error.message}`, { cause: error })
  }
  if (code.startsWith('SQLITE_BUSY')) {
    return new CodedError('OVERLOADED', `${path} is held by another process.`, { cause: error })
  }
  if (code.startsWith('SQLITE_CANTOPEN') || code.startsWith('SQLITE_READONLY') || code === 'SQLITE_PERM') {
    return new CodedError('STATE_UNWRITABLE', `${path}: ${error.message}`, { cause: error })
  }
  return error
}
