/** Reads the proven data of a damaged journal without changing it. */
import { constants, copyFileSync, rmSync, statSync } from 'node:fs'
import Database from 'better-sqlite3'
import { NoSpace, hasSpace } from '../../../platform/disk-space.ts'
import { holdsFrames, sizeOf } from '../../../platform/database-files.ts'
import { orNull } from '../../../platform/or-null.ts'
import { sessionSnapshot } from '../../../protocol/edge/sessions.ts'
import { CodedError } from '../../../protocol/errors.ts'
import { entryHash } from '../../../protocol/signing.ts'
import type { Identity, IdempotencyRecord, StoredSession } from '../../ledger/journal.ts'
import { isKeyText } from '../../keys/trust.ts'
import { keptSession } from '../../sessions/kept-session.ts'
import type { Anchor, BootLog } from '../../ledger/volatile-log.ts'
import { type LoggedChain, loggedChain, mayBeOf } from './logged-chain.ts'
import { ENTRY_ID_MAX, entriesBetween } from './entry-blocks.ts'
import { type AnswerRow, type PolicyRow, type SessionRow, type StateRow, answerOf } from './journal-statements.ts'
import { openDatabase, refusalOf, requireKnownSchema } from './open-database.ts'
import { foldDamaged } from './pending-batches.ts'
import { restoreHeader } from './restore-header.ts'
import { isPassing, unlessDamaged } from './unless-damaged.ts'

export const SUFFIXES = ['', '-wal', '-shm', '-journal']

/** Of entries, in order. Those of a database are read again each time, because memory may not suffice for all of them. */
export type Bodies = Iterable<string> & { readonly length: number }

export interface Undelivered {
  readonly epoch: number
  readonly ackedEntry: number
  readonly ackedHead: string
  /** Readable bodies; fewer than up to `lastEntry` if some are unreadable. */
  readonly bodies: Bodies
  readonly lastEntry: number
  /** Every entry recorded in that epoch is in `bodies` or acknowledged. */
  readonly isWhole: boolean
}

export interface Salvage {
  readonly identity: Identity | null
  readonly policies: readonly PolicyRow[]
  readonly sessions: readonly SessionRow[]
  /** Several lists of an epoch have gaps between them, or are of different chains. */
  readonly undelivered: readonly Undelivered[]
  /** Number of undelivered, unreadable entries; null if unknown. */
  readonly lost: number | null
  readonly hasOpenReservations: boolean
  /** Last responses whose entries are proven or delivered, least recent first. */
  readonly answers: readonly SalvagedAnswer[]
}

interface SalvagedAnswer extends IdempotencyRecord {
  /** The undelivered entry that the response belongs to; null: a delivered one. */
  readonly entry: { readonly epoch: number; readonly n: number } | null
}

const NOTHING: Salvage = {
  identity: null,
  policies: [],
  sessions: [],
  undelivered: [],
  lost: null,
  hasOpenReservations: false,
  answers: [],
}

/**
 * Works on a copy, because SQLite writes during recovery. The copy exists until `use` returns.
 *
 * @throws NoSpace before the first write; CodedError DATABASE_NEWER; errors of `use`; errors of the system, because data
 *   that cannot be read now must not count as lost
 */
export function salvaged<T>(path: string, left: BootLog | null, use: (salvage: Salvage) => T): T {
  const copy = `${path}.copy`
  const logged = loggedChain(left)
  let database: Database.Database | null = null
  try {
    database = openCopy(path, copy)
    if (database !== null) refuseNewer(database, path)
    return use(salvageOfCopy(database, logged))
  } catch (error) {
    // Before the copy is removed, which gives back space.
    throw refusalOf(error, copy)
  } finally {
    try {
      database?.close()
    } catch {
      // Ignored: it is a copy.
    }
    remove(copy)
  }
}

