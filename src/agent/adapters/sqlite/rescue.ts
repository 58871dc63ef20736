/**
 * What becomes of a journal that cannot be used: it is put aside under a name with the time, never deleted, and another one
 * takes its place with what can be read of it and proves itself: who the device is, its rules (their signatures are checked
 * again by whoever uses them), the sessions that it keeps, and the entries that the cloud does not have, as far as the hash
 * chain goes through them. It never invents rights: the device holds nothing until it has attached anew.
 */
import { constants, copyFileSync, existsSync, lstatSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs'
import Database from 'better-sqlite3'
import { CodedError } from '../../../protocol/errors.ts'
import { sessionSnapshot } from '../../../protocol/edge/sessions.ts'
import { entryHash } from '../../../protocol/signing.ts'
import type { Identity } from '../../app/journal.ts'
import { keptSession } from '../../app/sessions/kept-session.ts'
import { JournalStore } from './journal-store.ts'
import type { JournalLimits } from './journal-calls.ts'
import { BUSY_MS, flushDirectoryOf, openDatabase } from './open-database.ts'

const SUFFIXES = ['', '-wal', '-shm', '-journal']

/** A write-ahead log that is no longer than this holds nothing. */
const LOG_HEADER_BYTES = 32

/** The entries of one incarnation that the cloud does not have, with the chain before the first of them. */
interface Undelivered {
  readonly incarnation: number
  readonly ackedEntry: number
  readonly ackedHead: string
  /** Those that can be read; fewer than there were up to `lastEntry` where some cannot. */
  readonly bodies: readonly string[]
  readonly lastEntry: number
  /** Everything that was recorded in that incarnation is in `bodies` or acknowledged. */
  readonly isWhole: boolean
}

export interface Salvage {
  readonly identity: Identity | null
  readonly policies: readonly PolicyRow[]
  readonly sessions: readonly SessionRow[]
  readonly undelivered: readonly Undelivered[]
  /** Entries that were not delivered and cannot be read; null where nobody can say. */
  readonly lost: number | null
  /** Rights are reserved of which use may be recorded nowhere. */
  readonly hasOpenBlocks: boolean
}

interface PolicyRow {
  readonly instance_id: string
  readonly revision: bigint
  readonly document: string
  readonly confirmed_at: bigint
}

interface SessionRow {
  readonly id: string
  readonly ended: bigint
  readonly since: bigint
  readonly document: string
  readonly snapshot: string
}

const NOTHING: Salvage = {
  identity: null,
  policies: [],
  sessions: [],
  undelivered: [],
  lost: null,
  hasOpenBlocks: false,
}

/**
 * Opens the journal, or puts it aside and opens another one in its place.
 *
 * @param later files that are made only after the journal holds something
 * @param wall POSIX ms: it names the file, and decides nothing
 * @throws CodedError for what is no damage: another process holds it, a newer version wrote it, the disk does not take it
 */
export function openOrRescue(
  path: string,
  limits: JournalLimits,
  later: readonly string[],
  wall: () => number,
): JournalStore {
  finishRescue(path)
  try {
    refuseEmptied(path, later)
    return probed(path, limits)
  } catch (error) {
    if (!isDamage(error, path)) throw error
    prepareRescue(path, wall(), error instanceof Error ? error.message : String(error))
    finishRescue(path)
    return probed(path, limits)
  }
}

/**
 * Makes the journal that is to take the place of the damaged one, beside it and under a name that it gets only when it is
 * complete: a process that ends here begins again, one that ends later goes on with {@link finishRescue}.
 */
function prepareRescue(path: string, at: number, why: string): void {
  const salvage = salvaged(path)
  const draft = `${path}.draft`
  remove(draft)
  const database = openDatabase(draft)
  try {
    fill(database, salvage, { at, aside: asideOf(path, at), why })
  } finally {
    database.close()
  }
  renameSync(draft, `${path}.rescued`)
  flushDirectoryOf(path)
}

/** Puts the damaged journal aside, as far as it still stands there, and the one that was prepared in its place. */
export function finishRescue(path: string): void {
  const rescued = `${path}.rescued`
  if (!existsSync(rescued)) return
  const database = new Database(rescued)
  const { at, file } = database.prepare('SELECT at, file FROM rescue').get() as { at: number; file: string }
  // One of that name is another journal when the damaged one still stands in its place: what stands there goes last.
  const aside = existsSync(file) && existsSync(path) ? asideOf(path, at) : file
  database.prepare('UPDATE rescue SET file = ?').run(aside)
  database.close()
  // The log first: a database that is opened without it, half way through, is only older.
  for (const suffix of SUFFIXES.toReversed()) {
    if (existsSync(`${path}${suffix}`)) renameSync(`${path}${suffix}`, `${aside}${suffix}`)
  }
  flushDirectoryOf(path)
  renameSync(rescued, path)
  flushDirectoryOf(path)
}

function remove(database: string): void {
  for (const suffix of SUFFIXES) rmSync(`${database}${suffix}`, { force: true })
}

/** A journal that opens and cannot be read would end the process at each start. */
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

/**
 * SQLite takes an empty file for a database that is still to be made, and deletes the log beside it. It is one that has lost
 * what it held when something beside it is younger than its making.
 */
function refuseEmptied(path: string, later: readonly string[]): void {
  if (!isEmpty(path)) return
  // Another process may be about to make it.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, BUSY_MS)
  if (!isEmpty(path)) return
  const size = sizeOf(path)
  const hasLog = holdsFrames(path)
  if (!hasLog && (size === undefined || !later.some((file) => existsSync(file)))) return
  // So that there is something to put aside.
  if (size === undefined) writeFileSync(path, '', { mode: 0o600, flag: 'a' })
  throw new CodedError('DATABASE_CORRUPT', `${path}: it is empty, and was not`, { facts: { path } })
}

function isEmpty(path: string): boolean {
  return (sizeOf(path) ?? 0) === 0 && (sizeOf(path) !== undefined || holdsFrames(path))
}

function holdsFrames(path: string): boolean {
  return (sizeOf(`${path}-wal`) ?? 0) > LOG_HEADER_BYTES
}

function sizeOf(path: string): number | undefined {
  return statSync(path, { throwIfNoEntry: false })?.size
}

function isDamage(error: unknown, path: string): boolean {
  if (error instanceof CodedError) {
    if (error.code === 'DATABASE_CORRUPT') return true
    return error.code === 'STATE_UNWRITABLE' && attempt(() => lstatSync(path).isDirectory()) === true
  }
  if (!(error instanceof Database.SqliteError)) return true
  return /^SQLITE_(CORRUPT|NOTADB|ERROR|CONSTRAINT|MISMATCH|SCHEMA)/.test(error.code)
}

/** A name that nothing has. */
function asideOf(path: string, at: number): string {
  const stamp = new Date(at).toISOString().replaceAll(/[:.]/g, '-')
  let aside = `${path}.damaged-${stamp}`
  for (let n = 2; existsSync(aside); n += 1) aside = `${path}.damaged-${stamp}-${n}`
  return aside
}

/** Reads a copy, because SQLite writes into what it recovers. Never throws. */
export function salvaged(path: string): Salvage {
  const copy = `${path}.copy`
  let database: Database.Database | undefined
  try {
    remove(copy)
    // Without its database, a log is read upon one that holds nothing: the pages that it has take their places in it.
    const isLogOnly = sizeOf(path) === 0 && holdsFrames(path)
    if (isLogOnly) openDatabase(copy).close()
    for (const suffix of isLogOnly ? ['-wal'] : ['', '-wal']) {
      if (!existsSync(`${path}${suffix}`)) continue
      copyFileSync(`${path}${suffix}`, `${copy}${suffix}`, constants.COPYFILE_FICLONE)
    }
    database = new Database(copy)
    database.defaultSafeIntegers(true)
    database.pragma('locking_mode = EXCLUSIVE')
    const salvage = salvageOf(database)
    return salvage.hasOpenBlocks ? { ...salvage, lost: null } : salvage
  } catch {
    return NOTHING
  } finally {
    try {
      database?.close()
    } catch {
      // It is a copy.
    }
    remove(copy)
  }
}

/** What of a ledger proves itself; reading it changes nothing. */
export function salvageOf(database: Database.Database): Salvage {
  const identity = attempt(() => {
    const text = database.prepare('SELECT document FROM identity').pluck().get() as string
    const found = JSON.parse(text) as Identity
    return typeof found.deviceId === 'string' && Array.isArray(found.trustedKeys) ? found : null
  })
  const policies = attempt(
    () => database.prepare('SELECT instance_id, revision, document, confirmed_at FROM policy').all() as PolicyRow[],
  )
  const sessions = attempt(
    () => database.prepare('SELECT id, ended, since, document, snapshot FROM session').all() as SessionRow[],
  )
  const undelivered: Undelivered[] = []
  const known = attempt(() => database.prepare('SELECT * FROM state').get() as StateRow)
  if (known !== null) {
    const [last, acked] = [Number(known.last_entry), Number(known.acked_entry)]
    const bodies = chained(database, known, [
      [last, known.entry_head],
      [Number(known.sealed_entry), known.sealed_head],
    ])
    // A ledger that is damaged, or a backup, need not hold what was recorded last.
    if (last > acked) undelivered.push(undeliveredOf(known, bodies, false))
  }
  for (const row of attempt(() => database.prepare('SELECT * FROM remnants').all() as RemnantRow[]) ?? []) {
    const bodies = chained(database, row, [
      [Number(row.last_entry), row.last_head],
      [Number(row.sealed_entry), row.sealed_head],
    ])
    undelivered.push(undeliveredOf(row, bodies, row.whole === 1n))
  }
  const lost = known === null ? null : lostOf(undelivered)
  const openBlocks = attempt(
    () => database.prepare('SELECT count(*) FROM account WHERE reserved > used').pluck().get() as number | bigint,
  )
  return {
    identity,
    policies: policies ?? [],
    sessions: (sessions ?? []).filter(isSession),
    undelivered,
    lost,
    hasOpenBlocks: Number(openBlocks ?? 0) > 0,
  }
}

/** Both of its texts can be read, and are of the session that the row names. */
function isSession(row: SessionRow): boolean {
  return (
    attempt(() => {
      const told = sessionSnapshot.parse(JSON.parse(row.snapshot))
      const { session } = keptSession(row)
      return session.id === row.id && told.id === row.id && typeof session.instanceId === 'string'
    }) === true
  )
}

interface ChainRow {
  readonly incarnation: bigint
  readonly entry_base: bigint
  readonly acked_entry: bigint
  readonly acked_head: string
  readonly sealed_entry: bigint
  readonly sealed_head: string
  readonly last_entry: bigint
}

interface RemnantRow extends ChainRow {
  readonly last_head: string
  readonly whole: bigint
}

interface StateRow extends ChainRow {
  readonly entry_head: string
}

function undeliveredOf(row: ChainRow, bodies: readonly string[], wasWhole: boolean): Undelivered {
  const [ackedEntry, lastEntry] = [Number(row.acked_entry), Number(row.last_entry)]
  return {
    incarnation: Number(row.incarnation),
    ackedEntry,
    ackedHead: row.acked_head,
    bodies,
    lastEntry,
    isWhole: wasWhole && ackedEntry + bodies.length === lastEntry,
  }
}

/** Entries that were there and cannot be read. */
export function lostOf(undelivered: readonly Undelivered[]): number {
  return undelivered.reduce((sum, { ackedEntry, bodies, lastEntry }) => sum + lastEntry - ackedEntry - bodies.length, 0)
}

/** The entries behind the last acknowledged one, up to the last of the `heads` that the chain over them really has. */
function chained(
  database: Database.Database,
  { entry_base, acked_entry, acked_head }: ChainRow,
  heads: readonly (readonly [n: number, head: string])[],
): readonly string[] {
  const bodies: string[] = []
  let proven = 0
  let n = Number(acked_entry)
  let head = acked_head
  attempt(() => {
    const rows = database
      .prepare('SELECT n, body FROM entry WHERE id > ? ORDER BY id')
      .iterate(entry_base + acked_entry)
    for (const row of rows as Iterable<{ n: bigint; body: string }>) {
      if (Number(row.n) !== n + 1) break
      n += 1
      head = entryHash(head, row.body)
      bodies.push(row.body)
      if (heads.some(([at, is]) => at === n && is === head)) proven = bodies.length
    }
    return null
  })
  return bodies.slice(0, proven)
}

/**
 * What is undelivered goes up as remnants, with the incarnation that comes next.
 *
 * @param damage what the technician shall look at; null: nothing was wrong
 */
export function fill(
  database: Database.Database,
  { identity, policies, sessions, undelivered, lost }: Salvage,
  damage: { readonly at: number; readonly aside: string; readonly why: string } | null,
): void {
  database
    .transaction(() => {
      if (identity !== null) {
        database.prepare('INSERT INTO identity (only, document) VALUES (1, ?)').run(JSON.stringify(identity))
      }
      const policy = database.prepare(
        'INSERT OR IGNORE INTO policy (instance_id, revision, document, confirmed_at) VALUES (?, ?, ?, ?)',
      )
      for (const row of policies) policy.run(row.instance_id, row.revision, row.document, row.confirmed_at)
      const session = database.prepare(
        'INSERT OR IGNORE INTO session (id, ended, since, document, snapshot, unsealed) VALUES (?, ?, ?, ?, ?, 1)',
      )
      for (const row of sessions) session.run(row.id, row.ended, row.since, row.document, row.snapshot)
      const entry = database.prepare('INSERT INTO entry (id, n, body) VALUES (?, ?, ?)')
      const remnant = database.prepare(
        `INSERT INTO remnants (incarnation, entry_base, acked_entry, acked_head, sealed_entry, sealed_head, last_entry, last_head,
             whole, end_sealed)
           VALUES (:incarnation, :base, :acked, :head, :acked, :head, :last, :lastHead, :whole, 0)`,
      )
      let id = 0
      for (const { incarnation, ackedEntry, ackedHead, bodies, isWhole } of undelivered) {
        if (bodies.length === 0 && !isWhole) continue
        const base = id - ackedEntry
        let n = ackedEntry
        let lastHead = ackedHead
        for (const body of bodies) {
          entry.run((id += 1), (n += 1), body)
          lastHead = entryHash(lastHead, body)
        }
        remnant.run({
          incarnation,
          base,
          acked: ackedEntry,
          head: ackedHead,
          last: n,
          lastHead,
          whole: isWhole ? 1 : 0,
        })
      }
      database.prepare('UPDATE state SET entry_base = ?').run(id)
      if (damage === null) return
      const { at, aside, why } = damage
      const salvagedEntries = undelivered.reduce((sum, { bodies }) => sum + bodies.length, 0)
      database
        .prepare('INSERT INTO rescue (at, file, why, salvaged_entries, lost_entries) VALUES (?, ?, ?, ?, ?)')
        .run(at, aside, why.slice(0, 1_000), salvagedEntries, lost)
    })
    .exclusive()
}

/** Null where the file does not give it. */
function attempt<T>(look: () => T): T | null {
  try {
    return look()
  } catch {
    return null
  }
}
