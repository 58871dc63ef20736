/**
 * The journal over an open database. Each method is one synchronous transaction: committed if it returns, rolled back if
 * it throws. It re-checks invariants (no gaps in entries, no account above grant plus allowance), so that a bug above it
 * ends the process instead of corrupting a balance.
 */
import { existsSync, statSync } from 'node:fs'
import type Database from 'better-sqlite3'
import type { AccountId } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import { SESSION_REST_MS } from '../../../core/sessions/session.ts'
import type { EntryBodyWire } from '../../../protocol/edge/sync.ts'
import { CHAIN_START, entryHash } from '../../../protocol/signing.ts'
import { CodedError } from '../../../protocol/errors.ts'
import {
  type AccountState,
  type ChainEnd,
  type ClockStamp,
  type Confirmation,
  type GrantedAccount,
  type Identity,
  type Leaving,
  NOTHING_TO_SAY,
  type SealRequest,
  type SealedSegment,
  type SegmentPlace,
  type Snapshot,
  type StoredAnswer,
  type StoredGrant,
  type StoredPolicy,
} from '../../ledger/journal.ts'
import type { RecentOfEach } from '../../access/idempotency-cache.ts'
import type { Batch, FoundEntry, JournalLimits, JournalMethods, PreparedSeal } from './journal-calls.ts'
import {
  type AccountRow,
  type AnswerRow,
  type UndeliveredRangeRow,
  type JournalStatements,
  type PolicyRow,
  type SalvageRow,
  type SegmentRow,
  type SessionRow,
  type StateRow,
  answerOf,
  clockOf,
  grantOf,
  policyOf,
  segmentOf,
  stampValues,
  statementsOf,
} from './journal-statements.ts'
import { checkCounters } from './check-counters.ts'
import { BLOCK_ENTRIES, entriesBefore, entriesBetween, sumsOf, UnstoredEntries } from './entry-blocks.ts'
import { encodeTexts, headAfter } from './entry-texts.ts'
import { PAGE_BYTES } from './open-database.ts'
import {
  fold,
  type PendingBatch,
  type PendingToFold,
  readAnswerSlots,
  readPending,
  recordOf,
} from './pending-batches.ts'
import { type SealPlan, planSegment } from './plan-segment.ts'
import { type PlacedRecord, Slots } from './slots.ts'

/**
 * Frames of the write-ahead log that trigger a checkpoint: 2 MiB. Checkpoints block calls: longer logs mean longer waits,
 * shorter logs more flushes. The reserved disk space must cover the log and the next segment.
 */
const CHECKPOINT_FRAMES = 2_000

/** The length of the log is read after this many slots. */
const LOOK_EVERY_SLOTS = 50

/** In an idle moment, a checkpoint runs from this many frames on, so that callers rarely meet one. */
const IDLE_CHECKPOINT_FRAMES = 1_000

/** Pending entries that trigger a fold after the response: whole blocks. */
const PENDING_ENTRIES = 4 * BLOCK_ENTRIES

/** A commit of this many entries goes into blocks at once: writing them to slots first would save nothing. */
const LARGE_ENTRIES = 192

/** Entries per search step: blocks commits for 1 to 2 ms. */
const SEARCHED_ENTRIES = 1_000

const COUNTER_MAX = 2n ** 63n - 1n

/** Entries after a rules change that may still have been decided by the old rules. */
const LATE_ENTRIES = 10_000

/** Newest ended sessions to keep. */
const ENDED_SESSIONS_MAX = 1_000

/** Free pages to keep so that the next writes need not grow the file: 1 MiB. */
const FREE_PAGES_KEPT = 1024n

/** Pages freed per step, 512 KiB; bounds how long a call can wait. */
const SHRINK_PAGES = 512n

/** Truncate the write-ahead log above this size when idle: a little more than a checkpoint leaves, which is reused. */
const LOG_BYTES_KEPT = 2.25 * 1024 * 1024

/** Rows deleted per cleanup, which runs between commits. */
const PRUNE_ROWS = 2_000

/** Blocks of entries deleted per cleanup. */
const PRUNE_BLOCKS = 32

type Transact = <T>(work: () => T) => T

/** What a commit checks without reading rows: current while nothing but commits happens. */
interface Current {
  readonly epoch: bigint
  readonly isOpen: boolean
  readonly lastEntry: number
  readonly head: string
  /** Accounts as the pending commits leave them. */
  readonly accounts: Map<AccountId, AccountRow>
}

