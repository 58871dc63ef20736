/**
 * Commits that are only in slots, and how they are written to the tables: entries into blocks, the rest into the rows of
 * accounts, answers, sessions and state.
 */
import type Database from 'better-sqlite3'
import type { AccountId } from '../../../core/accounts/account.ts'
import { entryHash } from '../../../protocol/signing.ts'
import { RecentOfEach } from '../../access/idempotency-cache.ts'
import type { IdempotencyRecord, Reservation, StoredSession } from '../../ledger/journal.ts'
import { UnstoredEntries } from './entry-blocks.ts'
import { decodeTexts, encodeTexts, type EntryTexts } from './entry-texts.ts'
import { type Batch, type Sum, movesOf, sumIn } from './batch.ts'
import { stampValues, type StampValues } from './journal-statements.ts'
import { prepared } from './prepared.ts'
import { reusedMemory } from './reused-memory.ts'
import { readSlots } from './slots.ts'
import { unlessDamaged } from './unless-damaged.ts'

/** A commit without the texts of its entries, and with the chain head after its last entry. */
export interface PendingBatch extends Omit<Batch, 'answered' | 'entries'> {
  readonly count: number
  readonly head: string
}

/** What commits that are only in slots change together, apart from their entries: as much for many commits as for a few. */
export class PendingChanges {
  readonly moves = new Map<AccountId, Sum>()
  readonly reserved = new Map<AccountId, bigint>()
  /** The newest of each application session, with the last entry of its commit, in the sequence of these entries. */
  readonly answers = new Map<string, { readonly answer: IdempotencyRecord; readonly n: number }>()
  /** The newest of each session. */
  readonly sessions = new Map<string, StoredSession>()
  /** Of the last commit. Null: there are no commits. */
  end: Pick<PendingBatch, 'head' | 'stamp'> | null = null

  add({ firstN, count, moves, reservations, answers, sessions, head, stamp }: PendingBatch): this {
    for (const { account, used, refunded, burned, allowance } of moves) {
      const sum = sumIn(this.moves, account)
      sum.used += used
      sum.refunded += refunded
      sum.burned += burned
      if (allowance > sum.allowance) sum.allowance = allowance
    }
    for (const { account, usedUpTo } of reservations) {
      sumIn(this.moves, account)
      this.reserved.set(account, usedUpTo)
    }
    for (const answer of answers) {
      this.answers.delete(answer.session)
      this.answers.set(answer.session, { answer, n: firstN + count - 1 })
    }
    for (const session of sessions) this.sessions.set(session.id, session)
    this.end = { head, stamp }
    return this
  }
}

/**
 * First line of a record, short so that a commit of one entry fits one slot; the entries follow. Their moves are those of their
 * postings. The head is base64url, the stamp as in the table of the state.
 */
type RecordHeader = readonly [n: number, count: number, head: string, stamp: StampValues, more: MoreOfRecord]

interface MoreOfRecord {
  readonly allowances?: readonly (readonly [AccountId, string])[]
  readonly reservations?: readonly (readonly [AccountId, string])[]
  readonly answers?: readonly IdempotencyRecord[]
  readonly sessions?: readonly StoredSession[]
}

const recordMemory = reusedMemory()

/** Valid until the next call. */
export function recordOf(batch: PendingBatch, { bytes }: EntryTexts): Buffer {
  const { firstN, count, head, stamp, moves, reservations, answers, sessions } = batch
  const allowed = moves.filter(({ allowance }) => allowance > 0n)
  const more: MoreOfRecord = {
    ...(allowed.length > 0 && { allowances: allowed.map(({ account, allowance }) => [account, String(allowance)]) }),
    ...(reservations.length > 0 && {
      reservations: reservations.map(({ account, usedUpTo }) => [account, String(usedUpTo)]),
    }),
    ...(answers.length > 0 && { answers }),
    ...(sessions.length > 0 && { sessions }),
  }
  const shortHead = Buffer.from(head, 'hex').toString('base64url')
  const header: RecordHeader = [firstN, count, shortHead, stampValues(stamp), more]
  const text = `${JSON.stringify(header)}\n`
  const textBytes = Buffer.byteLength(text)
  const record = recordMemory(textBytes + bytes.length)
  record.write(text)
  record.set(bytes, textBytes)
  return record
}

