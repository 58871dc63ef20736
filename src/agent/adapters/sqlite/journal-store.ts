/**
 * The journal over one open database: every method is one transaction, synchronous, and either happened when it returns
 * or did not when it throws. It re-checks on its own what must hold on disk (entries without gaps, no account used beyond
 * its grant and its allowance), so that a mistake above it ends the process and never becomes a balance.
 */
import { existsSync, statSync } from 'node:fs'
import type Database from 'better-sqlite3'
import type { AccountId } from '../../../core/account.ts'
import type { Micro } from '../../../core/amount.ts'
import { SESSION_REST_MS } from '../../../core/session.ts'
import {
  type EntryBodyWire,
  SEGMENT_ACCOUNTS_MAX,
  SEGMENT_BYTES_MAX,
  SEGMENT_COUNTERS_BYTES_MAX,
  SEGMENT_ENTRIES_BYTES_MAX,
  SEGMENT_ENTRIES_MAX,
  SEGMENT_SESSIONS_BYTES_MAX,
  SEGMENT_TEXT_MAX,
  type SegmentWire,
} from '../../../protocol/edge/sync.ts'
import { SEGMENT_SESSIONS_MAX, type SessionSnapshot } from '../../../protocol/edge/sessions.ts'
import { CHAIN_START, entryHash, sha256 } from '../../../protocol/signing.ts'
import { CodedError } from '../../../protocol/errors.ts'
import { counterBytesMax } from '../../app/counter-bytes.ts'
import type {
  AccountState,
  ClockStamp,
  Confirmation,
  GrantedAccount,
  Identity,
  LastAnswer,
  SealOrder,
  SealedSegment,
  Snapshot,
  StoredAnswer,
  StoredClock,
  StoredGrant,
  StoredPolicy,
} from '../../app/journal.ts'
import { segmentWants } from './segment-wants.ts'
import type { AccountMove, Batch, FoundEntry, JournalLimits, PreparedSeal } from './journal-calls.ts'

const PAGE_BYTES = 4096

/**
 * Frames of the write-ahead log after which it is copied into the database: 4 MiB. Nobody is answered meanwhile: a longer
 * log makes for longer waits, a shorter one for more flushes. On a full disk the slack must hold what has not been copied
 * yet, and the next segment.
 */
const CHECKPOINT_FRAMES = 1_000

/** Entries that one step of a search looks at: a millisecond or two, in which no commit can take place. */
const SEARCHED_ENTRIES = 2_000

/** Entries after the replacement of rules among which some may be that were decided by them and were on their way. */
const LATE_ENTRIES = 10_000

/** Ended sessions that are kept at most, the newest ones. */
const ENDED_SESSIONS_MAX = 1_000

/** Free pages that the database keeps: what comes next needs no growth of the file. 1 MiB. */
const FREE_PAGES_KEPT = 256n

/** Pages that one step gives back: a call that comes meanwhile waits for no more than this. 512 KiB. */
const SHRINK_PAGES = 128n

/** A write-ahead log that is longer than this is cut off when nothing else is to be done: 1 MiB. */
const LOG_BYTES_KEPT = 1024 * 1024

/** Rows that one clean-up deletes at most: it runs between commits. */
const PRUNE_ROWS = 2_000

interface StateRow {
  incarnation: bigint
  fenced: bigint
  entry_base: bigint
  last_entry: bigint
  entry_head: string
  sealed_entry: bigint
  sealed_head: string
  acked_entry: bigint
  acked_head: string
  last_seq: bigint
  segment_head: string
  grant_term: bigint | null
  grant_lifetime_ms: bigint | null
  grant_expires_at: bigint | null
  grant_aged_ms: bigint | null
  clock_boot_id: string | null
  clock_since_boot: bigint | null
  clock_earliest: bigint | null
  clock_latest: bigint | null
}

interface AccountRow {
  id: string
  granted: bigint
  used: bigint
  refunded: bigint
  returned: bigint
  exhausted: bigint
  unlimited: bigint
  overdraft: bigint
  metered: bigint
  reserved: bigint
  allowance: bigint
  burned: bigint
  sealed_used: bigint
  sealed_refunded: bigint
  sealed_returned: bigint
}

interface ArrearsRow {
  incarnation: bigint
  entry_base: bigint
  acked_entry: bigint
  sealed_entry: bigint
  sealed_head: string
  last_entry: bigint
  last_head: string
}

interface SegmentRow {
  incarnation: bigint
  seq: bigint
  hash: string
  document: string
  answer: string | null
  final: bigint
  last_entry_id: bigint
  state: 'UNACKNOWLEDGED' | 'ACKNOWLEDGED' | 'ABANDONED'
}

/** What {@link JournalStore.prepareSeal} has worked out and {@link JournalStore.storeSeal} makes durable. */
interface SealPlan {
  readonly incarnation: number
  readonly seq: number
  readonly hash: string
  readonly final: boolean
  readonly lastEntry: number
  readonly head: string
  readonly counters: ReadonlyMap<AccountId, SealedCounters>
  readonly returns: SealOrder['returns']
  readonly sessionIds: readonly string[]
  readonly arrears: { readonly incarnation: bigint; readonly sealedEntry: bigint; readonly head: string } | null
}

interface SealedCounters {
  used: Micro
  refunded: Micro
  returned: Micro
}

export class JournalStore {
  /**
   * Whether the disk still holds the space that is set aside. While it does not, free pages of the database take its
   * place: entries may not have the last of them, and nothing is kept but what is still to be delivered.
   */
  hasSlack = true
  readonly #database: Database.Database
  readonly #limits: JournalLimits
  readonly #statements: ReturnType<typeof prepareStatements>
  readonly #transaction: Database.Transaction<(work: () => unknown) => unknown>
  /** Sets the limit of the database to what entries may take; the other one, to what the last deliveries may take, too. */
  readonly #allowPages: Database.Statement
  readonly #allowPagesAndSlack: Database.Statement
  /** Slot of each application session, least recently used first. */
  #slots: Map<string, number>
  #plan: SealPlan | null = null
  /** What the cloud said of revisions that are still to be fetched. */
  readonly #confirmedAhead = new Map<string, { readonly revision: number; readonly time: number }>()