/** Null: the journal is no file, or cannot be opened. */
function openCopy(path: string, copy: string): Database.Database | null {
  remove(copy)
  // A log without its database is read over an empty one; its pages fill it.
  const isLogOnly = sizeOf(path) === 0 && holdsFrames(path)
  const copied = (isLogOnly ? ['-wal'] : ['', '-wal']).filter((suffix) => isFile(`${path}${suffix}`))
  const copyAll = (mode: number): void =>
    copied.forEach((suffix) => copyFileSync(`${path}${suffix}`, `${copy}${suffix}`, mode))
  // Takes no space, but few file systems can do it.
  const isCloned = !isLogOnly && orNull(() => copyAll(constants.COPYFILE_FICLONE_FORCE)) !== null
  requireSpace(path, isCloned)
  if (isLogOnly) openDatabase(copy).close()
  if (!isCloned) copyAll(0)
  if (copied.includes('')) restoreHeader(copy)
  return unlessDamaged(null, () => {
    const database = new Database(copy)
    database.defaultSafeIntegers(true)
    database.pragma('locking_mode = EXCLUSIVE')
    return database
  })
}

/** This version would not find all that a newer one recorded. @throws CodedError DATABASE_NEWER */
function refuseNewer(copy: Database.Database, path: string): void {
  const newer = unlessDamaged(null, () => {
    try {
      requireKnownSchema(copy, path)
      return null
    } catch (error) {
      if (error instanceof CodedError && error.code === 'DATABASE_NEWER') return error
      throw error
    }
  })
  if (newer !== null) throw newer
}

/** Of an empty ledger and its log, and of what the copy grows by. */
const SALVAGE_BYTES_MIN = 512 * 1024

/**
 * For the copy and the new ledger, which is no larger. A service manager starts the agent again every second: without space
 * for all of it, each start would write a part.
 */
function requireSpace(path: string, isCopied: boolean): void {
  const bytes = (sizeOf(path) ?? 0) + (sizeOf(`${path}-wal`) ?? 0)
  const needed = (isCopied ? bytes : 2 * bytes) + SALVAGE_BYTES_MIN
  if (hasSpace(path, needed)) return
  throw new NoSpace(path, `the ledger is damaged, and the salvage needs ${needed} bytes of free space`)
}

function salvageOfCopy(database: Database.Database | null, logged: LoggedChain | null): Salvage {
  const nothing = logged === null ? NOTHING : fromLog(NOTHING, logged, [])
  if (database === null) return nothing
  return unlessDamaged(nothing, () => {
    // How many pending entries cannot be read is unknown.
    const isWhole = foldDamaged(database)
    const found = salvageOf(database, logged)
    const salvage = isWhole ? found : { ...found, lost: null }
    return salvage.hasOpenReservations ? { ...salvage, lost: null } : salvage
  })
}