interface ReadBatch extends PendingBatch {
  readonly bodies: readonly string[]
  readonly texts: EntryTexts
}

function batchIn(record: Buffer): ReadBatch {
  const end = record.indexOf('\n')
  const [n, count, shortHead, stamp, more] = JSON.parse(record.toString('utf8', 0, end)) as RecordHeader
  const { allowances = [], reservations = [], answers = [], sessions = [] } = more
  const { bodies, inputs } = decodeTexts(record.subarray(end + 1), count)
  const moves = movesOf(bodies)
  for (const [account, allowance] of allowances) sumIn(moves, account).allowance = BigInt(allowance)
  const [bootId, sinceBoot, earliest, latest, grantAgedMs] = stamp
  return {
    firstN: n,
    count,
    bodies,
    answers,
    sessions,
    head: Buffer.from(shortHead, 'base64url').toString('hex'),
    texts: encodeTexts(bodies.map((body, index) => ({ body, inputs: inputs[index] ?? null }))),
    stamp: { clock: { bootId, sinceBoot, earliest, latest }, grantAgedMs },
    moves: [...moves.values()],
    reservations: reservations.map(([account, usedUpTo]): Reservation => ({ account, usedUpTo: BigInt(usedUpTo) })),
  }
}

export interface Pending {
  readonly changes: PendingChanges
  readonly entries: UnstoredEntries
  /** Why later batches could not be read; null: all were read. */
  readonly damage: string | null
}

interface FoldedState {
  readonly entry_base: bigint
  readonly last_entry: bigint
  readonly entry_head: string
  readonly slot_generation: bigint
}

/** The batches in slots, as far as the hash chain proves them. */
export function readPending(database: Database.Database): Pending {
  const { last_entry, entry_head, slot_generation } = stateOf(database)
  const { records, damage } = readSlots(database, Number(slot_generation))
  const changes = new PendingChanges()
  const entries = new UnstoredEntries()
  let n = Number(last_entry)
  let head = entry_head
  for (const record of records) {
    try {
      const { bodies, texts, ...batch } = batchIn(record)
      head = bodies.reduce(entryHash, head)
      if (batch.firstN !== n + 1 || batch.head !== head)
        return { changes, entries, damage: `entry ${n + 1} does not fit` }
      n += batch.count
      changes.add(batch)
      entries.add(texts)
    } catch {
      return { changes, entries, damage: `the record of entry ${n + 1} is damaged` }
    }
  }
  return { changes, entries, damage }
}

function stateOf(database: Database.Database): FoldedState {
  const sql = 'SELECT entry_base, last_entry, entry_head, slot_generation FROM state'
  return prepared(database, sql).get() as FoldedState
}

export interface PendingToFold extends Omit<Pending, 'damage'> {
  /** A commit that is not in slots, and its entries. */
  readonly more?: { readonly batch: PendingBatch; readonly texts: EntryTexts } | undefined
}

/** Folds in the caller's transaction. @param answerSlots of each application session */
export function fold(database: Database.Database, pending: PendingToFold, answerSlots: RecentOfEach<number>): void {
  const { changes, more } = pending
  for (const each of more === undefined ? [changes] : [changes, new PendingChanges().add(more.batch)]) {
    foldAccounts(database, each)
    foldAnswers(database, each, answerSlots)
    foldSessions(database, each)
  }
  foldEntries(database, pending)
}

/** Frees the slots. */
function foldEntries(database: Database.Database, { changes, entries, more }: PendingToFold): void {
  const end = more?.batch ?? changes.end
  if (end === null) return
  const { entry_base, last_entry } = stateOf(database)
  entries.storeIn(database, { id: entry_base + last_entry + 1n, n: last_entry + 1n }, more?.texts ?? null)
  const advance = prepared(
    database,
    `UPDATE state SET last_entry = last_entry + ?, entry_head = ?, slot_generation = slot_generation + 1,
       clock_boot_id = ?, clock_since_boot = ?, clock_earliest = ?, clock_latest = ?,
       grant_aged_ms = CASE WHEN grant_term IS NULL THEN NULL ELSE ? END`,
  )
  advance.run(entries.count + (more?.batch.count ?? 0), end.head, ...stampValues(end.stamp))
}