  constructor(database: Database.Database, limits: JournalLimits) {
    this.#database = database
    this.#limits = limits
    this.#statements = statementsOf(database)
    this.#transaction = database.transaction((work: () => unknown) => work())
    this.#slots = this.#readSlots()
    this.#allowPages = database.prepare(`PRAGMA max_page_count = ${limits.pagesMax}`)
    this.#allowPagesAndSlack = database.prepare(`PRAGMA max_page_count = ${limits.pagesMax + limits.slackPages}`)
    this.#allowPages.get()
  }

  read(): Snapshot {
    const state = this.#state()
    const accounts = new Map<AccountId, AccountState>()
    const openBlocks = new Map<AccountId, Micro>()
    const burned = new Map<AccountId, Micro>()
    for (const row of this.#statements.accounts.all() as AccountRow[]) {
      const { granted, used, refunded, returned } = row
      const flags = { exhausted: row.exhausted === 1n, unlimited: row.unlimited === 1n }
      const spent = used - refunded + returned
      const { allowance } = row
      if (row.metered === 0n && spent > granted + allowance) throw new Error(`invariant: ${row.id} is overspent`)
      if (row.reserved > used) openBlocks.set(row.id, row.reserved)
      if (row.burned > 0n) burned.set(row.id, row.burned)
      accounts.set(row.id, {
        ...{ granted: row.metered === 1n && spent > granted ? spent : granted, used, refunded, returned, ...flags },
        ...(allowance > 0n ? { allowance } : {}),
        ...(row.overdraft > 0n ? { overdraft: row.overdraft } : {}),
      })
    }
    const unacknowledged = this.#statements.segmentInFlight.get() as SegmentRow | undefined
    return {
      identity: this.#identity(),
      incarnation: Number(state.incarnation),
      highestIncarnation: Number(this.#statements.highestIncarnation.get()),
      fenced: state.fenced === 1n,
      accounts,
      grant: grantOf(state),
      policies: (this.#statements.policies.all() as PolicyRow[]).map(policyOf),
      lastEntry: Number(state.last_entry),
      entryHead: state.entry_head,
      openBlocks,
      burned,
      lastSealedEntry: Number(state.sealed_entry),
      arrears: Number(this.#statements.arrearsLeft.get()),
      lastAnswers: (this.#statements.answers.all() as AnswerRow[]).map(answerOf),
      sessions: (this.#statements.sessions.all() as SessionRow[]).map(({ ended, since, ...texts }) => ({
        ...texts,
        ended: ended === 1n,
        since: Number(since),
      })),
      unacknowledged: unacknowledged === undefined ? null : segmentOf(unacknowledged),
      lastSeq: Number(state.last_seq),
      clock: clockOf(state),
      rescues: (this.#statements.rescues.all() as RescueRow[])
        .filter(({ file }) => existsSync(file))
        .map(({ at, file, why, salvaged_entries, lost_entries }) => ({
          ...{ at: Number(at), file, why, salvagedEntries: Number(salvaged_entries) },
          lostEntries: lost_entries === null ? null : Number(lost_entries),
        })),
    }
  }

  /**
   * Looks at every entry that the cloud does not have, as the next segments will: a log that belongs to another state of the
   * file can leave a database in good order with holes in what it says.
   *
   * @throws Error for what could never be delivered
   */
  checkUndelivered(): void {
    const state = this.#state()
    const head = this.#chainOver(state.entry_base, state.sealed_entry, state.last_entry, state.sealed_head)
    if (head !== state.entry_head) throw new Error('invariant: the entries on disk fit their chain')
    for (const row of this.#statements.allArrears.all() as ArrearsRow[]) {
      const last = this.#chainOver(row.entry_base, row.sealed_entry, row.last_entry, row.sealed_head)
      if (last !== row.last_head) throw new Error('invariant: the arrears on disk fit their chain')
    }
  }

  /** Over the entries behind `from` up to `to`. */
  #chainOver(base: bigint, from: bigint, to: bigint, start: string): string {
    let head = start
    let n = from
    const rows = this.#statements.entriesBetween.iterate(base + from, base + to)
    for (const row of rows as Iterable<{ readonly n: bigint; readonly body: string }>) {
      n += 1n
      if (row.n !== n) break
      head = entryHash(head, row.body)
    }
    if (n !== to) throw new Error(`invariant: entry ${n} of ${to} that are to be delivered is followed by the next one`)
    return head
  }

  /** Returns the hash chain over all entries of the incarnation. */
  append({ firstN, bodies, facts, moves, answers, sessions, reservations, answered, stamp }: Batch): string {
    const run = <T>(work: () => T): T => (answered ? this.#runWithSlack(work) : this.#run(work))
    return run(() => {
      const state = this.#state()
      const nextN = bodies.length === 0 ? firstN : Number(state.last_entry) + 1
      if (firstN > nextN) throw new CodedError('NOT_RECORDED', 'an entry before it was not recorded')
      if (firstN < nextN) throw new Error('invariant: entries are numbered without gaps')
      if (state.incarnation === 0n || state.fenced === 1n) throw new Error('invariant: the incarnation is open')
      let head = state.entry_head
      let n = state.last_entry
      for (const [index, body] of bodies.entries()) {
        n += 1n
        head = entryHash(head, body)
        this.#statements.insertEntry.run(state.entry_base + n, n, body, facts[index] ?? null)
      }
      for (const move of moves) this.#move(move)
      for (const { account, usedUpTo } of reservations) changedOne(this.#statements.reserve.run(usedUpTo, account))
      for (const answer of answers) this.#storeAnswer(answer, state.entry_base + n)
      for (const { id, ended, since, document, snapshot } of sessions) {
        this.#statements.storeSession.run(id, ended ? 1 : 0, since, document, snapshot)
      }
      this.#statements.appended.run(n, head, ...stampValues(stamp))
      if (!answered) this.#refuseSlack()
      return head
    })
  }

  /** Works out the next segment: what it says is fixed from here on, whatever is appended before it is stored. */
  prepareSeal(order: SealOrder): PreparedSeal {
    this.#plan = null
    const state = this.#state()
    const identity = this.#identity()
    if (identity === null || state.incarnation === 0n) throw new Error('invariant: only an attached device seals')
    if (this.#statements.segmentInFlight.get() !== undefined) {
      throw new Error('invariant: one unacknowledged segment at most')
    }

    const arrears = this.#arrears()
    const entries = this.#sealable(state, order, arrears === null)
    let head = state.sealed_head
    for (const body of entries.bodies) head = entryHash(head, body)
    const lastEntry = Number(state.sealed_entry) + entries.bodies.length
    const isComplete = lastEntry === Number(state.last_entry)
    if (isComplete && head !== state.entry_head) throw new Error('invariant: the entries on disk fit their chain')
    const arrearsLeft = arrears?.left ?? 0
    const final = order.final && isComplete && entries.isAllTold && arrearsLeft === 0

    const seq = Number(state.last_seq) + 1
    const incarnation = Number(state.incarnation)
    const sessions = this.#unsealedSessions()
    const withoutWants: SegmentWire = {
      deviceId: identity.deviceId,
      incarnation,
      seq,
      previousHash: state.segment_head,
      salt: order.salt,
      bootId: order.bootId,
      clock: order.clock,
      counters: [...entries.counters].map(([account, { used, refunded, returned }]) => ({
        account,
        used: String(used),
        refunded: String(refunded),
        returned: String(returned),
      })),
      entries: {
        first: Number(state.sealed_entry) + 1,
        previousHash: state.sealed_head,
        head,
        bodies: [...entries.bodies],
      },
      arrears: arrears?.wire ?? null,
      backlog: Number(state.last_entry) - lastEntry + arrearsLeft,
      wants: [],
      policies: [...order.policies],
      sessions: sessions.map(({ snapshot }) => JSON.parse(snapshot) as SessionSnapshot),
      final,
    }
    const bytesLeft = SEGMENT_BYTES_MAX - Buffer.byteLength(JSON.stringify(withoutWants))
    const text = JSON.stringify({ ...withoutWants, wants: segmentWants(order.wants, bytesLeft) } satisfies SegmentWire)
    const hash = sha256(text)
    this.#plan = {
      incarnation,
      seq,
      hash,
      final,
      lastEntry,
      head,
      counters: entries.counters,
      returns: order.returns,
      sessionIds: sessions.map(({ id }) => id),
      arrears: arrears?.plan ?? null,
    }
    return { text }
  }

  /** Stores the prepared segment as signed, with the returns that it reports. */
  storeSeal(document: string, now: number): SealedSegment {
    const plan = this.#plan
    if (plan === null) throw new Error('invariant: a segment is prepared before it is stored')
    const { incarnation, seq, hash, final, lastEntry, head } = plan
    this.#runWithSlack(() => {
      const state = this.#state()
      for (const { account, amount } of plan.returns) {
        this.#statements.shorten.run(amount, account)
        this.#move({ account, used: 0n, refunded: 0n, returned: amount, burned: 0n, allowance: 0n })
      }
      for (const [account, { used, refunded, returned }] of plan.counters) {
        changedOne(this.#statements.sealAccount.run(used, refunded, returned, account))
      }
      const lastEntryId = state.entry_base + BigInt(lastEntry)
      const { lastInsertRowid } = this.#statements.insertSegment.run(
        incarnation,
        seq,
        hash,
        final ? 1 : 0,
        lastEntryId,
        now,
        Buffer.byteLength(document),
      )
      this.#statements.insertDocument.run(lastInsertRowid, document)
      for (const id of plan.sessionIds) changedOne(this.#statements.sealSession.run(id))
      this.#statements.sealed.run(lastEntry, head, seq, hash)
      if (plan.arrears !== null) {
        const { incarnation: earlier, sealedEntry, head: sealedHead } = plan.arrears
        changedOne(this.#statements.sealArrears.run(sealedEntry, sealedHead, earlier))
      }
    })
    this.#plan = null
    return { incarnation, seq, hash, document, final, answer: null }
  }

  acknowledge(
    seq: number,
    grant: (StoredGrant & { readonly accounts: readonly GrantedAccount[] }) | null,
    confirmation: Confirmation | null,
    answer: StoredAnswer | null,
    now: number,
  ): void {
    this.#runWithSlack(() => {
      const state = this.#state()
      if (seq > Number(state.last_seq)) throw new Error('invariant: only a sealed segment is acknowledged')
      const inFlight = this.#statements.segmentInFlight.get() as SegmentRow | undefined
      if (inFlight?.incarnation === state.incarnation && Number(inFlight.seq) === seq) {
        if (answer !== null) {
          this.#statements.storeReceipt.run(answer.retainUntil, seq, state.incarnation)
          this.#statements.storeAnswerOf.run(answer.document, seq, state.incarnation)
        }
        this.#statements.endSegment.run('ACKNOWLEDGED', now)
        this.#statements.acked.run()
        this.#statements.ackArrears.run()
        this.#statements.deleteArrears.run()
        this.#statements.settleAboveGrant.run()
      }
      if (grant !== null && (state.grant_term === null || grant.term > Number(state.grant_term))) {
        this.#grant(grant)
        if (answer !== null) {
          for (const { account } of grant.accounts) this.#statements.proveAccount.run(seq, state.incarnation, account)
        }
      }
      if (confirmation !== null) {
        for (const { instanceId, revision } of confirmation.policies) {
          this.#statements.confirmPolicy.run(confirmation.time, instanceId, revision)
          this.#confirmedAhead.set(instanceId, { revision, time: confirmation.time })
        }
      }
    })
    try {
      this.#prune(now)
    } catch (error) {
      // What is acknowledged is; a disk that is too full for cleaning up is cleaned up with a later one.
      if ((error as { code?: unknown }).code !== 'SQLITE_FULL') throw error
    }
  }

  sealed(seq: number): SealedSegment | null {
    const row = this.#statements.segment.get(this.#state().incarnation, seq) as SegmentRow | undefined
    return row === undefined ? null : segmentOf(row)
  }

  /** One answer for each account at most, the newest that names it. */
  proofs(): readonly string[] {
    return this.#statements.proofs.all() as string[]
  }

  fence(): void {
    this.#runWithSlack(() => {
      this.#statements.fence.run()
      this.#statements.closeBlocks.run()
    })
  }

  attach(incarnation: number, now: number): void {
    this.#runWithSlack(() => {
      const state = this.#state()
      if (incarnation <= Number(state.incarnation)) throw new Error('invariant: incarnations rise')
      this.#statements.endSegment.run('ABANDONED', now)
      this.#statements.unsealArrears.run()
      if (state.acked_entry < state.last_entry) this.#statements.insertArrears.run()
      this.#statements.deleteAccounts.run()
      // What the incarnation before has told may have gone the way of a fork.
      this.#statements.unsealSessions.run()
      this.#statements.attach.run({ incarnation, base: state.entry_base + state.last_entry, start: CHAIN_START })
    })
  }

  saveIdentity(identity: Identity): void {
    this.#runWithSlack(() => this.#statements.saveIdentity.run(JSON.stringify(identity)))
  }

  savePolicy(policy: Omit<StoredPolicy, 'confirmedAt'>, trustedKeys: readonly string[] | null): void {
    this.#runWithSlack(() => {
      const { instanceId, revision, document } = policy
      const ahead = this.#confirmedAhead.get(instanceId)
      const confirmedAt = ahead?.revision === revision ? ahead.time : 0
      this.#keepReplaced(instanceId, revision)
      this.#statements.savePolicy.run(instanceId, revision, document, confirmedAt)
      const identity = this.#identity()
      if (trustedKeys === null || identity === null) return
      this.#statements.saveIdentity.run(JSON.stringify({ ...identity, trustedKeys }))
    })
  }

  /** Rules that recorded decisions were made by are kept beside those that take their place. */
  #keepReplaced(instanceId: string, revision: number): void {
    const { entry_base, last_entry } = this.#state()
    this.#statements.keepPolicy.run(entry_base + last_entry, instanceId, revision)
    this.#statements.deleteLargePolicies.run(this.#limits.pastRulesBytesMax)
  }

  saveClock(stamp: ClockStamp): void {
    this.#run(() => this.#statements.saveClock.run(...stampValues(stamp)))
  }

  recent(limit: number): readonly EntryBodyWire[] {
    const bodies = this.#statements.recent.all(limit) as string[]
    return bodies.map((body) => JSON.parse(body) as EntryBodyWire)
  }

  /**
   * One step of a search for the newest entry with this correlation id.
   *
   * @param before id of an entry: only older ones are looked at; null for all
   */
  find(correlationId: string, before: number | null): FoundEntry {
    const top = before ?? Number.MAX_SAFE_INTEGER
    const least = this.#statements.searchedTo.get(top, SEARCHED_ENTRIES) as bigint | null
    if (least === null) return { found: null, next: null }
    const rows = this.#statements.search.all(least, top, `"correlationId":"${correlationId}"`) as EntryRow[]
    for (const { body, facts } of rows) {
      // The same text may stand in what an application sent along.
      const { correlationId: id, instanceId, policyRevision } = JSON.parse(body) as EntryBodyWire
      if (id !== correlationId) continue
      const known = { instanceId, revision: policyRevision }
      const rules = this.#statements.policyOf.get(known) as string | undefined
      const trustedKeys = this.#identity()?.trustedKeys ?? []
      return { found: { body, facts, rules: rules ?? null, trustedKeys }, next: null }
    }
    return { found: null, next: Number(least) }
  }

  /**
   * Forgets what is acknowledged: entries at once, but for the most recent ones (the segment holds them), segments after
   * the retention time, or when they hold more than their share of the disk, oldest first. A database that is half full,
   * or a disk that is full, keeps nothing but what is still to be delivered. A part of it per call.
   */
  #prune(now: number): void {
    this.#runWithSlack(() => {
      const { entry_base, last_entry, acked_entry } = this.#state()
      const owed = this.#statements.firstArrears.get() as ArrearsRow | undefined
      // Nothing behind the first entry that the cloud does not have is forgotten, whatever incarnation it is of.
      const delivered = owed === undefined ? entry_base + acked_entry : owed.entry_base + owed.acked_entry
      const inUse = this.#pagesInUse()
      const tight = this.hasSlack ? inUse - BigInt(this.#limits.pagesMax) / 2n : inUse
      const old = tight > 0n ? delivered : entry_base + last_entry - BigInt(this.#limits.recentEntries)
      this.#statements.deleteEntries.run(old < delivered ? old : delivered, PRUNE_ROWS)
      this.#statements.deletePolicies.run(LATE_ENTRIES)
      // A time in the future is that of a clock that has been set right since: the retention counts from now.
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

  /** Entries may not take what the last deliveries need, within the limit of the database and on the disk. */
  #refuseSlack(): void {
    const limit = BigInt(this.#limits.pagesMax)
    if ((this.#statements.pages.get() as bigint) > limit && this.#pagesInUse() > limit) {
      throw new CodedError('NOT_RECORDED', 'the ledger is full')
    }
    if (!this.hasSlack && (this.#statements.freePages.get() as bigint) < BigInt(this.#limits.slackPages)) {
      throw new CodedError('NOT_RECORDED', 'the disk is full')
    }
  }

  #pagesInUse(): bigint {
    return (this.#statements.pages.get() as bigint) - (this.#statements.freePages.get() as bigint)
  }

  /**
   * One small step towards a file that is no larger than what it holds. False when there is nothing (more) to do. While the
   * disk does not hold the space that is set aside, free pages take its place: twice of it stays, and so does the log.
   */
  shrink(): boolean {
    try {
      const kept = this.hasSlack ? FREE_PAGES_KEPT : FREE_PAGES_KEPT + 2n * BigInt(this.#limits.slackPages)
      const free = this.#statements.freePages.get() as bigint
      const over = free - kept
      if (over > 0n) {
        this.#database.pragma(`incremental_vacuum(${over < SHRINK_PAGES ? over : SHRINK_PAGES})`)
        this.#checkpointWhenDue()
        // A file that was made without the means to shrink stays as large as it is; its free pages are used again.
        if ((this.#statements.freePages.get() as bigint) < free) return true
      }
      if (this.hasSlack && this.#logBytes() > LOG_BYTES_KEPT) this.#statements.truncateLog.get()
    } catch (error) {
      // On a full disk there may be no room for making room: a later step finds it.
      if ((error as { code?: unknown }).code !== 'SQLITE_FULL') throw error
    }
    return false
  }

  #logBytes(): number {
    return statSync(`${this.#database.name}-wal`, { throwIfNoEntry: false })?.size ?? 0
  }

  /** Ends well: the write-ahead log is folded into the database. */
  close(): void {
    this.#database.close()
  }

  #state(): StateRow {
    return this.#statements.state.get() as StateRow
  }

  #identity(): Identity | null {
    const text = this.#statements.identity.get() as string | undefined
    return text === undefined ? null : (JSON.parse(text) as Identity)
  }

  #readSlots(): Map<string, number> {
    const rows = this.#statements.slots.all() as { session: string; slot: bigint }[]
    return new Map(rows.map(({ session, slot }) => [session, Number(slot)]))
  }

  #move({ account, used, refunded, returned, burned, allowance }: AccountMove): void {
    if (allowance > 0n) this.#statements.allow.run(account, allowance)
    const row = this.#statements.moveAccount.get(used, refunded, returned, burned, account) as AccountRow | undefined
    if (row === undefined) throw new Error(`invariant: ${account} is known`)
    if (row.metered === 0n && row.used - row.refunded + row.returned > row.granted + row.allowance) {
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
      const flag = unlimited ? 1 : 0
      this.#statements.grantAccount.run(account, granted, exhausted ? 1 : 0, flag, flag, overdraft)
    }
    this.#statements.grant.run(term, lifetimeMs, expiresAt, agedMs)
  }

  #storeAnswer(answer: LastAnswer, entryId: bigint): void {
    const { session, n, requestHash, status = 200, policyRevision } = answer
    const slot = this.#slots.get(session) ?? this.#freeSlot()
    // Claimed at once, so that the same batch does not give it away again; read back when the transaction fails.
    this.#slots.delete(session)
    this.#slots.set(session, slot)
    this.#statements.storeAnswer.run(slot, session, n, requestHash, answer.answer, status, policyRevision, entryId)
  }

  #freeSlot(): number {
    if (this.#slots.size < this.#limits.answersMax) return this.#slots.size
    const [oldest] = this.#slots
    if (oldest === undefined) throw new Error('invariant: there is at least one slot')
    this.#slots.delete(oldest[0])
    return oldest[1]
  }

  /** As many as a segment takes; the others go with the next. */
  #unsealedSessions(): readonly { readonly id: string; readonly snapshot: string }[] {
    const unsealed = this.#statements.unsealedSessions.all(SEGMENT_SESSIONS_MAX) as { id: string; snapshot: string }[]
    let length = 0
    return unsealed.filter(({ snapshot }, index) => {
      length += Buffer.byteLength(snapshot)
      return index === 0 || length <= SEGMENT_SESSIONS_BYTES_MAX
    })
  }

  /** Entries for one segment and the counters as of the last of them, within the limits of the wire. */
  #sealable(
    state: StateRow,
    { returns }: SealOrder,
    own: boolean,
  ): {
    readonly bodies: readonly string[]
    readonly counters: ReadonlyMap<AccountId, SealedCounters>
    /** No counter is left for a later segment, unless entries are. */
    readonly isAllTold: boolean
  } {
    const unsealed = this.#statements.unsealed.all(
      state.entry_base + state.sealed_entry,
      own ? SEGMENT_ENTRIES_MAX : 0,
    ) as string[]
    let count = fitting(unsealed)
    const isComplete = BigInt(count) === state.last_entry - state.sealed_entry
    for (;;) {
      const bodies = unsealed.slice(0, count)
      const isLast = isComplete && count === unsealed.length
      const moved = isLast ? this.#movedNow() : this.#countersAfter(bodies)
      if (countersFit(moved) || count <= 1) {
        const isAllTold = !isLast || this.#addReturned(moved, returns)
        return { bodies, counters: moved, isAllTold }
      }
      count >>= 1
    }
  }

  /** The next entries of an earlier incarnation; they go first, and by themselves. */
  #arrears(): {
    readonly wire: NonNullable<SegmentWire['arrears']>
    readonly plan: NonNullable<SealPlan['arrears']>
    /** Entries of it and of others that this segment leaves behind. */
    readonly left: number
  } | null {
    const row = this.#statements.nextArrears.get() as ArrearsRow | undefined
    if (row === undefined) return null
    const { incarnation, entry_base, sealed_entry, sealed_head, last_entry } = row
    const most =
      last_entry - sealed_entry < BigInt(SEGMENT_ENTRIES_MAX) ? Number(last_entry - sealed_entry) : SEGMENT_ENTRIES_MAX
    const unsealed = this.#statements.unsealed.all(entry_base + sealed_entry, most) as string[]
    const bodies = unsealed.slice(0, fitting(unsealed))
    let head = sealed_head
    for (const body of bodies) head = entryHash(head, body)
    const sealedEntry = sealed_entry + BigInt(bodies.length)
    if (bodies.length === 0) throw new Error('invariant: entries that are not delivered are kept')
    return {
      wire: {
        incarnation: Number(incarnation),
        entries: { first: Number(sealed_entry) + 1, previousHash: sealed_head, head, bodies },
        last: sealedEntry === last_entry,
      },
      plan: { incarnation, sealedEntry, head },
      left: Number(this.#statements.arrearsUnsealed.get()) - bodies.length,
    }
  }

  /** Of every account that was charged, or charged back, since the last segment, as they are. */
  #movedNow(): Map<AccountId, SealedCounters> {
    const rows = this.#statements.movedAccounts.all() as AccountRow[]
    return new Map(rows.map(({ id, used, refunded, returned }) => [id, { used, refunded, returned }]))
  }

  /**
   * What is given up by this segment, and what was before and is not told yet. Where there is no place for an account that
   * has nothing else to tell, the cloud hears of it with a later segment: until then it believes that the device holds more.
   *
   * @returns whether there was place for all of them
   */
  #addReturned(counters: Map<AccountId, SealedCounters>, returns: SealOrder['returns']): boolean {
    const told = new Map<AccountId, SealedCounters>()
    for (const { id, returned } of this.#statements.returnedAccounts.all() as AccountRow[]) {
      told.set(id, { ...this.#sealedCounters(id), returned })
    }
    for (const { account, amount } of returns) {
      const counted = counters.get(account) ?? told.get(account) ?? this.#sealedCounters(account)
      const more = { ...counted, returned: counted.returned + amount }
      if (counters.has(account)) counters.set(account, more)
      else told.set(account, more)
    }
    let bytes = countersBytes(counters.keys())
    for (const [account, counted] of told) {
      bytes += counterBytesMax(account)
      if (counters.size >= SEGMENT_ACCOUNTS_MAX || bytes > SEGMENT_COUNTERS_BYTES_MAX) return false
      counters.set(account, counted)
    }
    return true
  }

  /**
   * As the last segment and the entries after it make them: later entries are not in them. What is given up is told with
   * the segment that leaves nothing behind: it may come from a refund that is still to come.
   */
  #countersAfter(bodies: readonly string[]): Map<AccountId, SealedCounters> {
    const counters = new Map<AccountId, SealedCounters>()
    for (const body of bodies) {
      const { kind, postings } = JSON.parse(body) as EntryBodyWire
      for (const { account, amount } of postings) {
        let counted = counters.get(account)
        if (counted === undefined) {
          counted = this.#sealedCounters(account)
          counters.set(account, counted)
        }
        if (kind === 'refund') counted.refunded += BigInt(amount)
        else counted.used += BigInt(amount)
      }
    }
    return counters
  }

  #sealedCounters(account: AccountId): SealedCounters {
    const row = this.#statements.account.get(account) as AccountRow | undefined
    if (row === undefined) throw new Error(`invariant: ${account} is known`)
    return { used: row.sealed_used, refunded: row.sealed_refunded, returned: row.sealed_returned }
  }

  #run<T>(work: () => T): T {
    let result: T
    try {
      result = this.#transaction.immediate(work) as T
    } catch (error) {
      this.#slots = this.#readSlots()
      throw error
    }
    this.#checkpointWhenDue()
    return result
  }

  /** For what must also succeed on a full disk: it is let into the slack that entries may not touch. */
  #runWithSlack<T>(work: () => T): T {
    this.#allowPagesAndSlack.get()
    try {
      return this.#run(work)
    } finally {
      this.#allowPages.get()
    }
  }

  #checkpointWhenDue(): void {
    const [, frames] = this.#statements.checkpointSize.get() as readonly bigint[]
    if (frames !== undefined && frames >= CHECKPOINT_FRAMES) this.foldLog()
  }

  /**
   * Copies the write-ahead log into the database; what is copied is written over from then on. True when that is all of
   * it. A full disk leaves the log as it is. A failed flush is as fatal as in a commit: a second one could pass without
   * the pages being on the disk.
   */
  foldLog(): boolean {
    try {
      const { log, checkpointed } = this.#statements.checkpoint.get() as { log: bigint; checkpointed: bigint }
      return log === checkpointed
    } catch (error) {
      if ((error as { code?: unknown }).code === 'SQLITE_FULL') return false
      throw error
    }
  }
}