/** @param left entries that an earlier process of this boot answered beyond the ledger */
export function salvageOf(database: Database.Database, left: LoggedChain | null = null): Salvage {
  const identity = unlessDamaged(null, () => {
    const text = database.prepare('SELECT document FROM identity').pluck().get() as string
    const found = JSON.parse(text) as Identity
    const { deviceId, trustedKeys, formerKeys } = found
    if (typeof deviceId !== 'string') return null
    const readable = trustedKeys.filter(isKeyText)
    // Without a key it can verify nothing, and must enroll again.
    if (readable.length === 0 && trustedKeys.length > 0) return null
    return { ...found, trustedKeys: readable, ...(formerKeys && { formerKeys: formerKeys.filter(isKeyText) }) }
  })
  const logged = left !== null && mayBeOf(left, identity) ? left : null
  const policies = rowsOf(database, 'SELECT instance_id, revision, document, confirmed_at FROM policy')
  const sessions = rowsOf(database, 'SELECT id, ended, since, document, snapshot FROM session')
  const ranges = rowsOf(database, 'SELECT * FROM undelivered_ranges')
  const readableRanges = (ranges.rows as readonly UndeliveredRangeRow[]).filter((row) => isChainRow(row, row.last_head))
  const chainOf = (row: ChainRow, lastHead: string, wasWhole: boolean): Chain => {
    const end = { n: Number(row.last_entry), head: lastHead }
    const bodies = chained(database, row, [end, { n: Number(row.sealed_entry), head: row.sealed_head }], logged)
    // The cloud could not read a segment with a damaged head.
    const isProven = bodies.length > 0 || row.acked_head === lastHead
    return { row, undelivered: undeliveredOf(row, bodies, wasWhole && isProven), end }
  }
  const chains = readableRanges.map((row) => chainOf(row, row.last_head, row.whole === 1n))
  const states = rowsOf(database, 'SELECT * FROM state').rows as readonly StateRow[]
  const state = states.find((row) => isChainRow(row, row.entry_head))
  // A damaged ledger or a backup may lack the latest entries.
  if (state !== undefined) chains.unshift(chainOf(state, state.entry_head, false))
  const openReservations = unlessDamaged(
    0,
    () => database.prepare('SELECT count(*) FROM account WHERE reserved > used').pluck().get() as number | bigint,
  )
  const undelivered = chains
    .map((chain) => chain.undelivered)
    .filter(({ ackedEntry, lastEntry, isWhole }) => lastEntry > ackedEntry || isWhole)
  const isWhole = state !== undefined && ranges.isWhole && readableRanges.length === ranges.rows.length
  const salvage = {
    identity,
    policies: policies.rows as readonly PolicyRow[],
    sessions: (sessions.rows as readonly SessionRow[]).filter(isSession),
    undelivered,
    lost: isWhole ? lostOf(undelivered) : null,
    hasOpenReservations: Number(openReservations) > 0,
    answers: storedAnswers(database, chains),
  }
  return logged === null ? salvage : fromLog(salvage, logged, chains)
}

/** Of a damaged table, those before the damage. */
function rowsOf(
  database: Database.Database,
  sql: string,
): { readonly rows: readonly unknown[]; readonly isWhole: boolean } {
  const rows: unknown[] = []
  const isWhole = unlessDamaged(false, () => {
    for (const row of database.prepare(sql).iterate()) rows.push(row)
    return true
  })
  return { rows, isWhole }
}

interface Chain {
  readonly row: ChainRow
  readonly undelivered: Undelivered
  /** As recorded, readable or not. */
  readonly end: Anchor
}

/** A log that does not join the readable entries is another list, after a gap or of another chain. */
function fromLog(salvage: Salvage, logged: LoggedChain, chains: readonly Chain[]): Salvage {
  const { epoch, entries, heads, lastEntry } = logged
  const ofEpoch = chains.filter(({ row }) => Number(row.epoch) === epoch)
  const isKnown = salvage.lost !== null
  if (ofEpoch.length === 0 && isKnown) return salvage
  // It has every answered entry after those that the ledger recorded.
  const isNext = ofEpoch.some(
    ({ undelivered, end }) =>
      heads.get(end.n) === end.head || heads.get(lastOf(undelivered)) === headAt(undelivered, lastOf(undelivered)),
  )
  const hasOpenReservations = salvage.hasOpenReservations && !isNext
  const isDelivered = isKnown && ofEpoch.every(({ undelivered }) => lastEntry <= undelivered.ackedEntry)
  const isOlder = ofEpoch.some(
    ({ undelivered }) =>
      lastEntry > undelivered.ackedEntry &&
      lastEntry < lastOf(undelivered) &&
      heads.get(lastEntry) === headAt(undelivered, lastEntry),
  )
  if (entries.size === 0 || isDelivered || isOlder) return { ...salvage, hasOpenReservations }
  const isJoined = ofEpoch.some(
    ({ undelivered }) => lastOf(undelivered) === lastEntry && headAt(undelivered, lastEntry) === heads.get(lastEntry),
  )
  const pending = [...entries.values()]
  const answers = pending.flatMap(({ n, idempotencyRecord }) =>
    idempotencyRecord === null ? [] : [{ ...idempotencyRecord, entry: { epoch, n } }],
  )
  const sessions = pending.flatMap(({ session }) => (session === undefined ? [] : [rowOfSession(session)]))
  return {
    ...(isJoined ? salvage : withList(salvage, logged, ofEpoch)),
    hasOpenReservations,
    answers: newest([...salvage.answers, ...answers], (answer) => answer.session),
    sessions: newest([...salvage.sessions, ...sessions], (session) => session.id),
  }
}

