/**
 * The journal over an open database. Each method is one synchronous transaction: committed if it returns, rolled back if
 * it throws. It re-checks invariants (no gaps in entries, no account above grant plus allowance), so that a bug above it
 * ends the process instead of corrupting a balance.
 */
import { existsSync } from 'node:fs'
import type Database from 'better-sqlite3'
import type { AccountId } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import { SESSION_REST_MS } from '../../../core/sessions/session.ts'
import type { EntryBodyWire } from '../../../protocol/edge/sync.ts'
import { CHAIN_START, entryHash } from '../../../protocol/signing.ts'
import {
  type AccountState,
  type ChainEnd,
  type ClockStamp,
  type GrantedAccount,
  type Identity,
  type JournalOperations,
  type LeftEpoch,
  type NewSegment,
  NOTHING_KNOWN,
  type RecordedEntry,
  type SealRequest,
  type SealedSegment,
  type SegmentPlace,
  type Snapshot,
  type StoredAnswer,
  type StoredGrant,
  type StoredPolicy,
} from '../../ledger/journal.ts'
import { isKeyText } from '../../keys/trust.ts'
import type { Confirmation } from '../../policy/active-policies.ts'
import { type Batch, movesOf } from './batch.ts'
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
import { ENTRY_ID_MAX, entriesBefore, entriesBetween } from './entry-blocks.ts'
import { JournalFile, type JournalLimits } from './journal-file.ts'
import { PAGE_BYTES } from './open-database.ts'
import { PendingCommits } from './pending-commits.ts'
import { type SealPlan, planSegment } from './plan-segment.ts'

/** Entries per search step: blocks commits for 1 to 2 ms. */
const SEARCHED_ENTRIES = 1_000

/** Entries after a rules change that may still have been decided by the old rules. */
const LATE_ENTRIES = 10_000

/** Newest ended sessions to keep. */
const ENDED_SESSIONS_MAX = 1_000

/** Rows deleted per cleanup, which runs between commits. */
const PRUNE_ROWS = 2_000

/** Blocks of entries deleted per cleanup. */
const PRUNE_BLOCKS = 32

/** One step of a search; `next` is where to continue, null at the end. */
export interface FoundEntry {
  readonly found: RecordedEntry | null
  readonly next: number | null
}