/** How many of these go into one segment: at least one. */
function fitting(bodies: readonly string[]): number {
  let count = 0
  let length = 0
  let bytes = 0
  for (const body of bodies) {
    length += body.length
    bytes += Buffer.byteLength(JSON.stringify(body)) + 1
    if (count > 0 && (length > SEGMENT_TEXT_MAX || bytes > SEGMENT_ENTRIES_BYTES_MAX)) break
    count += 1
  }
  return count
}

function countersFit(counters: ReadonlyMap<AccountId, SealedCounters>): boolean {
  return counters.size <= SEGMENT_ACCOUNTS_MAX && countersBytes(counters.keys()) <= SEGMENT_COUNTERS_BYTES_MAX
}

function countersBytes(accounts: Iterable<AccountId>): number {
  let bytes = 0
  for (const account of accounts) bytes += counterBytesMax(account)
  return bytes
}

interface RescueRow {
  at: bigint
  file: string
  why: string
  salvaged_entries: bigint
  lost_entries: bigint | null
}

interface EntryRow {
  body: string
  facts: string | null
}

interface PolicyRow {
  instance_id: string
  revision: bigint
  document: string
  confirmed_at: bigint
}

interface SessionRow {
  id: string
  ended: bigint
  since: bigint
  document: string
  snapshot: string
}

