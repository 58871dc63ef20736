/** Plans the next segment: entries of earlier epochs first, then the current ones with the counters as of the last. */
import type Database from 'better-sqlite3'
import type { AccountId } from '../../../core/accounts/account.ts'
import {
  SEGMENT_ACCOUNTS_MAX,
  SEGMENT_BYTES_MAX,
  SEGMENT_COUNTERS_BYTES_MAX,
  SEGMENT_ENTRIES_BYTES_MAX,
  SEGMENT_SESSIONS_BYTES_MAX,
  SEGMENT_TEXT_MAX,
  type EntryBodyWire,
  type SegmentWire,
} from '../../../protocol/edge/sync.ts'
import { SEGMENT_SESSIONS_MAX, type SessionSnapshot } from '../../../protocol/edge/sessions.ts'
import { parseJson } from '../../../protocol/parse-json.ts'
import { entryHash, sha256 } from '../../../protocol/signing.ts'
import { counterBytesMax } from '../../ledger/balances.ts'
import type { Identity, SealRequest } from '../../ledger/journal.ts'
import { movesOf } from './batch.ts'
import { entriesBetween } from './entry-blocks.ts'
import {
  type AccountRow,
  type JournalStatements,
  type StateRow,
  statementsOf,
  type UndeliveredRangeRow,
} from './journal-statements.ts'
import { segmentTopUps } from './segment-top-ups.ts'

/** Changes to commit when the signed segment is stored. */
export interface SealPlan {
  readonly epoch: number
  readonly seq: number
  readonly hash: string
  readonly final: boolean
  readonly isMoreToFollow: boolean
  readonly lastEntry: number
  readonly head: string
  readonly counters: ReadonlyMap<AccountId, SealedCounters>
  readonly returns: SealRequest['returns']
  readonly sessionIds: readonly string[]
  readonly undeliveredRange: {
    readonly id: bigint
    readonly epoch: bigint
    readonly sealedEntry: bigint
    readonly head: string
    readonly counted: readonly AccountId[]
  } | null
}

type SealedCounters = Pick<AccountRow, 'used' | 'refunded' | 'returned'>

interface PlannedSegment {
  readonly text: string
  readonly plan: SealPlan
}

export function planSegment(
  database: Database.Database,
  identity: Identity,
  request: SealRequest,
  entriesMax: number,
): PlannedSegment {
  const statements = statementsOf(database)
  const state = statements.state.get() as StateRow
  const undeliveredRange = undeliveredRangeIn(database, entriesMax)
  const unsealed = undeliveredRange === null ? unsealedBodies(database, state, entriesMax) : []
  const entries = sealable(statements, state, request, unsealed)
  const head = entries.bodies.reduce(entryHash, state.sealed_head)
  const lastEntry = Number(state.sealed_entry) + entries.bodies.length
  const isComplete = lastEntry === Number(state.last_entry)
  if (isComplete && head !== state.entry_head) throw new Error('invariant: the entries on disk fit their chain')
  const seq = Number(state.last_seq) + 1
  const { sessions, isMoreToFollow } = unsealedSessions(statements, seq)
  const isAll = isComplete && entries.isFullyReported && undeliveredRange?.isMoreToFollow !== true && !isMoreToFollow
  const final = request.final && isAll

  const epoch = Number(state.epoch)
  const withoutTopUps: SegmentWire = {
    deviceId: identity.deviceId,
    epoch,
    seq,
    previousHash: state.segment_head,
    salt: request.salt,
    bootId: request.bootId,
    clock: request.clock,
    counters: countersToWire(entries.counters),
    entries: {
      first: Number(state.sealed_entry) + 1,
      previousHash: state.sealed_head,
      head,
      bodies: [...entries.bodies],
    },
    undeliveredRange: undeliveredRange?.wire ?? null,
    backlog: Number(state.last_entry) - lastEntry + (undeliveredRange?.left ?? 0),
    grantTerm: request.grant !== null && lastEntry >= request.grant.lastEntry ? request.grant.term : 0,
    topUpRequests: [],
    needs: [],
    policies: [...request.policies],
    sessions: sessions.map(({ snapshot }) => JSON.parse(snapshot) as SessionSnapshot),
    final,
  }
  const text = textWithTopUps(withoutTopUps, request)
  const hash = sha256(text)
  const plan = {
    epoch,
    seq,
    hash,
    final,
    isMoreToFollow: !isAll,
    lastEntry,
    head,
    counters: entries.counters,
    returns: request.returns,
    sessionIds: sessions.map(({ id }) => id),
    undeliveredRange: undeliveredRange?.plan ?? null,
  }
  return { text, plan }
}

function countersToWire(counters: ReadonlyMap<AccountId, SealedCounters>): SegmentWire['counters'] {
  return [...counters].map(([account, { used, refunded, returned }]) => ({
    account,
    used: String(used),
    refunded: String(refunded),
    returned: String(returned),
  }))
}