export class JournalStore implements JournalMethods {
  /**
   * Whether the reserved disk space exists. While it does not, free database pages replace it: entries may not use the
   * last of them, and only undelivered data is kept.
   */
  hasDiskReserve = true
  /** Whether there are commits that the caller has to flush: {@link JournalStore.leaveFlushes}. */
  hasUnflushed = false
  /** The agent's time at the current call, POSIX ms. */
  now = 0
  /** The file gets shorter only by a checkpoint. */
  #hasShrunk = false
  readonly #database: Database.Database
  readonly #limits: JournalLimits
  readonly #statements: JournalStatements
  readonly #transaction: Database.Transaction<(work: () => unknown) => unknown>
  /** Sets the page limit for entries; the other statement sets the limit for final deliveries. */
  readonly #allowPages: Database.Statement
  readonly #allowPagesAndDiskReserve: Database.Statement
  /** Slot of the answer of each application session; used ones are contiguous. */
  #answerSlots: RecentOfEach<number>
  readonly #slots: Slots
  /** Commits that are only in slots, and their entries. */
  #pending: PendingBatch[] = []
  #unstored = new UnstoredEntries()
  /** Of the slots that the next commits fill. */
  #generation: number
  #current: Current | null = null
  /** `hasDiskReserve` when the disk last had space for entries. Null: unknown. Commits in slots take no space. */
  #hadSpaceWith: boolean | null = null
  /** Slots written since the length of the log was last read. */
  #slotsWritten = 0
  #plan: SealPlan | null = null
  /** Confirmed revisions whose documents are not fetched yet. */
  readonly #confirmedAhead = new Map<
    string,
    { readonly revision: number; readonly time: number; readonly segment: bigint | null }
  >()

