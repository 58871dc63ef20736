/** Settings are read back at every open, because the binding opens an existing write-ahead log with weaker ones. */
import { closeSync, existsSync, openSync, readSync } from 'node:fs'
import { dirname } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import Database from 'better-sqlite3'
import { databaseFailure } from '../../../platform/database-failure.ts'
import { denialOf } from '../../../platform/denial-of.ts'
import { DISK_OR_QUOTA_FULL, NoSpace, isFailedWrite, lacksSpace } from '../../../platform/disk-space.ts'
import { flush } from '../../../platform/flush.ts'
import { makeDurableDirectory } from '../../../platform/make-directories.ts'
import { type Migration, readMigrations } from '../../../platform/migrations.ts'
import { integrityOf, isForeign, runMigrations, schemaVersionOf, setPragma } from '../../../platform/sqlite.ts'
import { CodedError, messageOf } from '../../../protocol/errors.ts'
import { unwritableState } from '../../../protocol/file-reasons.ts'

/** "TgJ1", in the file header. */
export const APPLICATION_ID = 0x54674a31

/** Small, because a commit of a few entries writes one page. */
export const PAGE_BYTES = 1024

/** Where the header has the versions for writes and for reads. SQLite only reads a database whose first one it does not know. */
export const VERSIONS_AT = 18

/** Both, of a database with a write-ahead log. There is no newer one. */
export const VERSION_WITH_LOG = 2

/** Values of pragmas. */
const INCREMENTAL = 2n
const FULL = 2n

/** How long to wait for another process to release the file, for example while it exits. */
export const BUSY_MS = 200

/** @throws CodedError STATE_IN_USE, STATE_UNWRITABLE, DISK_FAILED, DATABASE_NEWER; DATABASE_CORRUPT: the file stays unchanged */
export function openDatabase(path: string): Database.Database {
  createFile(path)
  let database: Database.Database | undefined
  try {
    database = new Database(path, { timeout: BUSY_MS })
    database.defaultSafeIntegers(true)
    setPragma(database, 'locking_mode', 'exclusive')
    if (isForeign(database, APPLICATION_ID)) throw corrupt(path, 'it is the database of another program')
    database.pragma(`page_size = ${PAGE_BYTES}`)
    // Lets the store shrink the file in steps. Takes effect only before the first write, so existing files are not touched.
    if (database.pragma('page_count', { simple: true }) === 0n) setPragma(database, 'auto_vacuum', INCREMENTAL)
    setPragma(database, 'journal_mode', 'wal')
    requireWritable(database, path)
    // One flush per commit: otherwise a power cut loses commits that were answered.
    setPragma(database, 'synchronous', FULL)
    // The store runs checkpoints, to handle their failures.
    setPragma(database, 'wal_autocheckpoint', 0n)
    setPragma(database, 'foreign_keys', 1n)
    setPragma(database, 'page_size', BigInt(PAGE_BYTES))
    const result = integrityOf(database, 'quick_check')
    if (result !== 'ok') throw corrupt(path, `the integrity check reports: ${result}`)
    requireKnownSchema(database, path)
    runMigrations(database, migrations(), APPLICATION_ID)
    // Damage within their texts: the integrity check ignores it, and a later write would fail.
    if (!hasOwnTables(database)) throw corrupt(path, 'the definitions of its tables are damaged')
    flushLog(database, path)
    flushDirectoryOf(path)
    return database
  } catch (error) {
    // Before the close, which gives back file descriptors.
    const refusal = refusalOf(error, path)
    database?.close()
    throw refusal
  }
}

/**
 * Makes what was read durable: the last process may have been killed before a flush. If a flush failed in it, the log
 * may have a gap, behind which new commits would be lost: a new log begins.
 */
function flushLog(database: Database.Database, path: string): void {
  try {
    database.pragma('wal_checkpoint(TRUNCATE)')
  } catch (error) {
    if (!lacksSpace(error, path)) throw error
  }
  flush(`${path}-wal`)
}

/** Creates the file for its owner only. Never opens an existing file: closing it would drop this process's locks. */
function createFile(path: string): void {
  try {
    makeDurableDirectory(dirname(path))
    if (existsSync(path)) return
    closeSync(openSync(path, 'ax', 0o600))
    flushDirectoryOf(path)
  } catch (cause) {
    throw unwritableState(cause, path, `${path} cannot be created`)
  }
}