function withList(salvage: Salvage, logged: LoggedChain, ofEpoch: readonly Chain[]): Salvage {
  const { epoch, anchor, entries, lastEntry } = logged
  const before = ofEpoch
    .map(({ undelivered }) => undelivered)
    .filter((each) => lastOf(each) <= anchor.n)
    .toSorted((a, b) => lastOf(b) - lastOf(a))[0]
  const alone: Undelivered = {
    epoch,
    ackedEntry: anchor.n,
    ackedHead: anchor.head,
    bodies: [...entries.values()].map(({ body }) => body),
    lastEntry,
    isWhole: false,
  }
  const others = salvage.undelivered.filter((each) => each !== before)
  // The ledger may lack those that were recorded before the log.
  const gap = before === undefined ? [] : [{ ...before, lastEntry: Math.max(before.lastEntry, anchor.n) }]
  const undelivered = [...others, ...gap, alone]
  return { ...salvage, undelivered, lost: salvage.lost === null ? null : lostOf(undelivered) }
}

export function lastOf({ ackedEntry, bodies }: Undelivered): number {
  return ackedEntry + bodies.length
}

/** Of the chain, after that entry. */
export function headAt({ ackedEntry, ackedHead, bodies }: Undelivered, n: number): string {
  return Iterator.from(bodies)
    .take(n - ackedEntry)
    .reduce(entryHash, ackedHead)
}

function rowOfSession({ id, ended, since, document, snapshot }: StoredSession): SessionRow {
  return { id, ended: ended ? 1n : 0n, since: BigInt(Math.round(since)), document, snapshot }
}

/** The last item of each key, in order of those items. */
function newest<T>(all: readonly T[], keyOf: (each: T) => string): readonly T[] {
  const byKey = new Map<string, T>()
  for (const each of all) {
    byKey.delete(keyOf(each))
    byKey.set(keyOf(each), each)
  }
  return [...byKey.values()]
}

/** Responses to proven or delivered entries. A response to an unreadable entry would have no charge. */
function storedAnswers(database: Database.Database, chains: readonly Chain[]): readonly SalvagedAnswer[] {
  const rows = rowsOf(database, 'SELECT * FROM answer ORDER BY entry_id, slot').rows as readonly EntryAnswerRow[]
  return rows.flatMap((row): SalvagedAnswer[] => {
    if (typeof row.entry_id !== 'bigint') return []
    const chain = chains.find(
      ({ row: { entry_base: base }, undelivered: { ackedEntry, lastEntry } }) =>
        row.entry_id > base + BigInt(ackedEntry) && row.entry_id <= base + BigInt(lastEntry),
    )
    const n = chain === undefined ? 0 : Number(row.entry_id - chain.row.entry_base)
    if (chain !== undefined && n > chain.undelivered.ackedEntry + chain.undelivered.bodies.length) return []
    return [{ ...answerOf(row), entry: chain === undefined ? null : { epoch: chain.undelivered.epoch, n } }]
  })
}

interface EntryAnswerRow extends AnswerRow {
  readonly entry_id: bigint
}

/** Both texts parse and belong to the row's session. */
function isSession(row: SessionRow): boolean {
  return (
    unlessDamaged(null, () => {
      const snapshot = sessionSnapshot.parse(JSON.parse(row.snapshot))
      const { session } = keptSession(row)
      return session.id === row.id && snapshot.id === row.id && typeof session.instanceId === 'string'
    }) === true
  )
}

