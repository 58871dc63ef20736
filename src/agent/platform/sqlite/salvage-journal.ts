import { existsSync, lstatSync, renameSync, statSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import Database from 'better-sqlite3'
import { lockDirectory } from './lock-directory.ts'
import { holdsFrames, sizeOf } from '../../../platform/database-files.ts'
import { orNull } from '../../../platform/or-null.ts'
import { CodedError, messageOf } from '../../../protocol/errors.ts'
import { entryHash } from '../../../protocol/signing.ts'
import type { BootLog } from '../../ledger/volatile-log.ts'
import { JournalStore } from './journal-store.ts'
import type { JournalLimits } from './journal-file.ts'
import { SUFFIXES, type Salvage, type Undelivered, lastOf, remove, salvaged } from './read-damaged.ts'
import { BLOCK_ENTRIES, insertEntries } from './entry-blocks.ts'
import { unlessDamaged } from './unless-damaged.ts'
import { BUSY_MS, flushDirectoryOf, openDatabase, refusalOf } from './open-database.ts'

export interface StoreOptions {
  readonly path: string
  readonly limits: JournalLimits
  /** Files that exist only once the journal has content: beside one of them, an empty database is damaged. */
  readonly later: readonly string[]
  /** Entries that an earlier process answered but did not write to the journal, which they continue; null: none. */
  readonly left: BootLog | null
}

/**
 * Opens the journal, or salvages all readable, proven data into a new one. The damaged file is renamed, never deleted.
 * Rule signatures are checked again at use. The device gets no tokens until it attaches again.
 *
 * @param now POSIX ms; used only for the file name
 * @throws CodedError if the journal is not damaged but locked, written by a newer version, or cannot be written
 */
export function openOrSalvage(options: StoreOptions, now: number): JournalStore {
  const { path } = options
  // SQLite cannot lock a damaged file.
  using _lock = lockLedger(path)
  const store = openedOrSalvaged(options, now)
  // Of a salvage or a restore that was killed. They take only space: the next start tries it again.
  for (const suffix of ['.copy', '.draft', '.restoring']) orNull(() => remove(`${path}${suffix}`))
  return store
}

/** Against other processes that salvage or restore it. @throws CodedError STATE_IN_USE */
export function lockLedger(path: string): Disposable {
  const lock = lockDirectory(dirname(path))
  if (lock !== null) return lock
  throw new CodedError('STATE_IN_USE', `${path} is in use by another process`, { details: { path } })
}

function openedOrSalvaged({ path, limits, later, left }: StoreOptions, now: number): JournalStore {
  if (isSalvageUnfinished(path)) finishSalvage(path)
  try {
    refuseEmptied(path, later)
    return probed(path, limits)
  } catch (cause) {
    const error = refusalOf(cause, path)
    if (!isDamage(error, path)) throw cause
    prepareSalvage(path, now, messageOf(error), left)
    finishSalvage(path)
    return probed(path, limits)
  }
}

/** Builds the replacement under a temporary name until it is complete; then {@link finishSalvage} can continue. */
function prepareSalvage(path: string, at: number, why: string, left: BootLog | null): void {
  const draft = `${path}.draft`
  remove(draft)
  try {
    const damage = { at, aside: asideOf(path, 'damaged', at), why }
    // After the end of the copy, whose space the pages may need.
    closeWhole(salvaged(path, left, (salvage) => filled(draft, salvage, damage)))
    renameSync(draft, `${path}.salvaged`)
  } finally {
    remove(draft)
  }
  flushDirectoryOf(path)
}

/**
 * Renames the journal, unless already done, and moves the replacement `<path>.salvaged` into place: of a salvage, or of a
 * restore, whose modification time names the renamed journal.
 * @returns where the replaced journal is
 */
export function finishSalvage(path: string): string {
  const salvagedFrom = `${path}.salvaged`
  const aside = nameOfReplaced(path, salvagedFrom)
  // The log first: after an interruption, a database without its log is merely older.
  for (const suffix of SUFFIXES.toReversed()) {
    if (existsSync(`${path}${suffix}`)) renameSync(`${path}${suffix}`, `${aside}${suffix}`)
  }
  flushDirectoryOf(path)
  renameSync(salvagedFrom, path)
  flushDirectoryOf(path)
  return aside
}

function nameOfReplaced(path: string, salvagedFrom: string): string {
  const database = new Database(salvagedFrom, { fileMustExist: true })
  try {
    const row = database.prepare('SELECT at, file FROM salvage').get() as { at: number; file: string } | undefined
    if (row === undefined) return asideOf(path, 'replaced', Math.round(statSync(salvagedFrom).mtimeMs))
    const { at, file } = row
    // If that name is taken while a journal is still in place, it belongs to another journal: use a new name.
    const aside = existsSync(file) && existsSync(path) ? asideOf(path, 'damaged', at) : file
    database.prepare('UPDATE salvage SET file = ?').run(aside)
    return aside
  } finally {
    // The rename moves no log.
    closeWhole(database)
  }
}

export function isSalvageUnfinished(path: string): boolean {
  return existsSync(`${path}.salvaged`)
}

/** A journal that opens but cannot be read would end the process at each start. */
function probed(path: string, limits: JournalLimits): JournalStore {
  const database = openDatabase(path)
  try {
    const store = new JournalStore(database, limits)
    store.read()
    store.checkUndelivered()
    return store
  } catch (error) {
    database.close()
    throw error
  }
}

/** SQLite treats an empty file as a new database, and deletes its log. It has lost its content if files exist that are created later. */
export function refuseEmptied(path: string, later: readonly string[]): void {
  if (!isEmpty(path)) return
  // Another process may be creating the file.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, BUSY_MS)
  if (!isEmpty(path)) return
  const size = sizeOf(path)
  const hasLog = holdsFrames(path)
  if (!hasLog && (size === undefined || !later.some((file) => existsSync(file)))) return
  // Ensures that there is a file to rename.
  if (size === undefined) writeFileSync(path, '', { mode: 0o600, flag: 'a' })
  throw new CodedError('DATABASE_CORRUPT', `${path} is empty but had content before`, { details: { path } })
}

function isEmpty(path: string): boolean {
  return (sizeOf(path) ?? 0) === 0 && (sizeOf(path) !== undefined || holdsFrames(path))
}

function isDamage(error: unknown, path: string): boolean {
  if (error instanceof CodedError) {
    if (error.code === 'DATABASE_CORRUPT') return true
    return error.code === 'STATE_UNWRITABLE' && orNull(() => lstatSync(path).isDirectory()) === true
  }
  if (!(error instanceof Database.SqliteError)) {
    // The library of SQLite could not be loaded, which is no sign of damage.
    return (error as { readonly code?: unknown }).code !== 'ERR_DLOPEN_FAILED'
  }
  return /^SQLITE_(CORRUPT|NOTADB|ERROR|CONSTRAINT|MISMATCH|SCHEMA)/.test(error.code)
}

export function asideOf(path: string, what: 'damaged' | 'replaced', at: number): string {
  const stamp = new Date(at).toISOString().replaceAll(/[:.]/g, '-')
  let aside = `${path}.${what}-${stamp}`
  for (let n = 2; existsSync(aside); n += 1) aside = `${path}.${what}-${stamp}-${n}`
  return aside
}

/** An open, new ledger with that content. @param damage problem for the technician; null: none */
export function filled(path: string, salvage: Salvage, damage: Damage | null): Database.Database {
  const database = openDatabase(path)
  try {
    fill(database, salvage, damage)
    return database
  } catch (error) {
    // Before the close, which gives back space.
    const refusal = refusalOf(error, path)
    database.close()
    throw refusal
  }
}

/** So that a rename moves everything: on a full disk, a close alone leaves it in the log. */
export function closeWhole(database: Database.Database): void {
  try {
    database.pragma('wal_checkpoint(TRUNCATE)')
  } catch (error) {
    // Before the close, which gives back space.
    throw refusalOf(error, database.name)
  } finally {
    database.close()
  }
}

interface Damage {
  readonly at: number
  readonly aside: string
  readonly why: string
}

function fill(database: Database.Database, salvage: Salvage, damage: Damage | null): void {
  database
    .transaction(() => {
      insertState(database, salvage)
      const idOf = insertUndelivered(database, salvage.undelivered)
      insertAnswers(database, salvage.answers, idOf)
      if (damage !== null) noteDamage(database, damage, salvage)
    })
    .exclusive()
}

function insertState(database: Database.Database, { identity, policies, sessions }: Salvage): void {
  if (identity !== null) {
    database.prepare('INSERT INTO identity (only, document) VALUES (1, ?)').run(JSON.stringify(identity))
  }
  const policy = database.prepare(
    'INSERT OR IGNORE INTO policy (instance_id, revision, document, confirmed_at) VALUES (?, ?, ?, ?)',
  )
  // Their confirmations were signed in answers that are not kept: the next sync confirms them again.
  for (const row of policies) insertFitting(policy, row.instance_id, row.revision, row.document, 0)
  const session = database.prepare(
    'INSERT OR IGNORE INTO session (id, ended, since, document, snapshot, unsealed) VALUES (?, ?, ?, ?, ?, 1)',
  )
  for (const row of sessions) insertFitting(session, row.id, row.ended, row.since, row.document, row.snapshot)
}

/** False: leaves out a row that a damaged table gave values that it cannot have. */
function insertFitting(insert: Database.Statement, ...values: readonly unknown[]): boolean {
  return unlessDamaged(null, () => insert.run(...values)) !== null
}

function insertAnswers(
  database: Database.Database,
  answers: Salvage['answers'],
  idOf: ReturnType<typeof insertUndelivered>,
): void {
  const insert = database.prepare(
    `INSERT INTO answer (slot, session, n, request_hash, body, status, policy_revision, entry_id)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
  )
  // Without gaps: the number of slots is the next one.
  let slot = 0
  for (const { session, n, requestHash, answer: body, status = 200, policyRevision, entry } of answers) {
    const entryId = entry === null ? 0 : idOf(entry)
    if (insertFitting(insert, slot, session, n, requestHash, body, status, policyRevision, entryId)) slot += 1
  }
}

function noteDamage(database: Database.Database, { at, aside, why }: Damage, { undelivered, lost }: Salvage): void {
  const salvagedEntries = undelivered.reduce((sum, { bodies }) => sum + bodies.length, 0)
  database
    .prepare('INSERT INTO salvage (at, file, why, salvaged_entries, lost_entries) VALUES (?, ?, ?, ?, ?)')
    .run(at, aside, why.slice(0, 1_000), salvagedEntries, lost)
}

/** Returns the id of an entry by its epoch and number; 0: it is not among them. */
function insertUndelivered(
  database: Database.Database,
  undelivered: readonly Undelivered[],
): (entry: { readonly epoch: number; readonly n: number }) => number {
  const insertRange = database.prepare(
    `INSERT INTO undelivered_ranges (epoch, entry_base, acked_entry, acked_head, sealed_entry, sealed_head, last_entry, last_head,
         whole, end_sealed)
       VALUES (:epoch, :base, :acked, :head, :acked, :head, :last, :lastHead, :whole, 0)`,
  )
  let id = 0
  const ranges: { readonly epoch: number; readonly base: number; readonly acked: number; readonly last: number }[] = []
  // In the order of delivery: what comes after the first undelivered entry is kept.
  const inOrder = undelivered.toSorted((a, b) => a.epoch - b.epoch || a.ackedEntry - b.ackedEntry)
  for (const list of inOrder) {
    const { epoch, ackedEntry: acked, ackedHead: head, bodies } = list
    const others = undelivered.filter((each) => each !== list && each.epoch === epoch)
    // Entries beside or after it: there was a second writer, or some are missing.
    const isWhole = list.isWhole && others.every((other) => lastOf(other) <= acked)
    if (bodies.length === 0 && !isWhole) continue
    const base = id - acked
    const lastHead = insertBodies(database, bodies, { base, acked, head })
    id += bodies.length
    const range = { epoch, base, acked, last: acked + bodies.length }
    ranges.push(range)
    insertRange.run({ ...range, head, lastHead, whole: isWhole ? 1 : 0 })
  }
  database.prepare('UPDATE state SET entry_base = ?').run(id)
  return ({ epoch, n }) => {
    const range = ranges.find((each) => each.epoch === epoch && n > each.acked && n <= each.last)
    return range === undefined ? 0 : range.base + n
  }
}

/** In pieces, because memory may not suffice for all of them. Returns the head after them. */
function insertBodies(
  database: Database.Database,
  bodies: Undelivered['bodies'],
  { base, acked, head }: { readonly base: number; readonly acked: number; readonly head: string },
): string {
  let [n, lastHead] = [acked, head]
  let piece: { readonly body: string }[] = []
  const insert = (): void => {
    insertEntries(database, { id: BigInt(base + n + 1), n: BigInt(n + 1) }, piece)
    n += piece.length
    piece = []
  }
  for (const body of bodies) {
    lastHead = entryHash(lastHead, body)
    piece.push({ body })
    if (piece.length === BLOCK_ENTRIES) insert()
  }
  insert()
  if (n !== acked + bodies.length) throw new Error('invariant: proven entries can be read again')
  return lastHead
}