  constructor(database: Database.Database, limits: JournalLimits) {
    this.#database = database
    this.#limits = limits
    this.#statements = statementsOf(database)
    this.#transaction = database.transaction((work: () => unknown) => work())
    this.#answerSlots = readAnswerSlots(database, limits.answersMax)
    this.#slots = new Slots(database)
    this.#generation = Number(this.#state().slot_generation)
    this.#allowPages = database.prepare(`PRAGMA max_page_count = ${limits.pagesMax}`)
    this.#allowPagesAndDiskReserve = database.prepare(
      `PRAGMA max_page_count = ${limits.pagesMax + limits.diskReservePages}`,
    )
    this.#allowPages.get()
    this.#recover()
  }

  /**
   * From now on the caller flushes the write-ahead log after each call that commits, before it answers. Checkpoints of SQLite
   * flush the log first.
   */
  leaveFlushes(): void {
    this.#database.pragma('synchronous = NORMAL')
  }

  /** Folds what an earlier process left in slots. */
  #recover(): void {
    const { batches, entries, damage } = readPending(this.#database)
    if (damage !== null) throw new Error(`the pending entries are damaged: ${damage}`)
    this.#pending = [...batches]
    this.#unstored = entries
    this.#fold()
  }

  read(): Snapshot {
    this.#fold()
    const state = this.#state()
    const accounts = new Map<AccountId, AccountState>()
    const openReservations = new Map<AccountId, Micro>()
    const burned = new Map<AccountId, Micro>()
    for (const row of this.#statements.accounts.all() as AccountRow[]) {
      const { granted, used, refunded, returned } = row
      const flags = { exhausted: row.exhausted === 1n, unlimited: row.unlimited === 1n }
      const spent = used - refunded + returned
      const { allowance } = row
      if (row.unlimited === 0n && spent > granted + allowance) throw new Error(`invariant: ${row.id} is overspent`)
      if (row.reserved > used) openReservations.set(row.id, row.reserved)
      if (row.burned > 0n) burned.set(row.id, row.burned)
      accounts.set(row.id, {
        ...{ granted, used, refunded, returned, ...flags },
        ...(allowance > 0n ? { allowance } : {}),
        ...(row.overdraft > 0n ? { overdraft: row.overdraft } : {}),
      })
    }
    const unacknowledged = this.#statements.segmentInFlight.get() as SegmentRow | undefined
    return {
      identity: this.#identity(),
      epoch: Number(state.epoch),
      highestEpoch: Number(this.#statements.highestEpoch.get()),
      fenced: state.fenced === 1n,
      accounts,
      grant: grantOf(state),
      policies: (this.#statements.policies.all() as PolicyRow[]).map(policyOf),
      signedAnswers: this.#statements.signedAnswers.all() as string[],
      lastEntry: Number(state.last_entry),
      entryHead: state.entry_head,
      openReservations,
      burned,
      lastSealedEntry: Number(state.sealed_entry),
      undeliveredRanges: Number(this.#statements.undeliveredRangesLeft.get()),
      resendsEarlier: state.resends_earlier === 1n,
      idempotencyCache: (this.#statements.answers.all() as AnswerRow[]).map(answerOf),
      sessions: (this.#statements.sessions.all() as SessionRow[]).map(({ ended, since, ...texts }) => ({
        ...texts,
        ended: ended === 1n,
        since: Number(since),
      })),
      unacknowledged: unacknowledged === undefined ? null : segmentOf(unacknowledged),
      lastSeq: Number(state.last_seq),
      clock: clockOf(state),
      salvages: (this.#statements.salvages.all() as SalvageRow[])
        .filter(({ file }) => existsSync(file))
        .map(({ at, file, why, salvaged_entries, lost_entries }) => ({
          ...{ at: Number(at), file, why, salvagedEntries: Number(salvaged_entries) },
          lostEntries: lost_entries === null ? null : Number(lost_entries),
        })),
    }
  }

  /**
   * Reads every undelivered entry as the next segments will. A write-ahead log from another state of the file can leave an
   * intact database with missing entries.
   *
   * @throws Error if an entry could never be delivered
   */
  checkUndelivered(): void {
    const state = this.#state()
    const head = this.#chainOver(state.entry_base, state.sealed_entry, state.last_entry, state.sealed_head)
    if (head !== state.entry_head) throw new Error('invariant: the entries on disk fit their chain')
    for (const row of this.#statements.allUndeliveredRanges.all() as UndeliveredRangeRow[]) {
      const last = this.#chainOver(row.entry_base, row.sealed_entry, row.last_entry, row.sealed_head)
      if (last !== row.last_head) throw new Error('invariant: the undelivered ranges on disk fit their chains')
    }
    checkCounters(this.#database)
  }

  /** Computes the hash chain over entries after `from` up to `to`. */
  #chainOver(base: bigint, from: bigint, to: bigint, start: string): string {
    let head = start
    let n = from
    for (const entry of entriesBetween(this.#database, base + from, base + to)) {
      n += 1n
      if (entry.n !== n) break
      head = entryHash(head, entry.body)
    }
    if (n !== to) throw new Error(`invariant: entry ${n} of ${to} that are to be delivered is followed by the next one`)
    return head
  }

  /** Returns the hash chain head of the epoch. */
  append(batch: Batch): string {
    const current = (this.#current ??= this.#readCurrent())
    const { firstN, entries, moves, answers, sessions, reservations, answered, stamp } = batch
    const count = entries.length
    const nextN = count === 0 ? firstN : current.lastEntry + 1
    if (firstN > nextN) throw new CodedError('NOT_RECORDED', 'an entry before it was not recorded')
    if (firstN < nextN) throw new Error('invariant: entries are numbered without gaps')
    if (!current.isOpen) throw new Error('invariant: the epoch is open')
    const accounts = this.#moved(current, batch)
    const texts = encodeTexts(entries)
    const head = headAfter(current.head, texts)
    const pending: PendingBatch = { firstN, moves, answers, sessions, reservations, stamp, count, head }
    const transact = <T>(work: () => T): T => {
      if (answered) return this.#withDiskReserve(() => this.#transact(work))
      return this.#transact(() => {
        const result = work()
        this.#refuseDiskReserve()
        return result
      })
    }
    const isSmall = count > 0 && count < LARGE_ENTRIES
    const placed = isSmall ? this.#placed(recordOf(pending, texts), transact) : null
    if (placed === null) {
      this.#foldNow({ batches: [...this.#pending, pending], entries: this.#unstored, more: texts }, transact)
      return head
    }
    if (!answered && this.#hadSpaceWith !== this.hasDiskReserve) {
      this.#refuseDiskReserve()
      this.#hadSpaceWith = this.hasDiskReserve
    }
    this.#writeSlots(placed)
    this.#pending.push(pending)
    this.#unstored.add(texts)
    const known = (this.#current ??= this.#readCurrent())
    for (const row of accounts) known.accounts.set(row.id, row)
    this.#current = { ...known, lastEntry: current.lastEntry + count, head }
    return head
  }

  #writeSlots(placed: PlacedRecord): void {
    this.hasUnflushed = true
    const write = (): void => this.#slots.write(placed, this.#generation)
    // A statement alone is a transaction.
    if (placed.slots === 1) write()
    else this.#transact(write)
    this.#slots.written(placed)
    this.#slotsWritten += placed.slots
  }

  /** Frees the slots if they are not enough. Null: it does not even fit into all of them. */
  #placed(record: Buffer, transact: Transact): PlacedRecord | null {
    const placed = this.#slots.fit(record)
    if (placed !== null || this.#pending.length === 0) return placed
    this.#foldNow({ batches: this.#pending, entries: this.#unstored }, transact)
    return this.#slots.fit(record)
  }

  #foldNow(pending: PendingToFold, transact: Transact): void {
    transact(() => fold(this.#database, pending, this.#answerSlots))
    this.#afterFold()
  }

  #afterFold(): void {
    this.#generation = Number(this.#state().slot_generation)
    this.#hadSpaceWith = null
    this.#slotsWritten = Infinity
    this.#pending = []
    this.#unstored.clear()
    this.#slots.clear()
    this.#current = null
  }

  #readCurrent(): Current {
    const { epoch, fenced, last_entry, entry_head } = this.#state()
    return {
      ...{ epoch, isOpen: epoch !== 0n && fenced === 0n, lastEntry: Number(last_entry), head: entry_head },
      accounts: new Map(),
    }
  }

  /** The accounts after a commit. @throws Error if one would break a constraint of its table */
  #moved({ accounts }: Current, { moves, reservations }: Pick<Batch, 'moves' | 'reservations'>): readonly AccountRow[] {
    const changed = new Map<AccountId, AccountRow>()
    const rowOf = (account: AccountId): AccountRow | undefined =>
      changed.get(account) ?? accounts.get(account) ?? (this.#statements.account.get(account) as AccountRow | undefined)
    for (const { account, used, refunded, burned, allowance } of moves) {
      const row = rowOf(account) ?? (allowance > 0n ? { ...NEW_ACCOUNT, id: account } : undefined)
      if (row === undefined) throw new Error(`invariant: ${account} is known`)
      changed.set(account, {
        ...row,
        used: row.used + used,
        refunded: row.refunded + refunded,
        burned: row.burned + burned,
        allowance: allowance > row.allowance ? allowance : row.allowance,
      })
    }
    for (const { account, usedUpTo } of reservations) {
      const row = rowOf(account)
      if (row === undefined) throw new Error(`invariant: ${account} is known`)
      changed.set(account, { ...row, reserved: usedUpTo })
    }
    for (const row of changed.values()) requireSound(row)
    return [...changed.values()]
  }

  /** Folds pending commits into the tables. Everything else reads and writes only tables. */
  #fold(): void {
    if (this.#pending.length > 0) this.#runWithDiskReserve(() => undefined)
  }

  /** Prepares the text of the next segment for signing. */
  prepareSeal(request: SealRequest): PreparedSeal {
    this.#plan = null
    this.#fold()
    const identity = this.#identity()
    if (identity === null || this.#state().epoch === 0n) {
      throw new Error('invariant: only an attached device seals')
    }
    if (this.#statements.segmentInFlight.get() !== undefined) {
      throw new Error('invariant: one unacknowledged segment at most')
    }
    const { text, plan } = planSegment(this.#database, identity, request, this.#limits.segmentEntriesMax)
    this.#plan = plan
    return { text }
  }

  /** Stores the signed segment and the returns that it reports. */
  storeSeal(document: string): Omit<SealedSegment, 'document'> {
    const plan = this.#plan
    if (plan === null) throw new Error('invariant: a segment is prepared before it is stored')
    const { epoch, seq, hash, final, lastEntry, head } = plan
    this.#runWithDiskReserve(() => {
      const state = this.#state()
      for (const { account, amount } of plan.returns) {
        this.#statements.shorten.run(amount, account)
        this.#return(account, amount)
      }
      for (const [account, { used, refunded, returned }] of plan.counters) {
        changedOne(this.#statements.sealAccount.run(used, refunded, returned, account))
      }
      const lastEntryId = state.entry_base + BigInt(lastEntry)
      const { lastInsertRowid } = this.#statements.insertSegment.run(
        epoch,
        seq,
        hash,
        final ? 1 : 0,
        lastEntryId,
        this.now,
        Buffer.byteLength(document),
      )
      this.#statements.insertDocument.run(lastInsertRowid, document)
      for (const id of plan.sessionIds) changedOne(this.#statements.sealSession.run(id))
      this.#statements.sealed.run(lastEntry, head, seq, hash)
      if (plan.undeliveredRange !== null) {
        const { epoch: earlier, sealedEntry, head: sealedHead, counted } = plan.undeliveredRange
        for (const account of counted) changedOne(this.#statements.sealCount.run(earlier, account))
        if (counted.length === 0) {
          changedOne(
            this.#statements.sealUndeliveredRange.run({ entry: sealedEntry, head: sealedHead, epoch: earlier }),
          )
        }
      }
    })
    this.#plan = null
    return { epoch, seq, hash, final, answer: null }
  }

  acknowledge(
    seq: number,
    grant: (StoredGrant & { readonly accounts: readonly GrantedAccount[] }) | null,
    confirmation: Confirmation | null,
    answer: StoredAnswer | null = null,
  ): void {
    this.#runWithDiskReserve(() => {
      const state = this.#state()
      if (seq > Number(state.last_seq)) throw new Error('invariant: only a sealed segment is acknowledged')
      const inFlight = this.#statements.segmentInFlight.get() as SegmentRow | undefined
      if (inFlight?.epoch === state.epoch && Number(inFlight.seq) === seq) {
        if (answer !== null) {
          this.#statements.storeReceipt.run(answer.retainUntil, seq, state.epoch)
          this.#statements.storeAnswerOf.run(answer.document, seq, state.epoch)
        }
        this.#statements.endSegment.run('ACKNOWLEDGED', this.now)
        this.#statements.acked.run(answer?.resendsEarlier === true ? 1 : 0)
        this.#statements.ackUndeliveredRanges.run()
        this.#statements.deleteCounts.run()
        this.#statements.deleteUndeliveredRanges.run()
      }
      if (grant !== null) {
        this.#grant(grant)
        this.#statements.settleAboveGrant.run()
        if (answer !== null) {
          this.#statements.proveGrant.run(seq, state.epoch)
          for (const { account, granted } of grant.accounts) {
            this.#statements.proveAccount.run(seq, state.epoch, account, granted)
          }
        }
      }
      if (confirmation !== null) {
        const { time } = confirmation
        const segment = inFlight?.id ?? null
        for (const { instanceId, revision } of confirmation.policies) {
          this.#statements.confirmPolicy.run({ time, segment, instanceId, revision })
          this.#confirmedAhead.set(instanceId, { revision, time, segment })
        }
      }
    })
    try {
      this.#prune(this.now)
    } catch (error) {
      // The acknowledgement is committed; if the disk is too full for cleanup, a later call repeats it.
      if ((error as { code?: unknown }).code !== 'SQLITE_FULL') throw error
    }
  }

  sealed(seq: number): SealedSegment | null {
    const row = this.#statements.segment.get(this.#state().epoch, seq) as SegmentRow | undefined
    return row === undefined ? null : segmentOf(row)
  }

  sealedEarlier({ epoch, seq }: SegmentPlace): SealedSegment | null {
    const current = this.#state().epoch
    const row = this.#statements.segmentEarlier.get(current, epoch, seq) as SegmentRow | undefined
    return row === undefined ? null : segmentOf(row)
  }

  /** At most one response per account: the newest that names it. */
  proofs(): readonly string[] {
    return this.#statements.proofs.all() as string[]
  }

  fence(): void {
    this.#runWithDiskReserve(() => {
      this.#statements.fence.run()
      this.#statements.closeReservations.run()
    })
  }

  attach(epoch: number, { isWhole, cloudEnd }: Leaving = NOTHING_TO_SAY): void {
    this.#runWithDiskReserve(() => {
      const state = this.#state()
      if (epoch <= Number(state.epoch)) throw new Error('invariant: epochs rise')
      this.#statements.endSegment.run('ABANDONED', this.now)
      this.#statements.unsealUndeliveredRanges.run()
      this.#statements.unsealCounts.run()
      const acked = { entry: state.acked_entry, head: state.acked_head }
      const lost = cloudEnd === null || BigInt(cloudEnd.entry) >= acked.entry ? null : cloudEnd
      const kept = lost === null ? null : this.#keptFrom(lost, state)
      const { entry, head } = kept ?? acked
      if (isWhole || entry < state.last_entry) {
        this.#statements.insertUndeliveredRange.run({ entry, head, whole: isWhole ? 1 : 0 })
        if (isWhole && lost !== null && kept === null) this.#countUpTo(state)
      }
      this.#statements.deleteAccounts.run()
      // A fork may have discarded session states sent by the previous epoch.
      this.#statements.unsealSessions.run()
      const base = state.entry_base + state.last_entry
      const resends = cloudEnd === null ? 0 : 1
      this.#statements.attach.run({ epoch, base, start: CHAIN_START, resends })
    })
  }

  limit(accounts: readonly AccountId[]): void {
    this.#runWithDiskReserve(() => {
      for (const account of accounts) changedOne(this.#statements.limit.run(account))
    })
  }

  /** The cloud's chain end if all later entries are still stored; otherwise null. */
  #keptFrom({ entry, head }: ChainEnd, state: StateRow): { readonly entry: bigint; readonly head: string } | null {
    const from = BigInt(entry)
    const base = state.entry_base
    const bodies = [...entriesBetween(this.#database, base + from, base + state.acked_entry)].map(({ body }) => body)
    if (BigInt(bodies.length) !== state.acked_entry - from) return null
    const end = bodies.reduce(entryHash, head)
    return end === state.acked_head ? { entry: from, head } : null
  }

  /** Saves the counters as of before the first unacknowledged entry. */
  #countUpTo(state: StateRow): void {
    this.#statements.countUndeliveredRange.run()
    const { entry_base, acked_entry, last_entry } = state
    const moved = sumsOf(entriesBetween(this.#database, entry_base + acked_entry, entry_base + last_entry))
    for (const [account, { used, refunded }] of moved) {
      changedOne(this.#statements.uncountUndeliveredRange.run(used, refunded, account))
    }
  }

  saveIdentity(identity: Identity): void {
    this.#runWithDiskReserve(() => this.#statements.saveIdentity.run(JSON.stringify(identity)))
  }

  savePolicy(
    policy: Omit<StoredPolicy, 'confirmedAt'>,
    keys: Pick<Identity, 'trustedKeys' | 'formerKeys'> | null,
  ): void {
    this.#runWithDiskReserve(() => {
      const { instanceId, revision, document } = policy
      const ahead = this.#confirmedAhead.get(instanceId)
      const confirmed = ahead?.revision === revision ? ahead : undefined
      this.#keepReplaced(instanceId, revision)
      this.#statements.savePolicy.run(instanceId, revision, document, confirmed?.time ?? 0, confirmed?.segment ?? null)
      const identity = this.#identity()
      if (keys === null || identity === null) return
      this.#statements.saveIdentity.run(JSON.stringify({ ...identity, ...keys }))
    })
  }

  /** Archives replaced rules that recorded decisions were made by. */
  #keepReplaced(instanceId: string, revision: number): void {
    const { entry_base, last_entry } = this.#state()
    this.#statements.keepPolicy.run(entry_base + last_entry, instanceId, revision)
    this.#statements.deleteLargePolicies.run(this.#limits.pastRulesBytesMax)
  }

  saveClock(stamp: ClockStamp): void {
    this.#run(() => this.#statements.saveClock.run(...stampValues(stamp)))
  }

  recent(limit: number): readonly EntryBodyWire[] {
    this.#fold()
    const found: EntryBodyWire[] = []
    if (limit === 0) return found
    for (const { body } of entriesBefore(this.#database, COUNTER_MAX)) {
      found.push(JSON.parse(body) as EntryBodyWire)
      if (found.length === limit) break
    }
    return found
  }

  /**
   * One step of a search for the newest entry with this correlation id.
   *
   * @param before entry id to search below; null for all
   */
  findStep(correlationId: string, before: number | null): FoundEntry {
    this.#fold()
    const text = `"correlationId":"${correlationId}"`
    let searched = 0
    for (const { id, body, inputs } of entriesBefore(this.#database, before === null ? COUNTER_MAX : BigInt(before))) {
      // The application's payload may contain the same text.
      const entry = body.includes(text) ? (JSON.parse(body) as EntryBodyWire) : undefined
      if (entry?.correlationId === correlationId) {
        const { instanceId, policyRevision } = entry
        const rules = this.#statements.policyOf.get({ instanceId, revision: policyRevision }) as string | undefined
        const trustedKeys = this.#identity()?.trustedKeys ?? []
        return { found: { body, inputs, rules: rules ?? null, trustedKeys }, next: null }
      }
      searched += 1
      if (searched === SEARCHED_ENTRIES) return { found: null, next: Number(id) }
    }
    return { found: null, next: null }
  }

  /**
   * Deletes a bounded amount of acknowledged data: entries at once except the most recent (segments contain them), segments
   * after the retention time or above their size limit, oldest first. With a half-full database or a full disk, only
   * undelivered data is kept.
   */
  #prune(now: number): void {
    this.#runWithDiskReserve(() => {
      const { entry_base, last_entry, acked_entry } = this.#state()
      const owed = this.#statements.firstUndeliveredRange.get() as UndeliveredRangeRow | undefined
      // Keeps everything after the first undelivered entry of any epoch.
      const delivered = owed === undefined ? entry_base + acked_entry : owed.entry_base + owed.acked_entry
      const inUse = this.#pagesInUse()
      const tight = this.hasDiskReserve ? inUse - BigInt(this.#limits.pagesMax) / 2n : inUse
      const old = tight > 0n ? delivered : entry_base + last_entry - BigInt(this.#limits.recentEntries)
      this.#statements.deleteEntries.run({ last: old < delivered ? old : delivered, most: PRUNE_BLOCKS })
      this.#statements.deletePolicies.run(LATE_ENTRIES)
      // Times in the future come from a clock that was corrected since: restart their retention now.
      this.#statements.redateSegments.run({ now })
      this.#statements.deleteSegments.run({ before: now - this.#limits.retentionMs, now, most: PRUNE_ROWS })
      this.#statements.deleteSessions.run({ before: now - SESSION_REST_MS, most: PRUNE_ROWS })
      this.#statements.deleteOldSessions.run(ENDED_SESSIONS_MAX)
      const over = (this.#statements.segmentBytes.get() as bigint) - BigInt(this.#limits.retainedBytesMax)
      const tightBytes = tight * BigInt(PAGE_BYTES)
      const tooMany = over > tightBytes ? over : tightBytes
      if (tooMany > 0n) this.#statements.deleteOldestSegments.run(tooMany)
    })
  }

  /** Refuses entries that would use space reserved for final deliveries, in the database or on the disk. */
  #refuseDiskReserve(): void {
    const limit = BigInt(this.#limits.pagesMax)
    if ((this.#statements.pages.get() as bigint) > limit && this.#pagesInUse() > limit) {
      throw new CodedError('NOT_RECORDED', 'the ledger is full')
    }
    if (!this.hasDiskReserve && (this.#statements.freePages.get() as bigint) < BigInt(this.#limits.diskReservePages)) {
      throw new CodedError('NOT_RECORDED', 'the disk is full')
    }
  }

  #pagesInUse(): bigint {
    return (this.#statements.pages.get() as bigint) - (this.#statements.freePages.get() as bigint)
  }

  /**
   * One step towards shrinking the file. False when there is nothing (more) to do. While the reserved disk space is missing,
   * twice as many free pages and the log are kept instead.
   */
  shrink(): boolean {
    try {
      const kept = this.hasDiskReserve ? FREE_PAGES_KEPT : FREE_PAGES_KEPT + 2n * BigInt(this.#limits.diskReservePages)
      const free = this.#statements.freePages.get() as bigint
      const over = free - kept
      if (over > 0n) {
        this.#database.pragma(`incremental_vacuum(${over < SHRINK_PAGES ? over : SHRINK_PAGES})`)
        this.hasUnflushed = true
        this.#hasShrunk = true
        // A file created without auto_vacuum cannot shrink; its free pages are reused.
        if ((this.#statements.freePages.get() as bigint) < free) return true
      }
      if (this.hasDiskReserve && this.#logBytes() > LOG_BYTES_KEPT) this.#statements.truncateLog.get()
    } catch (error) {
      // A full disk may lack the space for shrinking; a later step retries.
      if ((error as { code?: unknown }).code !== 'SQLITE_FULL') throw error
    }
    return false
  }

  /** Frames of the log that no checkpoint has copied. */
  #logFrames(): bigint {
    const [, frames = 0n, copied = 0n] = this.#statements.checkpointSize.get() as readonly bigint[]
    return frames - copied
  }

  #logBytes(): number {
    return statSync(`${this.#database.name}-wal`, { throwIfNoEntry: false })?.size ?? 0
  }

  /** Folds pending commits, checkpoints the write-ahead log and closes the database. */
  close(): void {
    // On a full disk, they stay in slots for the next process.
    ifSpace(() => this.#fold())
    this.#database.close()
  }

  /** As the last fold left it. */
  #state(): StateRow {
    return this.#statements.state.get() as StateRow
  }

  #identity(): Identity | null {
    const text = this.#statements.identity.get() as string | undefined
    if (text === undefined) return null
    const identity = JSON.parse(text) as Identity
    if (typeof identity.deviceId !== 'string' || !Array.isArray(identity.trustedKeys)) {
      throw new Error('invariant: the identity names the device and the keys that it trusts')
    }
    return identity
  }

  #return(account: AccountId, amount: Micro): void {
    const row = this.#statements.returnTokens.get(amount, account) as AccountRow | undefined
    if (row === undefined) throw new Error(`invariant: ${account} is known`)
    if (row.unlimited === 0n && row.used - row.refunded + row.returned > row.granted + row.allowance) {
      throw new Error(`invariant: ${account} is never overspent`)
    }
  }

  #grant({
    term,
    lifetimeMs,
    expiresAt,
    agedMs,
    accounts,
  }: StoredGrant & { accounts: readonly GrantedAccount[] }): void {
    for (const { account, granted, exhausted, unlimited, overdraft = 0n } of accounts) {
      this.#statements.grantAccount.run(account, granted, exhausted ? 1 : 0, unlimited ? 1 : 0, overdraft)
    }
    this.#statements.grant.run(term, lifetimeMs, expiresAt, agedMs)
  }

  /** Folds pending commits and runs work, in one transaction. */
  #run<T>(work: () => T): T {
    const result = this.#transact(() => {
      const pending = { batches: this.#pending, entries: this.#unstored }
      if (this.#pending.length > 0) fold(this.#database, pending, this.#answerSlots)
      return work()
    })
    this.#afterFold()
    return result
  }

  #transact<T>(work: () => T): T {
    this.hasUnflushed = true
    try {
      return this.#transaction.immediate(work) as T
    } catch (error) {
      this.#answerSlots = readAnswerSlots(this.#database, this.#limits.answersMax)
      throw error
    }
  }

  /** Runs work that must succeed on a full disk with the reserved pages. */
  #runWithDiskReserve<T>(work: () => T): T {
    return this.#withDiskReserve(() => this.#run(work))
  }

  #withDiskReserve<T>(work: () => T): T {
    this.#allowPagesAndDiskReserve.get()
    try {
      return work()
    } finally {
      this.#allowPages.get()
    }
  }

  /**
   * One piece of work that is due after a call. Call it once the call was answered: then only the next caller waits, and never
   * for two of them. True: the next piece is a checkpoint.
   */
  tidyWhenDue(): boolean {
    if (this.#unstored.compressOne()) return false
    if (this.#unstored.count < PENDING_ENTRIES && !this.#slots.isLow) return this.#isCheckpointDue()
    ifSpace(() => this.#run(() => undefined))
    return false
  }

  #isCheckpointDue(): boolean {
    if (this.#slotsWritten < LOOK_EVERY_SLOTS) return false
    this.#slotsWritten = 0
    return this.#logFrames() >= CHECKPOINT_FRAMES
  }

  isIdleCheckpointDue(): boolean {
    return this.#hasShrunk || this.#logFrames() >= IDLE_CHECKPOINT_FRAMES
  }

  /** A checkpoint without its flushes: the log must be flushed before it, and the database before the next call. */
  copyLog(): void {
    this.#database.pragma('synchronous = OFF')
    try {
      if (this.checkpointLog()) this.#hasShrunk = false
    } finally {
      this.leaveFlushes()
    }
  }

  /**
   * Checkpoint. True if the whole log was copied. A full disk leaves the log unchanged. A failed flush is fatal as in a
   * commit: a second one could succeed without the pages on disk.
   */
  checkpointLog(): boolean {
    let isWhole = false
    ifSpace(() => {
      const { log, checkpointed } = this.#statements.checkpoint.get() as { log: bigint; checkpointed: bigint }
      isWhole = log === checkpointed
    })
    return isWhole
  }
}

/** Runs work that may wait while the disk is full. */
function ifSpace(work: () => void): void {
  try {
    work()
  } catch (error) {
    if ((error as { code?: unknown }).code !== 'SQLITE_FULL') throw error
  }
}

const NEW_ACCOUNT: Omit<AccountRow, 'id'> = {
  ...{ granted: 0n, used: 0n, refunded: 0n, returned: 0n, exhausted: 0n, unlimited: 0n, overdraft: 0n },
  ...{ reserved: 0n, allowance: 0n, burned: 0n, sealed_used: 0n, sealed_refunded: 0n, sealed_returned: 0n },
}

/** As the constraints of the account table, which check it again at the fold. */
function requireSound({ id, ...row }: AccountRow): void {
  const { granted, used, refunded, returned, unlimited, allowance, burned } = row
  const top = used > row.reserved ? used : row.reserved
  if (unlimited === 0n && top - refunded + returned > granted + allowance) {
    throw new Error(`invariant: ${id} is never overspent`)
  }
  if (refunded > used || burned > used) throw new Error(`invariant: ${id} has used what is refunded or burned`)
  if (used < 0n || refunded < 0n || burned < 0n || top > COUNTER_MAX || allowance > COUNTER_MAX) {
    throw new Error(`invariant: the counters of ${id} are within their range`)
  }
}

function changedOne({ changes }: { readonly changes: number }): void {
  if (changes !== 1) throw new Error('invariant: one row changes')
}