/** With as many of the requested top-ups as fit into a segment. */
function textWithTopUps(segment: SegmentWire, request: SealRequest): string {
  const text = JSON.stringify(segment)
  const topUps = segmentTopUps(request, SEGMENT_BYTES_MAX - Buffer.byteLength(text))
  const isEmpty = topUps.needs.length + topUps.topUpRequests.length === 0
  // A megabyte during a delivery: made only once.
  return isEmpty ? text : JSON.stringify({ ...segment, ...topUps } satisfies SegmentWire)
}

/**
 * In the first segment of an epoch, live ones first: the cloud counts those that it does not report as lost. Later ones last: the
 * cloud takes no more than the device may have, and must know first which of them have ended.
 */
function unsealedSessions(
  statements: JournalStatements,
  seq: number,
): {
  readonly sessions: readonly { readonly id: string; readonly snapshot: string }[]
  readonly isMoreToFollow: boolean
} {
  const inOrder = { last: seq === 1 ? 1 : 0, most: SEGMENT_SESSIONS_MAX + 1 }
  const unsealed = statements.unsealedSessions.all(inOrder) as { id: string; snapshot: string }[]
  let length = 0
  const sessions = unsealed.slice(0, SEGMENT_SESSIONS_MAX).filter(({ snapshot }, index) => {
    length += Buffer.byteLength(snapshot)
    return index === 0 || length <= SEGMENT_SESSIONS_BYTES_MAX
  })
  return { sessions, isMoreToFollow: sessions.length < unsealed.length }
}

/** Bodies of the next entries, as many as fit into one segment; at least one if there are any. */
function unsealedBodies(
  database: Database.Database,
  { entry_base, sealed_entry, last_entry }: Pick<StateRow, 'entry_base' | 'sealed_entry' | 'last_entry'>,
  entriesMax: number,
): readonly string[] {
  const bodies: string[] = []
  let length = 0
  let bytes = 0
  for (const { body } of entriesBetween(database, entry_base + sealed_entry, entry_base + last_entry)) {
    length += body.length
    bytes += Buffer.byteLength(JSON.stringify(body)) + 1
    if (bodies.length > 0 && (length > SEGMENT_TEXT_MAX || bytes > SEGMENT_ENTRIES_BYTES_MAX)) break
    bodies.push(body)
    if (bodies.length === entriesMax) break
  }
  return bodies
}

/** As many of the first ones as the accounts of a segment allow; at least one if there are any. */
function withinAccounts(bodies: readonly string[]): string[] {
  const accounts = new Set<AccountId>()
  const fitting: string[] = []
  for (const body of bodies) {
    // A damaged one has no accounts; it is sent as it is.
    const { postings = [] } = (parseJson(body) ?? {}) as Partial<EntryBodyWire>
    for (const { account } of postings) accounts.add(account)
    if (fitting.length > 0 && accounts.size > SEGMENT_ACCOUNTS_MAX) break
    fitting.push(body)
  }
  return fitting
}

/** Entries for one segment and the counters as of the last, within the wire limits. @param unsealed bodies that fit */
function sealable(
  statements: JournalStatements,
  state: StateRow,
  { returns }: SealRequest,
  unsealed: readonly string[],
): {
  readonly bodies: readonly string[]
  readonly counters: ReadonlyMap<AccountId, SealedCounters>
  readonly isFullyReported: boolean
} {
  let count = unsealed.length
  const isComplete = BigInt(count) === state.last_entry - state.sealed_entry
  for (;;) {
    const bodies = unsealed.slice(0, count)
    const isLast = isComplete && count === unsealed.length
    const moved = isLast ? movedNow(statements) : countersAfter(statements, bodies)
    if (countersFit(moved) || count <= 1) {
      const isFullyReported = !isLast || addReturned(statements, moved, returns)
      return { bodies, counters: moved, isFullyReported }
    }
    count >>= 1
  }
}