export function flushDirectoryOf(path: string): void {
  flush(dirname(path))
}

export function migrations(): readonly Migration[] {
  return readMigrations(new URL('./migrations/', import.meta.url))
}

/**
 * The number of migrations that the database has. Each migration changes the schema, so a newer database has another one.
 * @throws CodedError DATABASE_NEWER; DATABASE_CORRUPT if only the number is newer
 */
export function requireKnownSchema(database: Database.Database, path: string): number {
  const known = migrations().length
  const version = schemaVersionOf(database)
  if (version <= known) return version
  if (hasSchema(database, known)) throw corrupt(path, `its header names schema ${version}, but it has schema ${known}`)
  throw new CodedError(
    'DATABASE_NEWER',
    `${path} has schema ${version}; this version of tallygate supports up to ${known}`,
    { details: { path, schema: version, known } },
  )
}

/** Whether its tables are those after that many migrations, and it has nothing else. */
export function hasSchema(database: Database.Database, version: number): boolean {
  return isDeepStrictEqual(schemaOf(database), schemaAfter(version))
}

/** Whether it has all tables of this version. An administrator may add an index. */
function hasOwnTables(database: Database.Database): boolean {
  const schema = new Set(schemaOf(database))
  return schemaAfter(migrations().length).every((each) => schema.has(each))
}

function schemaAfter(version: number): readonly string[] {
  const own = new Database(':memory:')
  try {
    for (const { sql } of migrations().slice(0, version)) own.exec(sql)
    return schemaOf(own)
  } finally {
    own.close()
  }
}

function schemaOf(database: Database.Database): readonly string[] {
  const rows = database.prepare('SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name').raw().all()
  return rows.map((row) => JSON.stringify(row))
}

/** SQLite also opens a database that it can only read. @throws CodedError DATABASE_CORRUPT if its header forbids writes */
function requireWritable(database: Database.Database, path: string): void {
  try {
    // A lock for writes is not refused, but a write.
    const version = schemaVersionOf(database)
    database.exec(`BEGIN IMMEDIATE; PRAGMA user_version = ${version}; ROLLBACK`)
  } catch (error) {
    if ((error as { readonly code?: unknown }).code !== 'SQLITE_READONLY' || !forbidsWrites(path)) throw error
    throw corrupt(path, 'its header forbids writes', error)
  }
}

function forbidsWrites(path: string): boolean {
  const file = openSync(path, 'r')
  try {
    const version = Buffer.alloc(1)
    readSync(file, version, 0, 1, VERSIONS_AT)
    return version.readUInt8() > VERSION_WITH_LOG
  } finally {
    closeSync(file)
  }
}

function corrupt(path: string, why: string, cause?: unknown): CodedError {
  return new CodedError('DATABASE_CORRUPT', `${path}: ${why}`, { cause, details: { path } })
}

const UNWRITABLE = /^SQLITE_(CANTOPEN|READONLY|FULL)/

/** Maps errors of SQLite and the file system to codes for operators; passes others on. */
export function refusalOf(error: unknown, path: string): unknown {
  const { code, syscall } = error as { readonly code?: unknown; readonly syscall?: unknown }
  if (error instanceof CodedError || typeof code !== 'string') return error
  if (code === 'SQLITE_BUSY') {
    return new CodedError('STATE_IN_USE', `${path} is in use by another process`, { cause: error, details: { path } })
  }
  if (code === 'SQLITE_NOTADB' || code.startsWith('SQLITE_CORRUPT')) return corrupt(path, messageOf(error), error)
  if (isFailedWrite(error) && lacksSpace(error, path)) return new NoSpace(path, DISK_OR_QUOTA_FULL, error)
  const denial = denialOf(path)
  const failure = denial === null ? databaseFailure(error, path) : null
  // An error of the file system is no sign of a damaged file.
  if (failure !== null || (denial === null && !UNWRITABLE.test(code) && syscall === undefined)) return failure ?? error
  const details = denial === null ? { path } : { path, remedy: denial.remedy }
  return new CodedError('STATE_UNWRITABLE', `${path}: ${denial?.reason ?? messageOf(error)}`, { cause: error, details })
}
