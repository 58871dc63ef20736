/** Settings are read back at every open, because the binding opens an existing write-ahead log with weaker ones. */
import { closeSync, existsSync, openSync, readFileSync, readSync, readdirSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import Database from 'better-sqlite3'
import { databaseFailure } from '../../../platform/database-failure.ts'
import { integrityOf } from '../../../platform/integrity.ts'
import { denialOf } from '../../../platform/denial-of.ts'
import { DISK_OR_QUOTA_FULL, NoSpace, isFailedWrite, lacksSpace } from '../../../platform/disk-space.ts'
import { makeDirectories } from '../../../platform/make-directories.ts'
import { flush } from '../../../platform/flush.ts'
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

/** How long to wait for another process to release the file, for example while it exits. */
export const BUSY_MS = 200

/** @throws CodedError STATE_IN_USE, STATE_UNWRITABLE, DISK_FAILED, DATABASE_NEWER; DATABASE_CORRUPT: the file stays unchanged */
export function openDatabase(path: string): Database.Database {
  createFile(path)
  let database: Database.Database | undefined
  try {
    database = new Database(path, { timeout: BUSY_MS })
    database.defaultSafeIntegers(true)
    set(database, 'locking_mode', 'EXCLUSIVE', 'exclusive')
    refuseForeign(database, path)
    database.pragma(`page_size = ${PAGE_BYTES}`)
    // Lets the store shrink the file in steps. Takes effect only before the first write, so existing files are not touched.
    if (database.pragma('page_count', { simple: true }) === 0n) set(database, 'auto_vacuum', 'INCREMENTAL', 2n)
    set(database, 'journal_mode', 'WAL', 'wal')
    requireWritable(database, path)
    // One flush per commit: otherwise a power cut loses commits that were answered.
    set(database, 'synchronous', 'FULL', 2n)
    // The store runs checkpoints, to handle their failures.
    set(database, 'wal_autocheckpoint', '0', 0n)
    set(database, 'foreign_keys', 'ON', 1n)
    expect(database, 'page_size', BigInt(PAGE_BYTES))
    const result = integrityOf(database, 'quick_check')
    if (result !== 'ok') throw corrupt(path, `the integrity check reports: ${result}`)
    migrate(database, path)
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
    makeDirectory(dirname(path))
    if (existsSync(path)) return
    closeSync(openSync(path, 'ax', 0o600))
    flushDirectoryOf(path)
  } catch (cause) {
    throw unwritableState(cause, path, `${path} cannot be created`)
  }
}

/** For the owner only. Flushes the parent directory: otherwise a power cut could remove the new directory. */
function makeDirectory(path: string): void {
  const first = makeDirectories(path, 0o700)
  if (first === undefined) return
  const above = dirname(resolve(first))
  for (let made = resolve(path); made !== above; made = dirname(made)) flushDirectoryOf(made)
}

export function flushDirectoryOf(path: string): void {
  flush(dirname(path))
}

function set(database: Database.Database, pragma: string, value: string, expected: unknown): void {
  database.pragma(`${pragma} = ${value}`)
  expect(database, pragma, expected)
}

function expect(database: Database.Database, pragma: string, expected: unknown): void {
  const actual = database.pragma(pragma, { simple: true })
  if (actual !== expected) throw new Error(`SQLite did not apply ${pragma}: it is ${String(actual)}`)
}

/** Read-only check. An empty file is one whose creation was interrupted. */
function refuseForeign(database: Database.Database, path: string): void {
  const id = database.pragma('application_id', { simple: true })
  if (id === BigInt(APPLICATION_ID)) return
  const isEmpty = database.prepare('SELECT count(*) = 0 FROM sqlite_schema').pluck().get()
  if (id !== 0n || isEmpty !== 1n) throw corrupt(path, 'it is the database of another program')
}

const MIGRATIONS = new URL('./migrations/', import.meta.url)

export function migrationNames(): readonly string[] {
  return readdirSync(MIGRATIONS)
    .filter((name) => name.endsWith('.sql'))
    .sort()
}

function readMigration(name: string): string {
  return readFileSync(new URL(name, MIGRATIONS), 'utf8')
}

/**
 * The number of migrations that the database has. Each migration changes the schema, so a newer database has another one.
 * @throws CodedError DATABASE_NEWER; DATABASE_CORRUPT if only the number is newer
 */
export function requireKnownSchema(database: Database.Database, path: string): number {
  const known = migrationNames().length
  const version = Number(database.pragma('user_version', { simple: true }))
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
  const own = new Database(':memory:')
  try {
    for (const name of migrationNames().slice(0, version)) own.exec(readMigration(name))
    return schemaOf(database) === schemaOf(own)
  } finally {
    own.close()
  }
}

function schemaOf(database: Database.Database): string {
  return JSON.stringify(
    database.prepare('SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name').raw().all(),
  )
}

function migrate(database: Database.Database, path: string): void {
  const version = requireKnownSchema(database, path)
  for (const [index, name] of migrationNames().entries()) {
    if (index < version) continue
    const sql = readMigration(name)
    database
      .transaction(() => {
        database.exec(sql)
        database.pragma(`application_id = ${APPLICATION_ID}`)
        database.pragma(`user_version = ${index + 1}`)
      })
      .exclusive()
  }
}

/** SQLite also opens a database that it can only read. @throws CodedError DATABASE_CORRUPT if its header forbids writes */
function requireWritable(database: Database.Database, path: string): void {
  try {
    // A lock for writes is not refused, but a write.
    const version = Number(database.pragma('user_version', { simple: true }))
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