/** The next entries of the first undelivered range; a segment contains no others. */
function undeliveredRangeIn(
  database: Database.Database,
  entriesMax: number,
): {
  readonly wire: NonNullable<SegmentWire['undeliveredRange']>
  readonly plan: NonNullable<SealPlan['undeliveredRange']>
  readonly left: number
  readonly isMoreToFollow: boolean
} | null {
  const statements = statementsOf(database)
  const row = statements.nextUndeliveredRange.get() as UndeliveredRangeRow | undefined
  if (row === undefined) return null
  const { id, epoch, sealed_entry, sealed_head, last_entry, whole } = row
  const endsUnsealed = Number(statements.undeliveredRangeEndsUnsealed.get())
  const entriesUnsealed = Number(statements.undeliveredRangesUnsealed.get())
  const before = { first: Number(sealed_entry) + 1, previousHash: sealed_head }
  const counted = countedIn(statements, epoch)
  if (counted !== null) {
    const counters = counted.rows.map(({ id, used, refunded }) => {
      return { account: id, used: String(used), refunded: String(refunded) }
    })
    return {
      wire: {
        epoch: Number(epoch),
        entries: { ...before, head: sealed_head, bodies: [] },
        counted: { counters, isLast: counted.isLast },
        final: false,
      },
      plan: { id, epoch, sealedEntry: sealed_entry, head: sealed_head, counted: counted.rows.map((each) => each.id) },
      left: entriesUnsealed,
      isMoreToFollow: true,
    }
  }
  const bodies = withinAccounts(unsealedBodies(database, row, entriesMax))
  const head = bodies.reduce(entryHash, sealed_head)
  const sealedEntry = sealed_entry + BigInt(bodies.length)
  if (bodies.length === 0 && last_entry > sealed_entry)
    throw new Error('invariant: entries that are not delivered are kept')
  const isEnd = sealedEntry === last_entry
  return {
    wire: {
      epoch: Number(epoch),
      entries: { ...before, head, bodies },
      final: isEnd && whole === 1n,
    },
    plan: { id, epoch, sealedEntry, head, counted: [] },
    left: entriesUnsealed - bodies.length,
    isMoreToFollow: endsUnsealed > (isEnd ? 1 : 0),
  }
}

type CountRow = Pick<AccountRow, 'id' | 'used' | 'refunded'>

function countedIn(
  statements: JournalStatements,
  epoch: bigint,
): { readonly rows: readonly CountRow[]; readonly isLast: boolean } | null {
  const all = statements.unsealedCounts.all(epoch) as CountRow[]
  if (all.length === 0) return null
  let bytes = 0
  const rows = all.slice(0, SEGMENT_ACCOUNTS_MAX).filter(({ id }) => {
    bytes += counterBytesMax(id)
    return bytes <= SEGMENT_COUNTERS_BYTES_MAX
  })
  return { rows, isLast: rows.length === all.length }
}

function movedNow(statements: JournalStatements): Map<AccountId, SealedCounters> {
  const rows = statements.movedAccounts.all() as AccountRow[]
  return new Map(rows.map(({ id, used, refunded, returned }) => [id, { used, refunded, returned }]))
}

/**
 * Adds returns of this segment and earlier unreported ones. An account without space is reported later; until then, the
 * cloud believes that the device has more. Returns whether all of them fit.
 */
function addReturned(
  statements: JournalStatements,
  counters: Map<AccountId, SealedCounters>,
  returns: SealRequest['returns'],
): boolean {
  const toReport = new Map<AccountId, SealedCounters>()
  for (const { id, returned } of statements.returnedAccounts.all() as AccountRow[]) {
    toReport.set(id, { ...sealedCounters(statements, id), returned })
  }
  for (const { account, amount } of returns) {
    const counted = counters.get(account) ?? toReport.get(account) ?? sealedCounters(statements, account)
    const more = { ...counted, returned: counted.returned + amount }
    if (counters.has(account)) counters.set(account, more)
    else toReport.set(account, more)
  }
  let bytes = countersBytes(counters.keys())
  for (const [account, counted] of toReport) {
    bytes += counterBytesMax(account)
    if (counters.size >= SEGMENT_ACCOUNTS_MAX || bytes > SEGMENT_COUNTERS_BYTES_MAX) return false
    counters.set(account, counted)
  }
  return true
}

/**
 * Counters as of the last segment plus the given entries; later entries are excluded. Returns go with the segment that
 * leaves no entries behind: they may come from a later refund.
 */
function countersAfter(statements: JournalStatements, bodies: readonly string[]): Map<AccountId, SealedCounters> {
  const counters = new Map<AccountId, SealedCounters>()
  for (const { account, used, refunded } of movesOf(bodies).values()) {
    const sealed = sealedCounters(statements, account)
    counters.set(account, { ...sealed, used: sealed.used + used, refunded: sealed.refunded + refunded })
  }
  return counters
}

function sealedCounters(statements: JournalStatements, account: AccountId): SealedCounters {
  const row = statements.account.get(account) as AccountRow | undefined
  if (row === undefined) throw new Error(`invariant: ${account} is known`)
  return { used: row.sealed_used, refunded: row.sealed_refunded, returned: row.sealed_returned }
}

function countersFit(counters: ReadonlyMap<AccountId, SealedCounters>): boolean {
  return counters.size <= SEGMENT_ACCOUNTS_MAX && countersBytes(counters.keys()) <= SEGMENT_COUNTERS_BYTES_MAX
}

function countersBytes(accounts: Iterable<AccountId>): number {
  let bytes = 0
  for (const account of accounts) bytes += counterBytesMax(account)
  return bytes
}