interface AnswerRow {
  session: string
  n: bigint
  request_hash: string
  body: string
  status: bigint
  policy_revision: bigint
}

/** By connection: whoever works with it next finds them prepared. */
const prepared = new WeakMap<Database.Database, ReturnType<typeof prepareStatements>>()

function statementsOf(database: Database.Database): ReturnType<typeof prepareStatements> {
  const statements = prepared.get(database) ?? prepareStatements(database)
  prepared.set(database, statements)
  return statements
}

function prepareStatements(database: Database.Database) {
  return {
    state: database.prepare('SELECT * FROM state'),
    identity: database.prepare('SELECT document FROM identity').pluck(),
    policies: database.prepare('SELECT instance_id, revision, document, confirmed_at FROM policy ORDER BY instance_id'),
    highestIncarnation: database
      .prepare('SELECT max(incarnation) FROM (SELECT incarnation FROM state UNION ALL SELECT incarnation FROM arrears)')
      .pluck(),
    rescues: database.prepare('SELECT * FROM rescue ORDER BY at'),
    accounts: database.prepare('SELECT * FROM account'),
    account: database.prepare('SELECT * FROM account WHERE id = ?'),
    movedAccounts: database.prepare('SELECT * FROM account WHERE used <> sealed_used OR refunded <> sealed_refunded'),
    returnedAccounts: database.prepare(
      `SELECT * FROM account
         WHERE used = sealed_used AND refunded = sealed_refunded AND returned <> sealed_returned`,
    ),
    answers: database.prepare(
      'SELECT session, n, request_hash, body, status, policy_revision FROM answer ORDER BY entry_id, slot',
    ),
    slots: database.prepare('SELECT session, slot FROM answer ORDER BY entry_id, slot'),
    nextArrears: database.prepare('SELECT * FROM arrears WHERE sealed_entry < last_entry ORDER BY incarnation LIMIT 1'),
    firstArrears: database.prepare('SELECT * FROM arrears ORDER BY incarnation LIMIT 1'),
    allArrears: database.prepare('SELECT * FROM arrears'),
    entriesBetween: database.prepare('SELECT n, body FROM entry WHERE id > ? AND id <= ? ORDER BY id'),
    arrearsLeft: database.prepare('SELECT coalesce(sum(last_entry - acked_entry), 0) FROM arrears').pluck(),
    arrearsUnsealed: database.prepare('SELECT coalesce(sum(last_entry - sealed_entry), 0) FROM arrears').pluck(),
    sealArrears: database.prepare('UPDATE arrears SET sealed_entry = ?, sealed_head = ? WHERE incarnation = ?'),
    ackArrears: database.prepare('UPDATE arrears SET acked_entry = sealed_entry, acked_head = sealed_head'),
    unsealArrears: database.prepare('UPDATE arrears SET sealed_entry = acked_entry, sealed_head = acked_head'),
    deleteArrears: database.prepare('DELETE FROM arrears WHERE acked_entry = last_entry'),
    insertArrears: database.prepare(
      `INSERT INTO arrears (incarnation, entry_base, acked_entry, acked_head, sealed_entry, sealed_head, last_entry,
           last_head)
         SELECT incarnation, entry_base, acked_entry, acked_head, acked_entry, acked_head, last_entry, entry_head
           FROM state`,
    ),
    proveAccount: database.prepare(
      'UPDATE account SET proof = (SELECT id FROM segment WHERE seq = ? AND incarnation = ?) WHERE id = ?',
    ),
    proofs: database
      .prepare(
        `SELECT answer FROM segment_document
           WHERE answer IS NOT NULL AND id IN (SELECT proof FROM account WHERE proof IS NOT NULL) ORDER BY id`,
      )
      .pluck(),
    storeReceipt: database.prepare('UPDATE segment SET retain_until = ? WHERE seq = ? AND incarnation = ?'),
    storeAnswerOf: database.prepare(
      'UPDATE segment_document SET answer = ? WHERE id = (SELECT id FROM segment WHERE seq = ? AND incarnation = ?)',
    ),
    segment: database.prepare(
      'SELECT * FROM segment JOIN segment_document USING (id) WHERE incarnation = ? AND seq = ?',
    ),
    segmentInFlight: database.prepare(
      "SELECT * FROM segment JOIN segment_document USING (id) WHERE state = 'UNACKNOWLEDGED'",
    ),
    unsealed: database.prepare('SELECT body FROM entry WHERE id > ? ORDER BY id LIMIT ?').pluck(),
    recent: database.prepare('SELECT body FROM entry ORDER BY id DESC LIMIT ?').pluck(),
    searchedTo: database
      .prepare('SELECT min(id) FROM (SELECT id FROM entry WHERE id < ? ORDER BY id DESC LIMIT ?)')
      .pluck(),
    search: database.prepare(
      'SELECT body, facts FROM entry WHERE id >= ? AND id < ? AND instr(body, ?) > 0 ORDER BY id DESC',
    ),
    policyOf: database
      .prepare(
        `SELECT document FROM policy WHERE instance_id = :instanceId AND revision = :revision
         UNION ALL SELECT document FROM past_policy WHERE instance_id = :instanceId AND revision = :revision LIMIT 1`,
      )
      .pluck(),
    keepPolicy: database.prepare(
      `INSERT OR IGNORE INTO past_policy (instance_id, revision, document, bytes, last_entry_id)
         SELECT instance_id, revision, document, length(document), ? FROM policy
           WHERE instance_id = ? AND revision <> ?`,
    ),
    // Of what no kept entry was decided by; with no entry at all, everything.
    deletePolicies: database.prepare(
      'DELETE FROM past_policy WHERE last_entry_id + ? < (SELECT coalesce(min(id), 9223372036854775807) FROM entry)',
    ),
    deleteLargePolicies: database.prepare(
      `DELETE FROM past_policy WHERE id IN (
         SELECT id FROM (SELECT id, sum(bytes) OVER (ORDER BY id DESC) AS total FROM past_policy) WHERE total > ?)`,
    ),
    insertEntry: database.prepare('INSERT INTO entry (id, n, body, facts) VALUES (?, ?, ?, ?)'),
    appended: database.prepare(
      `UPDATE state SET last_entry = ?, entry_head = ?, clock_boot_id = ?, clock_since_boot = ?, clock_earliest = ?,
         clock_latest = ?, grant_aged_ms = CASE WHEN grant_term IS NULL THEN NULL ELSE ? END`,
    ),
    saveClock: database.prepare(
      `UPDATE state SET clock_boot_id = ?, clock_since_boot = ?, clock_earliest = ?, clock_latest = ?,
         grant_aged_ms = CASE WHEN grant_term IS NULL THEN NULL ELSE ? END`,
    ),
    moveAccount: database.prepare(
      `UPDATE account SET used = used + ?, refunded = refunded + ?, returned = returned + ?, burned = burned + ?
         WHERE id = ?
         RETURNING granted, used, refunded, returned, metered, allowance`,
    ),
    allow: database.prepare(
      `INSERT INTO account (id, allowance) VALUES (?, ?)
         ON CONFLICT (id) DO UPDATE SET allowance = max(allowance, excluded.allowance)`,
    ),
    // The cloud has heard of the use that the segment tells of: it counts as granted, and the allowance starts anew.
    settleAboveGrant: database.prepare(
      `UPDATE account SET granted = max(granted, sealed_used - sealed_refunded + sealed_returned),
         allowance = CASE
           WHEN used - refunded + returned <= max(granted, sealed_used - sealed_refunded + sealed_returned) THEN 0
           ELSE allowance END
         WHERE allowance > 0`,
    ),
    reserve: database.prepare('UPDATE account SET reserved = ? WHERE id = ?'),
    // What is given up is no longer in the block; the use that is still on its way to the journal is below that.
    shorten: database.prepare(
      'UPDATE account SET reserved = min(reserved, granted - returned + refunded - ?) WHERE id = ? AND metered = 0',
    ),
    closeBlocks: database.prepare('UPDATE account SET reserved = used WHERE reserved > used'),
    grantAccount: database.prepare(
      `INSERT INTO account (id, granted, exhausted, unlimited, metered, overdraft) VALUES (?, ?, ?, ?, ?, ?)
         ON CONFLICT (id) DO UPDATE SET granted = max(granted, excluded.granted), exhausted = excluded.exhausted,
           unlimited = excluded.unlimited, metered = max(metered, excluded.metered), overdraft = excluded.overdraft`,
    ),
    grant: database.prepare(
      'UPDATE state SET grant_term = ?, grant_lifetime_ms = ?, grant_expires_at = ?, grant_aged_ms = ?',
    ),
    sealAccount: database.prepare(
      'UPDATE account SET sealed_used = ?, sealed_refunded = ?, sealed_returned = ? WHERE id = ?',
    ),
    sealed: database.prepare('UPDATE state SET sealed_entry = ?, sealed_head = ?, last_seq = ?, segment_head = ?'),
    insertSegment: database.prepare(
      `INSERT INTO segment (incarnation, seq, hash, final, last_entry_id, state, since, bytes)
         VALUES (?, ?, ?, ?, ?, 'UNACKNOWLEDGED', ?, ?)`,
    ),
    insertDocument: database.prepare('INSERT INTO segment_document (id, document) VALUES (?, ?)'),
    endSegment: database.prepare("UPDATE segment SET state = ?, since = ? WHERE state = 'UNACKNOWLEDGED'"),
    acked: database.prepare('UPDATE state SET acked_entry = sealed_entry, acked_head = sealed_head'),
    fence: database.prepare('UPDATE state SET fenced = 1'),
    deleteAccounts: database.prepare('DELETE FROM account'),
    attach: database.prepare(
      `UPDATE state SET incarnation = :incarnation, fenced = 0, entry_base = :base, last_entry = 0, entry_head = :start,
         sealed_entry = 0, sealed_head = :start, acked_entry = 0, acked_head = :start, last_seq = 0, segment_head = :start, grant_term = NULL,
         grant_lifetime_ms = NULL, grant_expires_at = NULL, grant_aged_ms = NULL`,
    ),
    saveIdentity: database.prepare(
      'INSERT INTO identity (only, document) VALUES (1, ?) ON CONFLICT (only) DO UPDATE SET document = excluded.document',
    ),
    savePolicy: database.prepare(
      `INSERT INTO policy (instance_id, revision, document, confirmed_at) VALUES (?, ?, ?, ?)
         ON CONFLICT (instance_id) DO UPDATE SET revision = excluded.revision, document = excluded.document,
           confirmed_at = excluded.confirmed_at`,
    ),
    confirmPolicy: database.prepare(
      'UPDATE policy SET confirmed_at = max(confirmed_at, ?) WHERE instance_id = ? AND revision = ?',
    ),
    storeAnswer: database.prepare(
      `INSERT OR REPLACE INTO answer (slot, session, n, request_hash, body, status, policy_revision, entry_id)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
    ),
    sessions: database.prepare('SELECT id, ended, since, document, snapshot FROM session ORDER BY since, id'),
    storeSession: database.prepare(
      `INSERT OR REPLACE INTO session (id, ended, since, document, snapshot, unsealed) VALUES (?, ?, ?, ?, ?, 1)`,
    ),
    unsealedSessions: database.prepare('SELECT id, snapshot FROM session WHERE unsealed = 1 ORDER BY id LIMIT ?'),
    sealSession: database.prepare('UPDATE session SET unsealed = 0 WHERE id = ?'),
    unsealSessions: database.prepare('UPDATE session SET unsealed = 1'),
    deleteSessions: database.prepare(
      `DELETE FROM session WHERE id IN (
         SELECT id FROM session WHERE ended = 1 AND unsealed = 0 AND since < :before LIMIT :most)`,
    ),
    deleteOldSessions: database.prepare(
      `DELETE FROM session WHERE id IN (
         SELECT id FROM session WHERE ended = 1 AND unsealed = 0 ORDER BY since DESC, id LIMIT -1 OFFSET ?)`,
    ),
    deleteEntries: database.prepare(
      'DELETE FROM entry WHERE id IN (SELECT id FROM entry WHERE id <= ? ORDER BY id LIMIT ?)',
    ),
    redateSegments: database.prepare("UPDATE segment SET since = :now WHERE since > :now AND state = 'ACKNOWLEDGED'"),
    // That the current incarnation is closed is known from its final segment alone: without it, another one would be sealed.
    deleteSegments: database.prepare(
      `DELETE FROM segment WHERE id IN (
         SELECT id FROM segment WHERE state <> 'UNACKNOWLEDGED' AND since < :before
           AND (retain_until IS NULL OR retain_until < :now)
           AND NOT (final = 1 AND incarnation = (SELECT incarnation FROM state))
           AND id NOT IN (SELECT proof FROM account WHERE proof IS NOT NULL) ORDER BY since LIMIT :most)`,
    ),
    segmentBytes: database.prepare("SELECT coalesce(sum(bytes), 0) FROM segment WHERE state = 'ACKNOWLEDGED'").pluck(),
    deleteOldestSegments: database.prepare(
      `DELETE FROM segment WHERE id IN (
         SELECT id FROM (
           SELECT id, sum(bytes) OVER (ORDER BY since, id) - bytes AS before FROM segment WHERE state = 'ACKNOWLEDGED')
         WHERE before < ?) AND NOT (final = 1 AND incarnation = (SELECT incarnation FROM state))`,
    ),
    pages: database.prepare('PRAGMA page_count').pluck(),
    freePages: database.prepare('PRAGMA freelist_count').pluck(),
    // As a list: SQLite prepares a PRAGMA again for each run, and a class for its rows would be compiled each time.
    checkpointSize: database.prepare('PRAGMA wal_checkpoint(NOOP)').raw(),
    checkpoint: database.prepare('PRAGMA wal_checkpoint(PASSIVE)'),
    truncateLog: database.prepare('PRAGMA wal_checkpoint(TRUNCATE)'),
  }
}

function stampValues({ clock, grantAgedMs }: ClockStamp): [string, number, number, number | null, number] {
  return [clock.bootId, Math.floor(clock.sinceBoot), clock.earliest, clock.latest, grantAgedMs]
}

function grantOf(state: StateRow): StoredGrant | null {
  if (state.grant_term === null) return null
  return {
    term: Number(state.grant_term),
    lifetimeMs: Number(state.grant_lifetime_ms),
    expiresAt: Number(state.grant_expires_at),
    agedMs: Number(state.grant_aged_ms),
  }
}

function clockOf(state: StateRow): StoredClock | null {
  if (state.clock_boot_id === null) return null
  return {
    bootId: state.clock_boot_id,
    sinceBoot: Number(state.clock_since_boot),
    earliest: Number(state.clock_earliest),
    latest: state.clock_latest === null ? null : Number(state.clock_latest),
  }
}

function policyOf(row: PolicyRow): StoredPolicy {
  return {
    instanceId: row.instance_id,
    revision: Number(row.revision),
    document: row.document,
    confirmedAt: Number(row.confirmed_at),
  }
}

function answerOf(row: AnswerRow): LastAnswer {
  return {
    session: row.session,
    n: Number(row.n),
    requestHash: row.request_hash,
    answer: row.body,
    ...(row.status === 200n ? {} : { status: Number(row.status) }),
    policyRevision: Number(row.policy_revision),
  }
}

function segmentOf(row: SegmentRow): SealedSegment {
  return {
    incarnation: Number(row.incarnation),
    seq: Number(row.seq),
    hash: row.hash,
    document: row.document,
    final: row.final === 1n,
    answer: row.answer,
  }
}

function changedOne({ changes }: { readonly changes: number }): void {
  if (changes !== 1) throw new Error('invariant: one row changes')
}
