/**
 * Opens the journal's database so that a commit is a commit: what SQLite is to do is set and read back at every open,
 * because the binding opens an existing write-ahead log with weaker settings than it created it with. Whatever is wrong
 * with the file ends in one CodedError, and a damaged file is left as it is.
 */
import { closeSync, existsSync, fsyncSync, mkdirSync, openSync, readFileSync, readdirSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import Database from 'better-sqlite3'
import { CodedError } from '../../../protocol/errors.ts'

/** In the header of the file: "TgJ1". */
export const APPLICATION_ID = 0x54674a31

const PAGE_BYTES = 4096

/** How long to wait for another process to let go of the file: one that is just ending, for instance. */
export const BUSY_MS = 200

/**
 * @throws CodedError STATE_IN_USE, STATE_UNWRITABLE, DATABASE_NEWER or DATABASE_CORRUPT
 */
export function openDatabase(path: string): Database.Database {
  createFile(path)
  let database: Database.Database | undefined
  try {
    database = new Database(path, { timeout: BUSY_MS })
    database.defaultSafeIntegers(true)
    set(database, 'locking_mode', 'EXCLUSIVE', 'exclusive')
    refuseForeign(database, path)
    database.pragma(`page_size = ${PAGE_BYTES}`)
    // What is deleted can be given back to the file system, in steps that the store chooses. It takes effect before the
    // first write only, and setting it writes: an existing file is not touched.
    if (database.pragma('page_count', { simple: true }) === 0n) set(database, 'auto_vacuum', 'INCREMENTAL', 2n)
    set(database, 'journal_mode', 'WAL', 'wal')
    // One flush per commit; without it a power cut loses commits that were answered.
    set(database, 'synchronous', 'FULL', 2n)
    // Checkpoints are run by the store, which hears of their failures.
    set(database, 'wal_autocheckpoint', '0', 0n)
    set(database, 'foreign_keys', 'ON', 1n)
    expect(database, 'page_size', BigInt(PAGE_BYTES))
    const verdict = database.pragma('quick_check(1)', { simple: true })
    if (verdict !== 'ok') throw corrupt(path, `the integrity check says: ${String(verdict)}`)
    migrate(database, path)
    flushDirectoryOf(path)
    return database
  } catch (error) {
    database?.close()
    throw refusal(error, path)
  }
}

/**
 * Creates the file for its owner only. An existing one is never opened here: closing it again would drop the locks that
 * this process holds on it.
 */
function createFile(path: string): void {
  try {
    makeDirectory(dirname(path))
    if (existsSync(path)) return
    closeSync(openSync(path, 'ax', 0o600))
    flushDirectoryOf(path)
  } catch (cause) {
    throw new CodedError('STATE_UNWRITABLE', `${path} cannot be created: ${messageOf(cause)}`, { cause })
  }
}

/** For its owner only; flushed into the directory above, without which a power cut could take it with all that it holds. */
function makeDirectory(path: string): void {
  const first = mkdirSync(path, { recursive: true, mode: 0o700 })
  if (first === undefined) return
  const above = dirname(resolve(first))
  for (let made = resolve(path); made !== above; made = dirname(made)) flushDirectoryOf(made)
}

/** Makes durable that a file was made, renamed or removed. */
export function flushDirectoryOf(path: string): void {
  const directory = openSync(dirname(path), 'r')
  try {
    fsyncSync(directory)
  } finally {
    closeSync(directory)
  }
}

function set(database: Database.Database, pragma: string, value: string, expected: unknown): void {
  database.pragma(`${pragma} = ${value}`)
  expect(database, pragma, expected)
}

function expect(database: Database.Database, pragma: string, expected: unknown): void {
  const actual = database.pragma(pragma, { simple: true })
  if (actual !== expected) throw new Error(`SQLite did not take ${pragma}: it is ${String(actual)}`)
}

/** Looks before anything is written. An empty file is one whose creation was interrupted. */
function refuseForeign(database: Database.Database, path: string): void {
  const id = database.pragma('application_id', { simple: true })
  if (id === BigInt(APPLICATION_ID)) return
  const isEmpty = database.prepare('SELECT count(*) = 0 FROM sqlite_schema').pluck().get()
  if (id !== 0n || isEmpty !== 1n) throw corrupt(path, 'it is the database of another program')
}

function migrate(database: Database.Database, path: string): void {
  const folder = new URL('./migrations/', import.meta.url)
  const migrations = readdirSync(folder)
    .filter((name) => name.endsWith('.sql'))
    .sort()
  const version = Number(database.pragma('user_version', { simple: true }))
  if (version > migrations.length) {
    throw new CodedError(
      'DATABASE_NEWER',
      `${path} has schema ${version}; this version of tallygate knows up to ${migrations.length}`,
      { facts: { path, schema: version, known: migrations.length } },
    )
  }
  for (const [index, name] of migrations.entries()) {
    if (index < version) continue
    const sql = readFileSync(new URL(name, folder), 'utf8')
    database
      .transaction(() => {
        database.exec(sql)
        database.pragma(`application_id = ${APPLICATION_ID}`)
        database.pragma(`user_version = ${index + 1}`)
      })
      .exclusive()
  }
}

function corrupt(path: string, why: string, cause?: unknown): CodedError {
  return new CodedError('DATABASE_CORRUPT', `${path}: ${why}`, { cause, facts: { path } })
}

function refusal(error: unknown, path: string): unknown {
  const code = error instanceof Database.SqliteError ? error.code : ''
  if (code === 'SQLITE_BUSY') {
    return new CodedError('STATE_IN_USE', `${path} is held by another process`, { cause: error, facts: { path } })
  }
  if (code === 'SQLITE_NOTADB' || code.startsWith('SQLITE_CORRUPT')) return corrupt(path, messageOf(error), error)
  if (code.startsWith('SQLITE_CANTOPEN') || code.startsWith('SQLITE_READONLY') || code === 'SQLITE_FULL') {
    return new CodedError('STATE_UNWRITABLE', `${path}: ${messageOf(error)}`, { cause: error, facts: { path } })
  }
  return error
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