export class JournalStore implements JournalOperations {
  readonly file: JournalFile
  readonly commits: PendingCommits
  /** The agent's time at the current call, POSIX ms. */
  now = 0
  readonly #database: Database.Database
  readonly #limits: JournalLimits
  readonly #statements: JournalStatements
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
    this.file = new JournalFile(database, limits)
    this.commits = new PendingCommits(this.file, limits.answersMax)
  }

  read(): Snapshot {
    this.commits.fold()
    const state = this.#state()
    const accounts = new Map<AccountId, AccountState>()
    const openReservations = new Map<AccountId, Micro>()
    const burned = new Map<AccountId, Micro>()
    for (const row of this.#statements.accounts.all() as AccountRow[]) {
      const { granted, used, refunded, returned, allowance } = row
      const unlimited = row.unlimited === 1n
      if (!unlimited && used - refunded + returned > granted + allowance) {
        throw new Error(`invariant: ${row.id} is overspent`)
      }
      if (row.reserved > used) openReservations.set(row.id, row.reserved)
      if (row.burned > 0n) burned.set(row.id, row.burned)
      accounts.set(row.id, {
        granted,
        used,
        refunded,
        returned,
        exhausted: row.exhausted === 1n,
        unlimited,
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
      sessions: (this.#statements.sessions.all(ENDED_SESSIONS_MAX) as SessionRow[]).map(
        ({ ended, since, ...texts }) => ({
          ...texts,
          ended: ended === 1n,
          since: Number(since),
        }),
      ),
      unacknowledged: unacknowledged === undefined ? null : segmentOf(unacknowledged),
      lastSeq: Number(state.last_seq),
      clock: clockOf(state),
      salvages: (this.#statements.salvages.all() as SalvageRow[])
        .filter(({ file }) => existsSync(file))
        .map(({ at, file, why, salvaged_entries, lost_entries }) => ({
          at: Number(at),
          file,
          why,
          salvagedEntries: Number(salvaged_entries),
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

  append(batch: Batch): string {
    return this.commits.append(batch)
  }

  /** Prepares the text of the next segment for signing. */
  prepareSeal(request: SealRequest): string {
    this.#plan = null
    this.commits.fold()
    const identity = this.#identity()
    if (identity === null || this.#state().epoch === 0n) {
      throw new Error('invariant: only an attached device seals')
    }
    if (this.#statements.segmentInFlight.get() !== undefined) {
      throw new Error('invariant: one unacknowledged segment at most')
    }
    const { text, plan } = planSegment(this.#database, identity, request, this.#limits.segmentEntriesMax)
    this.#plan = plan
    return text
  }

  /** Stores the signed segment and the returns that it reports. */
  storeSeal(document: string): NewSegment {
    const plan = this.#plan
    if (plan === null) throw new Error('invariant: a segment is prepared before it is stored')
    const { epoch, seq, hash, final, isMoreToFollow, lastEntry, head } = plan
    this.commits.runWithDiskReserve(() => {
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
        const { id, epoch: earlier, sealedEntry, head: sealedHead, counted } = plan.undeliveredRange
        for (const account of counted) changedOne(this.#statements.sealCount.run(earlier, account))
        if (counted.length === 0) {
          changedOne(this.#statements.sealUndeliveredRange.run({ entry: sealedEntry, head: sealedHead, id }))
        }
      }
    })
    this.#plan = null
    return { epoch, seq, hash, document, final, answer: null, isMoreToFollow }
  }

  acknowledge(
    seq: number,
    grant: (StoredGrant & { readonly accounts: readonly GrantedAccount[] }) | null,
    confirmation: Confirmation | null,
    answer: StoredAnswer | null = null,
  ): void {
    this.commits.runWithDiskReserve(() => {
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
    // The acknowledgement is committed; if the disk is too full for cleanup, a later call repeats it.
    this.file.ifSpace(() => this.#prune(this.now))
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
    this.commits.runWithDiskReserve(() => {
      this.#statements.fence.run()
      this.#statements.closeReservations.run()
    })
  }

  attach(epoch: number, { isWhole, cloudEnd }: LeftEpoch = NOTHING_KNOWN): void {
    this.commits.runWithDiskReserve(() => {
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
    this.commits.runWithDiskReserve(() => {
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
    const unacknowledged = entriesBetween(this.#database, entry_base + acked_entry, entry_base + last_entry)
    for (const { account, used, refunded } of movesOf(unacknowledged.map(({ body }) => body)).values()) {
      changedOne(this.#statements.uncountUndeliveredRange.run(used, refunded, account))
    }
  }

  saveIdentity(identity: Identity): void {
    this.commits.runWithDiskReserve(() => this.#statements.saveIdentity.run(JSON.stringify(identity)))
  }

  savePolicy(
    policy: Omit<StoredPolicy, 'confirmedAt'>,
    keys: Pick<Identity, 'trustedKeys' | 'formerKeys'> | null,
  ): void {
    this.commits.runWithDiskReserve(() => {
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
    this.commits.run(() => this.#statements.saveClock.run(...stampValues(stamp)))
    this.file.refuseDiskReserve()
  }

  recent(limit: number): readonly EntryBodyWire[] {
    this.commits.fold()
    const found: EntryBodyWire[] = []
    if (limit === 0) return found
    for (const { body } of entriesBefore(this.#database, ENTRY_ID_MAX)) {
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
    this.commits.fold()
    const text = `"correlationId":"${correlationId}"`
    let searched = 0
    for (const { id, body, inputs } of entriesBefore(this.#database, before === null ? ENTRY_ID_MAX : BigInt(before))) {
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
    this.commits.runWithDiskReserve(() => {
      const { entry_base, last_entry, acked_entry } = this.#state()
      const owed = this.#statements.firstUndeliveredRange.get() as UndeliveredRangeRow | undefined
      // Keeps everything after the first undelivered entry of any epoch.
      const delivered = owed === undefined ? entry_base + acked_entry : owed.entry_base + owed.acked_entry
      const inUse = this.file.pagesInUse()
      const tight = this.file.hasDiskReserve ? inUse - BigInt(this.#limits.pagesMax) / 2n : inUse
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

  /** Folds pending commits, checkpoints the write-ahead log and closes the database. */
  close(): void {
    // On a full disk, they stay in slots for the next process.
    this.file.ifSpace(() => this.commits.fold())
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
    const { trustedKeys, formerKeys = [] } = identity
    if (!trustedKeys.every(isKeyText) || !formerKeys.every(isKeyText)) {
      throw new Error('invariant: the keys that the device trusts are public keys')
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
}

function changedOne({ changes }: { readonly changes: number }): void {
  if (changes !== 1) throw new Error('invariant: one row changes')
}
