/**
 * A decision is made and recorded in one synchronous block on the balances in memory; entries that arrive during a
 * commit form the next one. Entries that the journal rejects are undone with all later ones. No entry may be answered
 * before its promise resolves.
 */
import { type AccountId, type Posting, parseAccount } from '../../core/accounts/account.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import type { ClockReading } from '../../core/rules/decision.ts'
import { sumPostings } from '../../core/accounts/grant.ts'
import { type Policy, isUnlimitedBy } from '../../core/rules/policy.ts'
import { SEGMENT_ACCOUNTS_MAX, SEGMENT_COUNTERS_BYTES_MAX } from '../../protocol/edge/sync.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { AgentStatusWire } from '../../protocol/local/status.ts'
import { Balances, type FiniteBalance } from './balances.ts'
import { Commits, type Decided, type Durability } from './commits.ts'
import { Demand, type DemandDeps } from './demand.ts'
import type {
  AccountState,
  ClockStamp,
  GrantedAccount,
  Journal,
  PendingEntry,
  Snapshot,
  StoredGrant,
  ReceivedGrant,
} from './journal.ts'
import { NewRequesters } from './new-requesters.ts'
import type { StoredClock } from '../runtime/clock.ts'
import type { Timers } from '../runtime/timers.ts'
import type { WriteBehindDeps } from './write-behind.ts'

/** Limits of the accounts returned in one segment; more follow with the next one. */
const RETURNS_MAX = { accounts: SEGMENT_ACCOUNTS_MAX / 2, bytes: SEGMENT_COUNTERS_BYTES_MAX / 2 }

export interface LedgerDeps extends DemandDeps {
  readonly journal: Pick<Journal, 'append' | 'saveClock' | 'limit'>
  readonly clock: { reading(): ClockReading; sinceBoot(): number; stored(): StoredClock }
  readonly writeBehind: WriteBehindDeps | null
  readonly defer: (call: () => void) => void
  /** Monotonic, ms. */
  readonly now: () => number
  readonly timers: Timers
  readonly batchEntries: number
  /** An account has reached its low-water mark, or enough entries wait for delivery. */
  readonly onNeed: () => void
  /** These charges are in the journal. */
  readonly onCharged?: (postings: readonly Posting[]) => void
  /** Called just before recording stops in this epoch; may still record synchronously. */
  readonly beforeFreeze?: () => void
  /** A write has an unknown outcome: the process must end and reopen. Nothing more is recorded. */
  readonly onFatal: (error: unknown) => void
}

/** Entries can be recorded only while ATTACHED. FROZEN: fenced or being closed. */
export type LedgerStatus = 'ATTACHED' | 'NOT_ATTACHED' | 'FROZEN' | 'BROKEN'

type Refund = ReadonlyMap<AccountId, Micro>
export type FiniteBalanceOf = (account: AccountId) => FiniteBalance

export interface Overspend {
  /** By account, the part of the charge that exceeds the grant and the refund recorded with it. */
  readonly above: ReadonlyMap<AccountId, Micro>
  readonly allowances: ReadonlyMap<AccountId, Micro>
}

export interface ChargeableAboveGrant {
  readonly of: FiniteBalanceOf
  readonly overspendOf: (postings: readonly Posting[]) => Overspend
}

export class Ledger {
  readonly demand: Demand
  readonly newRequesters: NewRequesters
  readonly #deps: LedgerDeps
  readonly #balances: Balances
  /** Have a limit again, but are still unlimited in the journal. */
  readonly #limited = new Set<AccountId>()
  #deviceId: string | null
  #epoch: number
  #frozen: boolean
  #broken = false
  #grant: StoredGrant | null
  /** Boot-time reading to which the grant's age belongs. */
  #agedAt: number
  #lastEntry: number
  /** The last entry decided before the grant arrived. */
  #grantedAfter: number
  readonly #burned: ReadonlyMap<AccountId, Micro>
  readonly #commits: Commits