type ChainRow = Pick<
  StateRow,
  'epoch' | 'entry_base' | 'acked_entry' | 'acked_head' | 'sealed_entry' | 'sealed_head' | 'last_entry'
>

/** Whether its values have the types of their columns: those of a damaged table can have others. */
function isChainRow(row: ChainRow, lastHead: unknown): boolean {
  const { epoch, entry_base, acked_entry, sealed_entry, last_entry, acked_head, sealed_head } = row
  const isCounted = [epoch, entry_base, acked_entry, sealed_entry, last_entry].every((n) => typeof n === 'bigint')
  return isCounted && [acked_head, sealed_head, lastHead].every((head) => typeof head === 'string')
}

interface UndeliveredRangeRow extends ChainRow {
  readonly last_head: string
  readonly whole: bigint
}

function undeliveredOf(row: ChainRow, bodies: Bodies, wasWhole: boolean): Undelivered {
  const ackedEntry = Number(row.acked_entry)
  const lastEntry = Math.max(Number(row.last_entry), ackedEntry + bodies.length)
  return {
    epoch: Number(row.epoch),
    ackedEntry,
    ackedHead: row.acked_head,
    bodies,
    lastEntry,
    isWhole: wasWhole && ackedEntry + bodies.length === lastEntry,
  }
}

/** How many of their unreadable entries are in no list. */
export function lostOf(undelivered: readonly Undelivered[], lists = undelivered): number {
  return undelivered.reduce((sum, { epoch, ackedEntry, bodies, lastEntry }) => {
    let [from, lost] = [ackedEntry + bodies.length, 0]
    const others = lists.filter((each) => each.epoch === epoch && lastOf(each) > from)
    for (const other of others.toSorted((a, b) => a.ackedEntry - b.ackedEntry)) {
      lost += Math.max(0, Math.min(other.ackedEntry, lastEntry) - from)
      from = Math.max(from, lastOf(other))
    }
    return sum + lost + Math.max(0, lastEntry - from)
  }, 0)
}

/** The volatile log continues the entries or replaces unreadable rows. @param heads the chain must reach one of them */
function chained(
  database: Database.Database,
  row: ChainRow,
  heads: readonly Anchor[],
  logged: LoggedChain | null,
): Bodies {
  const prove = (from: LoggedChain | null): Bodies => {
    let n = Number(row.acked_entry)
    let [length, head] = [0, row.acked_head]
    for (const body of readable(database, row, from, Infinity)) {
      n += 1
      head = entryHash(head, body)
      const isProven = from?.heads.get(n) === head || heads.some((known) => known.n === n && known.head === head)
      if (isProven) length = n - Number(row.acked_entry)
    }
    return { length, [Symbol.iterator]: () => readable(database, row, from, length) }
  }
  const alone = prove(null)
  const joined = logged?.epoch === Number(row.epoch) ? prove(logged) : alone
  return joined.length > alone.length ? joined : alone
}

function* readable(
  database: Database.Database,
  row: ChainRow,
  from: LoggedChain | null,
  max: number,
): Generator<string, undefined> {
  const stored = stillStored(database, row)
  const acked = Number(row.acked_entry)
  for (let n = acked + 1; n <= acked + max; n += 1) {
    const { value } = stored.next()
    const body = from?.entries.get(n)?.body ?? value
    if (body === undefined) return
    yield body
  }
}

/** Up to the first that is missing or damaged. */
function* stillStored(
  database: Database.Database,
  { entry_base, acked_entry }: ChainRow,
): Generator<string, undefined> {
  let n = acked_entry
  try {
    for (const entry of entriesBetween(database, entry_base + acked_entry, ENTRY_ID_MAX)) {
      n += 1n
      if (entry.n !== n) return
      yield entry.body
    }
  } catch (error) {
    // The following entries cannot be proven without this one.
    if (isPassing(error)) throw error
  }
}

export function remove(database: string): void {
  for (const suffix of SUFFIXES) rmSync(`${database}${suffix}`, { force: true })
}

function isFile(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isFile() === true
}
