/** Opens a database with durable commits and migrates it. Settings are read back at each open: a mismatch is an error. */
import { closeSync, existsSync, openSync } from 'node:fs'
import Sqlite from 'better-sqlite3'
import { holdsFrames, sizeOf } from '../../../platform/database-files.ts'
import { databaseFailure } from '../../../platform/database-failure.ts'
import { denialOf } from '../../../platform/denial-of.ts'
import { orNull } from '../../../platform/or-null.ts'
import { type Migration, readMigrations } from '../../../platform/migrations.ts'
import { integrityOf, isForeign, runMigrations, schemaVersionOf, setPragma } from '../../../platform/sqlite.ts'
import { CodedError } from '../../../protocol/errors.ts'

export type Database = Sqlite.Database

/** `TGcl`, in the file header. */
const APPLICATION_ID = 0x54_47_63_6c

/** How long a statement waits for another process's lock, ms. */
export const BUSY_TIMEOUT_MS = 5_000

/** Of each connection, KiB. The rows of each sync are on different pages, and the default keeps few. */
const CACHE_KIB = 16_384

/**
 * @param path database file, created if missing
 * @param check verify the whole file, about a second per gigabyte
 * @throws CodedError DATABASE_CORRUPT, DATABASE_NEWER or STATE_UNWRITABLE
 */
export function openDatabase(path: string, { check }: { readonly check: boolean }): Database {
  makeForOwner(path)
  return opened(path, (database) => {
    if (check) verify(database, path)
    migrate(database, path)
  })
}

/** SQLite would delete the log: all that is left of the database. Looks at it first, because another process may create both. */
function refuseEmptied(path: string): void {
  const isEmptied = orNull(() => holdsFrames(path) && (sizeOf(path) ?? 0) === 0)
  if (isEmptied !== true) return
  throw new CodedError('DATABASE_CORRUPT', `${path} is empty, but its log ${path}-wal is not.`)
}

/** A second, read-only connection to a file opened by {@link openDatabase}. */
export function openReader(path: string): Database {
  return opened(path, (database) => void database.pragma('query_only = ON'))
}

function opened(path: string, prepare: (database: Database) => void): Database {
  let database: Database | undefined
  try {
    refuseEmptied(path)
    database = new Sqlite(path, { timeout: BUSY_TIMEOUT_MS })
    setUp(database, path)
    prepare(database)
    return database
  } catch (error) {
    // Before the close, which gives back file descriptors.
    const refusal = codedAtOpen(error, path)
    database?.close()
    throw refusal
  }
}

/**
 * Creates the file for its owner only: it contains the bill and names of requesters. SQLite gives its companion files the
 * same mode. An existing file keeps its mode.
 */
export function makeForOwner(path: string): void {
  if (existsSync(path)) return
  try {
    closeSync(openSync(path, 'ax', 0o600))
  } catch {
    // Opening the file reports the reason.
  }
}

function setUp(database: Database, path: string): void {
  database.defaultSafeIntegers(true)
  if (isForeign(database, APPLICATION_ID)) {
    throw new CodedError('DATABASE_CORRUPT', `${path} is the database of another program.`)
  }
  // Archived usage gives its space back. Only an empty file can change it, and the next pragma writes to the file.
  if (database.pragma('page_count', { simple: true }) === 0n) database.pragma('auto_vacuum = INCREMENTAL')
  // Readers never wait for the writer, and a commit needs one flush.
  setPragma(database, 'journal_mode', 'wal')
  // SQLite may default to NORMAL in WAL mode, which loses the last commits in a power cut.
  setPragma(database, 'synchronous', 2n)
  setPragma(database, 'foreign_keys', 1n)
  // A foreign database file must not run its own code.
  setPragma(database, 'trusted_schema', 0n)
  // Negative: not pages, but KiB.
  setPragma(database, 'cache_size', BigInt(-CACHE_KIB))
}

function verify(database: Database, path: string): void {
  const found = integrityOf(database, 'quick_check')
  if (found !== 'ok') throw new CodedError('DATABASE_CORRUPT', `${path} is damaged: ${found}`)
}

export function migrations(): readonly Migration[] {
  return readMigrations(new URL('./migrations/', import.meta.url))
}

function migrate(database: Database, path: string): void {
  const all = migrations()
  const version = schemaVersionOf(database)
  if (version > all.length) {
    throw new CodedError(
      'DATABASE_NEWER',
      `${path} has schema ${version}; this version of tallygate supports up to ${all.length}.`,
    )
  }
  runMigrations(database, all, APPLICATION_ID)
}

/** On a full disk; SHMSIZE: there is no space for the index of the log. */
const NO_SPACE = ['SQLITE_FULL', 'SQLITE_IOERR_SHMSIZE']

/** As {@link coded}, before there are requests. */
export function codedAtOpen(error: unknown, path: string): unknown {
  return error instanceof Sqlite.SqliteError && NO_SPACE.includes(error.code)
    ? new CodedError('STATE_UNWRITABLE', `${path}: ${error.message}`, { cause: error })
    : coded(error, path)
}

/** Maps SQLite errors to codes for operators; passes others on. */
export function coded(error: unknown, path: string): unknown {
  if (!(error instanceof Sqlite.SqliteError)) {
    // better-sqlite3 reports a missing or unwritable directory as a TypeError.
    const missing = error instanceof TypeError && !existsSync(path)
    return missing ? new CodedError('STATE_UNWRITABLE', `${path}: ${error.message}`, { cause: error }) : error
  }
  const { code } = error
  // The tables are those of the version that the file states, unless its schema is damaged.
  const isOtherSchema = code === 'SQLITE_ERROR' && /no such (table|column)|has no column/.test(error.message)
  if (code.startsWith('SQLITE_CORRUPT') || code === 'SQLITE_NOTADB' || isOtherSchema) {
    return new CodedError('DATABASE_CORRUPT', `${path}: ${error.message}`, { cause: error })
  }
  if (code === 'SQLITE_FULL') {
    return new CodedError('NOT_RECORDED', `${path}: ${error.message}`, { cause: error })
  }
  if (code.startsWith('SQLITE_BUSY')) {
    // Callers of the service get the message.
    return new CodedError('OVERLOADED', 'The database is locked by another process.', {
      cause: error,
      details: { path },
    })
  }
  const denial = denialOf(path)
  if (denial !== null) {
    const { reason, remedy } = denial
    return new CodedError('STATE_UNWRITABLE', `${path}: ${reason}`, { cause: error, details: { remedy } })
  }
  if (code.startsWith('SQLITE_IOERR')) {
    return new CodedError('DISK_FAILED', `${path}: ${error.message}`, { cause: error })
  }
  const failure = databaseFailure(error, path)
  if (failure !== null) return failure
  if (code.startsWith('SQLITE_CANTOPEN') || code.startsWith('SQLITE_READONLY') || code === 'SQLITE_PERM') {
    return new CodedError('STATE_UNWRITABLE', `${path}: ${error.message}`, { cause: error })
  }
  return error
}