  constructor(deps: LedgerDeps, snapshot: Snapshot) {
    this.#deps = deps
    this.#balances = new Balances(snapshot.accounts)
    this.demand = new Demand(deps, this.#balances)
    this.newRequesters = new NewRequesters(this.#balances, deps.clock)
    this.#deviceId = snapshot.identity?.deviceId ?? null
    this.#epoch = snapshot.epoch
    this.#frozen = snapshot.fenced
    this.#grant = snapshot.grant
    this.#lastEntry = snapshot.lastEntry
    this.#grantedAfter = snapshot.lastEntry
    this.#burned = snapshot.burned
    const { journal, writeBehind, defer, now, timers } = deps
    this.#commits = new Commits(
      {
        journal,
        writeBehind,
        defer,
        now,
        timers,
        spendableOf: (account) => this.#balances.spendableOf(account),
        stamp: () => this.stamp(),
        owner: () => ({ deviceId: this.#deviceId, epoch: this.#epoch }),
        onRecorded: this.#onRecorded,
        onLost: this.#onLost,
        onBroken: (error) => {
          this.#broken = true
          deps.onFatal(error)
        },
      },
      { n: snapshot.lastEntry, head: snapshot.entryHead },
    )
    // In the same boot the time in between counts; after a reboot, the whole time since boot.
    const { clock } = deps
    const sinceBoot = clock.sinceBoot()
    const sameBoot = snapshot.clock?.bootId === clock.stored().bootId && snapshot.clock.sinceBoot <= sinceBoot
    this.#agedAt = sameBoot ? snapshot.clock.sinceBoot : 0
  }

  status(): LedgerStatus {
    if (this.#broken) return 'BROKEN'
    if (this.#epoch === 0) return 'NOT_ATTACHED'
    return this.#frozen ? 'FROZEN' : 'ATTACHED'
  }

  /** @throws CodedError STOPPING, NOT_ATTACHED */
  requireAttached(): void {
    const status = this.status()
    if (status === 'ATTACHED') return
    throw status === 'BROKEN'
      ? new CodedError('STOPPING', 'the agent is about to start again')
      : new CodedError('NOT_ATTACHED', 'the device must attach to the cloud first')
  }

  epoch(): number {
    return this.#epoch
  }

  /** Last entry decided in this epoch, durable or not; 0: none. */
  lastEntry(): number {
    return this.#lastEntry
  }

  accounts(): Iterable<readonly [AccountId, AccountState]> {
    return this.#balances.all()
  }

  grant(): StoredGrant | null {
    return this.#grant === null ? null : { ...this.#grant, agedMs: this.#age(this.#deps.clock.sinceBoot()) }
  }

  grantStatus(reading: ClockReading): AgentStatusWire['grant'] {
    if (this.#grant === null) return null
    const { term, expiresAt } = this.#grant
    return { term, expiresAt, remainingMs: Math.max(0, this.#remainingMs(this.#grant, reading)) }
  }

  /** Valid until the next record or await; an expired grant provides nothing. @param refund recorded with the charge */
  availableAt(reading: ClockReading, refund: Refund = NO_REFUND): FiniteBalanceOf {
    if (this.hasExpired(reading)) return this.#availableExpired
    return refund.size === 0 ? this.#available : (account) => this.#balances.availableOf(account, refund.get(account))
  }

  /** For a decision that is to be recorded. @throws CodedError STOPPING, NOT_ATTACHED */
  chargeable(reading: ClockReading, refund: Refund = NO_REFUND): FiniteBalanceOf {
    this.requireAttached()
    return this.availableAt(reading, refund)
  }

  /** While the cloud is out of reach: essential line items may exceed the grant, up to their cap over all periods. */
  chargeableAboveGrant(reading: ClockReading, policy: Policy, refund: Refund): ChargeableAboveGrant {
    const availableOf = this.chargeable(reading, refund)
    const caps = overspendCapsOf(policy)
    const capOf = (account: AccountId): Micro => {
      const parsed = parseAccount(account)
      return parsed?.instanceId === policy.instanceId ? (caps.get(parsed.lineItemId) ?? 0n) : 0n
    }
    const leftOf = (account: AccountId) => this.#balances.availableOf(account, refund.get(account)).left
    return {
      of: (account) => {
        const balance = availableOf(account)
        const cap = capOf(account)
        if (cap === 0n) return balance
        // An expired balance is spent before overspend.
        const left = leftOf(account)
        const owed = this.#overspendWith(account, refund)
        const most = this.#balances.countableOf(account, left + (cap > owed ? cap - owed : 0n))
        return { ...balance, overspend: most - balance.left }
      },
      overspendOf: (postings) => {
        const above = new Map<AccountId, Micro>()
        const allowances = new Map<AccountId, Micro>()
        for (const { account, amount } of postings) {
          const left = leftOf(account)
          if (amount <= left) continue
          above.set(account, amount - left)
          const cap = capOf(account)
          if (cap > 0n) allowances.set(account, cap)
        }
        return { above, allowances }
      },
    }
  }

  /** Whether use above the grants is not granted by the cloud yet. */
  hasOverspend(): boolean {
    for (const [, { allowance }] of this.#balances.all()) if ((allowance ?? 0n) > 0n) return true
    return false
  }

  /** Call when the cloud's grants cover the overspend. */
  settleAboveGrant(): void {
    this.#balances.settle()
  }

  #overspendWith(account: AccountId, refund: Refund): Micro {
    const own = parseAccount(account)
    if (own?.kind !== 'line') return this.#balances.overspendOf(account, refund.get(account))
    let sum = 0n
    for (const [other] of this.#balances.all()) {
      const parsed = parseAccount(other)
      const isSame = parsed?.kind === 'line' && parsed.lineItemId === own.lineItemId
      if (isSame && parsed.instanceId === own.instanceId) sum += this.#balances.overspendOf(other, refund.get(other))
    }
    return sum
  }

  hasExpired(reading: ClockReading): boolean {
    return this.#grant !== null && this.#remainingMs(this.#grant, reading) < 0
  }

  /**
   * Uses the latest possible time, or powered-on time whatever the clock says. With an unbounded clock only powered-on
   * time counts, so that a board without a battery can spend its grants right after boot.
   */
  #remainingMs({ expiresAt, lifetimeMs }: StoredGrant, { earliest, latest }: ClockReading): number {
    return Math.min(expiresAt - (latest ?? earliest), lifetimeMs - this.#age(this.#deps.clock.sinceBoot()))
  }

  readonly #available: FiniteBalanceOf = (account) => this.#balances.availableOf(account)

  readonly #availableExpired: FiniteBalanceOf = (account): FiniteBalance => {
    const balance = this.#balances.availableOf(account)
    const isFinal = balance.shortage === 'POOL' || balance.shortage === 'COUNTER'
    return isFinal && balance.left === 0n ? balance : { left: 0n, shortage: 'GRANT_EXPIRED' }
  }

  /**
   * Charges an entry at once; `n` must be {@link Ledger.lastEntry} + 1. Resolves when it may be answered. Rejects with
   * NOT_RECORDED when it was certainly not recorded, and undoes it.
   */
  record(entry: PendingEntry): Promise<Durability> {
    if (this.status() !== 'ATTACHED') {
      return Promise.reject(new CodedError('NOT_ATTACHED', 'nothing can be recorded at the moment'))
    }
    if (entry.n !== this.#lastEntry + 1) throw new Error('invariant: entries are numbered without gaps')
    const low = entry.moves === 'used' && entry.postings.length > 0 && this.#charge(entry.postings, entry.allowances)
    this.#lastEntry = entry.n
    if (low || entry.n % this.#deps.batchEntries === 0) this.#deps.onNeed()
    const later = entry.moves === 'refunded' ? entry.postings : NOTHING
    return this.#commits.add({ entry, atOnce: NOTHING, later })
  }

  get durability(): Commits['durability'] {
    return this.#commits.durability
  }

  burnedOf(account: AccountId): Micro {
    return this.#burned.get(account) ?? 0n
  }

  /**
   * Records several entries in one transaction. A charge among them may spend a refund among them; other charges only
   * once it is durable.
   */
  async recordTogether(entries: readonly PendingEntry[]): Promise<void> {
    this.requireAttached()
    for (const [index, { n }] of entries.entries()) {
      if (n !== this.#lastEntry + 1 + index) throw new Error('invariant: entries are numbered without gaps')
    }
    const spendable = sumPostings(postingsOf(entries, 'refunded'))
    const spent = sumPostings(postingsOf(entries, 'used'))
    const atOnce: Posting[] = []
    for (const [account, back] of spendable) {
      const charged = spent.get(account) ?? 0n
      const amount = back < charged ? back : charged
      if (amount > 0n) atOnce.push({ account, amount })
    }
    const later = minus(spendable, atOnce)
    this.#balances.refund(atOnce)
    const postings = [...spent].map(([account, amount]) => ({ account, amount }))
    let low = false
    try {
      low = postings.length > 0 && this.#charge(postings, allowancesIn(entries))
    } catch (error) {
      // The refund was not recorded either.
      this.#balances.unrefund(atOnce)
      throw error
    }
    this.#lastEntry += entries.length
    if (low || crosses(this.#lastEntry, entries.length, this.#deps.batchEntries)) this.#deps.onNeed()
    const recorded = entries.map((entry, index) => {
      const isFirst = index === 0
      return this.#commits.add({ entry, atOnce: isFirst ? atOnce : NOTHING, later: isFirst ? later : NOTHING })
    })
    await Promise.all(recorded)
  }

  /**
   * Stops recording until {@link Ledger.begin}: an entry after the final segment could never be delivered. Resolves when
   * every earlier entry is in the journal or undone.
   */
  async freeze(): Promise<void> {
    if (this.status() === 'ATTACHED') this.#deps.beforeFreeze?.()
    this.#frozen = true
    await this.settled()
    this.#commits.forgetReservations()
  }

  settled(): Promise<void> {
    return this.#commits.settled()
  }

  /** Resolves when the entries answered so far are in the journal, or when the journal rejects them. */
  flushed(): Promise<void> {
    return this.#commits.flushed()
  }

  /** Resolves when an entry with this correlation id, if there is one, is in the journal or undone. */
  async reached(correlationId: string): Promise<void> {
    // A commit before its time makes callers wait.
    if (this.#commits.hasPending(`"${correlationId}"`)) await this.#commits.drained()
  }

  /** Resolves when no entry is pending and nothing is reserved: a power cut then costs nothing. */
  close(): Promise<void> {
    return this.#commits.close()
  }

  stop(): void {
    this.#commits.stop()
  }

  /** Raises `returned` in memory by all balances, and returns the amounts. */
  returnUnused(): readonly Posting[] {
    const returns = this.#balances.giveUp(RETURNS_MAX)
    this.#commits.shorten(returns.map(({ account }) => account))
    return returns
  }

  /** Returns what {@link Demand.keeps} leaves over. @param needed by waiting requests: excluded */
  giveUpSpare(recalled: ReadonlyMap<AccountId, Micro>, needed: ReadonlyMap<AccountId, Micro>): readonly Posting[] {
    const returns = this.#balances.giveUpAbove(this.demand.keeps(recalled, needed), RETURNS_MAX)
    this.#commits.shorten(returns.map(({ account }) => account))
    return returns
  }

  /** Undoes {@link Ledger.returnUnused} when the journal did not record it. */
  takeBackUnused(returns: readonly Posting[]): void {
    this.#balances.takeBack(returns)
  }

  /** Counts the accounts that the grant limits: in memory at once, in the journal after all earlier entries. */
  async prepareGrant<T extends { readonly accounts: readonly GrantedAccount[] }>(grant: T): Promise<T> {
    const accounts = grant.accounts.map((each) => {
      return each.unlimited && !this.demand.isUnlimited(each.account) ? { ...each, unlimited: false } : each
    })
    await this.#limit(accounts.filter(({ unlimited }) => !unlimited).map(({ account }) => account))
    return { ...grant, accounts }
  }

  /** Counts the accounts that new rules limit, whatever was granted before. */
  async prepareRules(policy: Policy): Promise<void> {
    const limited: AccountId[] = []
    for (const [account, { unlimited }] of this.#balances.all()) {
      const isOwn = unlimited && parseAccount(account)?.instanceId === policy.instanceId
      if (isOwn && !isUnlimitedBy(policy, account)) limited.push(account)
    }
    await this.#limit(limited)
  }

  async #limit(accounts: readonly AccountId[]): Promise<void> {
    for (const account of this.#balances.limit(accounts)) this.#limited.add(account)
    if (this.#limited.size === 0) return
    this.#commits.endReservations(this.#limited)
    if (!(await this.#commits.drained())) throw new CodedError('NOT_RECORDED', 'entries wait for the disk')
    await this.#deps.journal.limit([...this.#limited])
    this.#limited.clear()
    // Reports the use so far, and requests tokens for later use.
    this.#deps.onNeed()
  }

  receivedGrant(): ReceivedGrant | null {
    return this.#grant === null ? null : { term: this.#grant.term, lastEntry: this.#grantedAfter }
  }

  /** Call when the grant is durable. Ignores an older term. */
  applyGrant(grant: StoredGrant & { readonly accounts: readonly GrantedAccount[] }): void {
    if (this.#grant !== null && grant.term <= this.#grant.term) return
    const { term, lifetimeMs, expiresAt, agedMs } = grant
    this.#grant = { term, lifetimeMs, expiresAt, agedMs }
    this.#grantedAfter = this.#lastEntry
    this.#agedAt = this.#deps.clock.sinceBoot()
    this.#balances.grant(grant.accounts)
  }

  /** Call when the new epoch is in the journal: counters start at 0, entries at 1. */
  begin(deviceId: string, epoch: number): void {
    if (epoch <= this.#epoch) throw new Error('invariant: epochs rise')
    if (!this.#commits.isSettled) throw new Error('invariant: the ledger was frozen before')
    this.#deviceId = deviceId
    this.#epoch = epoch
    this.#frozen = false
    this.#grant = null
    this.#lastEntry = 0
    this.#balances.clear()
    this.#limited.clear()
    this.#commits.begin()
    this.demand.begin()
    this.newRequesters.begin()
  }

  stamp(): ClockStamp {
    const clock = this.#deps.clock.stored()
    return { clock, grantAgedMs: this.#grant === null ? 0 : this.#age(clock.sinceBoot) }
  }

  #age(sinceBoot: number): number {
    if (this.#grant === null) return 0
    return Math.floor(this.#grant.agedMs + Math.max(0, sinceBoot - this.#agedAt))
  }

  #charge(postings: readonly Posting[], allowances?: ReadonlyMap<AccountId, Micro>): boolean {
    const low = this.#balances.charge(postings, allowances)
    this.demand.charged(postings)
    return low
  }

  readonly #onRecorded = (decided: readonly Decided[]): void => {
    for (const { entry, later } of decided) {
      if (later.length > 0) this.#balances.refund(later)
      if (entry.moves === 'used') this.#deps.onCharged?.(entry.postings)
    }
  }

  readonly #onLost = (decided: readonly Decided[]): void => {
    for (const { entry, atOnce } of decided.toReversed()) {
      if (entry.moves === 'used') this.#balances.uncharge(entry.postings)
      this.#balances.unrefund(atOnce)
    }
    this.#lastEntry -= decided.length
    this.#grantedAfter = Math.min(this.#grantedAfter, this.#lastEntry)
  }
}

function allowancesIn(entries: readonly PendingEntry[]): ReadonlyMap<AccountId, Micro> {
  const widest = new Map<AccountId, Micro>()
  for (const { allowances = [] } of entries) {
    for (const [account, allowance] of allowances) {
      if (allowance > (widest.get(account) ?? 0n)) widest.set(account, allowance)
    }
  }
  return widest
}

function overspendCapsOf({ lineItems }: Policy): ReadonlyMap<string, Micro> {
  const caps = new Map<string, Micro>()
  for (const { id, offline } of lineItems) if (offline?.policy === 'essential') caps.set(id, offline.overspendCap)
  return caps
}

const NOTHING: readonly Posting[] = []
const NO_REFUND: Refund = new Map()

function* postingsOf(entries: readonly PendingEntry[], moves: PendingEntry['moves']): Generator<Posting> {
  for (const entry of entries) if (entry.moves === moves) yield* entry.postings
}

function minus(sums: ReadonlyMap<AccountId, Micro>, less: readonly Posting[]): readonly Posting[] {
  const taken = new Map(less.map(({ account, amount }) => [account, amount]))
  return [...sums]
    .map(([account, amount]): Posting => ({ account, amount: amount - (taken.get(account) ?? 0n) }))
    .filter(({ amount }) => amount > 0n)
}

/** Whether a multiple of `step` is among the last `count` numbers up to `last`. */
function crosses(last: number, count: number, step: number): boolean {
  return Math.floor(last / step) > Math.floor((last - count) / step)
}
