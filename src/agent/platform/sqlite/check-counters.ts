/** The counters of accounts are stored only for speed: a difference means that the file was edited or damaged. */
import type Database from 'better-sqlite3'
import type { AccountId } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import type { SegmentWire } from '../../../protocol/edge/sync.ts'
import { CHAIN_START, sha256, unverifiedText } from '../../../protocol/signing.ts'
import { movesOf } from './batch.ts'
import { entriesBetween } from './entry-blocks.ts'
import {
  type AccountRow,
  type JournalStatements,
  type SegmentRow,
  type StateRow,
  statementsOf,
} from './journal-statements.ts'

/** Newest segments of the epoch that are read, in bytes of their documents: bounds the time of a start. */
const READ_BYTES_MAX = 16 * 1024 * 1024

/** From this many counters on, returns may have to wait for the next segment. */
const COUNTERS_MANY = 1_000

type Read = Pick<SegmentWire, 'seq' | 'entries' | 'counters' | 'backlog'>

type Sealed = SegmentWire['counters'][number] & { readonly isOlder: boolean }

/** @throws Error if a counter differs */
export function checkCounters(database: Database.Database): void {
  const statements = statementsOf(database)
  const state = statements.state.get() as StateRow
  const sealed = new Map<AccountId, Sealed>()
  let last: Read | undefined
  let next = state.last_seq
  for (const segment of newestSegments(statements, state)) {
    last ??= segment
    // A later one was deleted, and may have raised the counters of any account.
    const isOlder = BigInt(segment.seq) < next
    if (!isOlder) next -= 1n
    for (const counters of segment.counters) {
      if (!sealed.has(counters.account)) sealed.set(counters.account, { ...counters, isOlder })
    }
  }
  checkEnds(statements, state, last)
  const returnsFollow = last !== undefined && (last.backlog > 0 || last.counters.length >= COUNTERS_MANY)
  const { entry_base, sealed_entry, last_entry } = state
  const unsealed = entriesBetween(database, entry_base + sealed_entry, entry_base + last_entry)
  const late = movesOf(unsealed.map(({ body }) => body))
  for (const row of statements.accounts.all() as AccountRow[]) {
    const signed = sealed.get(row.id)
    const expectSealed = signed?.isOlder === true ? expectAtLeast : expect
    expectSealed(row.id, 'sealed_used', row.sealed_used, signed?.used)
    expectSealed(row.id, 'sealed_refunded', row.sealed_refunded, signed?.refunded)
    expectSealed(row.id, 'sealed_returned', row.sealed_returned, signed?.returned)
    const since = late.get(row.id)
    expect(row.id, 'used', row.used, row.sealed_used + (since?.used ?? 0n))
    if (!returnsFollow) expect(row.id, 'returned', row.returned, row.sealed_returned)
    expect(row.id, 'refunded', row.refunded, row.sealed_refunded + (since?.refunded ?? 0n))
    late.delete(row.id)
  }
  const [unknown] = late.keys()
  if (unknown !== undefined) throw new Error(`invariant: entries charge ${unknown}, which is not counted`)
}

function expect(account: AccountId, field: string, stored: Micro, proven: Micro | string | undefined): void {
  if (proven === undefined || stored === BigInt(proven)) return
  throw new Error(`invariant: ${field} of ${account} is ${stored}, but its entries and segments say ${proven}`)
}

function expectAtLeast(account: AccountId, field: string, stored: Micro, proven: string | undefined): void {
  if (proven !== undefined && stored < BigInt(proven)) expect(account, field, stored, proven)
}

function* newestSegments(statements: JournalStatements, { epoch }: StateRow): Generator<Read> {
  let bytes = 0
  for (const row of statements.segmentsNewestFirst.iterate(epoch) as Iterable<SegmentRow>) {
    const text = unverifiedText(row.document) ?? ''
    if (sha256(text) !== row.hash) throw new Error(`invariant: segment ${row.seq} has the hash of its text`)
    const segment = JSON.parse(text) as Read
    if (BigInt(segment.seq) !== row.seq) throw new Error(`invariant: segment ${row.seq} says its own number`)
    yield segment
    bytes += row.document.length
    if (bytes > READ_BYTES_MAX) return
  }
}

/** The ends of the chain that the last segment signed; a full disk may have cost that segment. */
function checkEnds(statements: JournalStatements, state: StateRow, last: Read | undefined): void {
  if (BigInt(last?.seq ?? 0) < state.last_seq) return
  const ends =
    last === undefined ? ENDS_AT_START : endsOf(last, statements.segment.get(state.epoch, last.seq) as SegmentRow)
  const fits = ENDS.every((field) => state[field] === ends[field])
  if (!fits)
    throw new Error(`invariant: segment ${last?.seq ?? 0} is the last of the ledger, and its end that of the chain`)
}

const ENDS = ['last_seq', 'segment_head', 'sealed_entry', 'sealed_head', 'acked_entry', 'acked_head'] as const

type Ends = Pick<StateRow, (typeof ENDS)[number]>

const ENDS_AT_START: Ends = {
  last_seq: 0n,
  segment_head: CHAIN_START,
  sealed_entry: 0n,
  sealed_head: CHAIN_START,
  acked_entry: 0n,
  acked_head: CHAIN_START,
}

function endsOf({ seq, entries }: Read, { hash, state }: SegmentRow): Ends {
  const before = { entry: BigInt(entries.first - 1), head: entries.previousHash }
  const sealed = { entry: before.entry + BigInt(entries.bodies.length), head: entries.head }
  const acked = state === 'UNACKNOWLEDGED' ? before : sealed
  return {
    last_seq: BigInt(seq),
    segment_head: hash,
    sealed_entry: sealed.entry,
    sealed_head: sealed.head,
    acked_entry: acked.entry,
    acked_head: acked.head,
  }
}