const RAISE_ALLOWANCE = `INSERT INTO account (id, allowance) VALUES (?, ?)
  ON CONFLICT (id) DO UPDATE SET allowance = max(allowance, excluded.allowance)`

const MOVE = `UPDATE account SET used = used + ?, refunded = refunded + ?, burned = burned + ?,
    reserved = coalesce(?, reserved) WHERE id = ?`

/** The constraints of the table check every account again. */
export function foldAccounts(database: Database.Database, { moves, reserved }: PendingChanges): void {
  for (const { account, used, refunded, burned, allowance } of moves.values()) {
    if (allowance > 0n) prepared(database, RAISE_ALLOWANCE).run(account, allowance)
    const { changes } = prepared(database, MOVE).run(used, refunded, burned, reserved.get(account) ?? null, account)
    if (changes !== 1) throw new Error(`invariant: ${account} is known`)
  }
}

function foldAnswers(database: Database.Database, { answers }: PendingChanges, slots: RecentOfEach<number>): void {
  if (answers.size === 0) return
  const { entry_base } = stateOf(database)
  const store = prepared(
    database,
    `INSERT OR REPLACE INTO answer (slot, session, n, request_hash, body, status, policy_revision, entry_id)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
  )
  for (const [session, { answer, n }] of answers) {
    const slot = slots.get(session) ?? slots.freeSpace(session) ?? slots.size
    slots.set(session, slot)
    const { requestHash, answer: body, status = 200, policyRevision } = answer
    store.run(slot, session, answer.n, requestHash, body, status, policyRevision, entry_base + BigInt(n))
  }
}

function foldSessions(database: Database.Database, { sessions }: PendingChanges): void {
  if (sessions.size === 0) return
  const store = prepared(
    database,
    'INSERT OR REPLACE INTO session (id, ended, since, document, snapshot, unsealed) VALUES (?, ?, ?, ?, ?, 1)',
  )
  for (const { id, ended, since, document, snapshot } of sessions.values()) {
    store.run(id, ended ? 1 : 0, since, document, snapshot)
  }
}

/** @param perCallerMax stored responses of each caller */
export function readAnswerSlots(database: Database.Database, perCallerMax: number): RecentOfEach<number> {
  const slots = new RecentOfEach<number>(perCallerMax)
  const rows = database.prepare('SELECT session, slot FROM answer ORDER BY entry_id, slot').all()
  for (const { session, slot } of rows as { session: string; slot: bigint | number }[]) slots.set(session, Number(slot))
  return slots
}

/**
 * Folds what is pending in a database that no agent has open, such as a copy.
 *
 * @throws Error if it is damaged
 */
export function foldDatabase(database: Database.Database): void {
  const { damage, ...pending } = readPending(database)
  if (damage !== null) throw new Error(`damaged: ${damage}`)
  database.transaction(() => fold(database, pending, readAnswerSlots(database, Infinity)))()
}

/** Folds as much as can be read of a damaged database. True if that is everything. @throws as {@link unlessDamaged} */
export function foldDamaged(database: Database.Database): boolean {
  return unlessDamaged(false, () => {
    const { changes, entries, damage } = readPending(database)
    if (changes.end === null) return damage === null
    const isFolded = (part: () => void): boolean =>
      unlessDamaged(false, () => {
        database.transaction(part)()
        return true
      })
    isFolded(() => foldAccounts(database, changes))
    isFolded(() => foldSessions(database, changes))
    const isWhole = isFolded(() => foldEntries(database, { changes, entries }))
    // A response to a lost entry would have no charge.
    if (isWhole) isFolded(() => foldAnswers(database, changes, readAnswerSlots(database, Infinity)))
    return damage === null && isWhole
  })
}
