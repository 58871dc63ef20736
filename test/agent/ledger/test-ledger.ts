// A ledger over a journal whose commits the test ends, at a time that the test moves.
import type { ClockStamp, GrantedAccount, PendingEntry, Snapshot } from '../../../src/agent/ledger/journal.ts'
import { Clock } from '../../../src/agent/runtime/clock.ts'
import type { Durability } from '../../../src/agent/ledger/commits.ts'
import { Ledger } from '../../../src/agent/ledger/ledger.ts'
import { ActivePolicies } from '../../../src/agent/policy/active-policies.ts'
import { type Posting, lineAccount } from '../../../src/core/accounts/account.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { entry, grantedAccount, policyInForce, snapshotWith } from '../harness.ts'
import { INSTANCE } from '../sync/fake-cloud.ts'
import { FakeTime } from '../sync/fake-time.ts'
import { policyWith } from '../sync/policies.ts'

/** The pool of the line item of {@link policyWith}. */
export const A = lineAccount(INSTANCE, 'line-1', 0)
export const DAY = 86_400_000

export const notRecorded = (): CodedError => new CodedError('NOT_RECORDED', 'the disk is full')

/** A journal whose commits the test ends, one by one. */
class BlockedJournal {
  readonly batches: { entries: readonly PendingEntry[]; end: (error?: Error) => void }[] = []
  readonly stamps: ClockStamp[] = []

  append(entries: readonly PendingEntry[], stamp: ClockStamp): Promise<void> {
    this.stamps.push(stamp)
    return new Promise((resolve, reject) => {
      this.batches.push({ entries, end: (error) => (error === undefined ? resolve() : reject(error)) })
    })
  }

  async saveClock(): Promise<void> {
    throw new Error('the ledger leaves that to others')
  }

  /** Accounts that are counted down again. */
  readonly limited: string[] = []

  refusesLimits = false

  async limit(accounts: readonly string[]): Promise<void> {
    if (this.refusesLimits) throw notRecorded()
    this.limited.push(...accounts)
  }
}

export class TestLedger {
  readonly time = new FakeTime()
  readonly clock: Clock
  readonly journal = new BlockedJournal()
  readonly activePolicies = new ActivePolicies()
  readonly ledger: Ledger
  readonly needs: number[] = []
  readonly fatal: unknown[] = []
  /** Postings of charges that the journal has. */
  readonly charged: Posting[] = []
  readonly #soon: (() => void)[] = []

  constructor(snapshot: Partial<Snapshot> = {}, batchEntries = 1_000_000) {
    this.clock = new Clock(this.time, snapshot.clock ?? null)
    this.ledger = new Ledger(
      {
        journal: this.journal,
        clock: this.clock,
        policies: this.activePolicies,
        startingGrant: 100n,
        batchEntries,
        defer: (call) => this.#soon.push(call),
        writeBehind: null,
        now: () => this.time.sinceBoot(),
        timers: this.time,
        onNeed: () => this.needs.push(this.ledger.lastEntry()),
        onCharged: (postings) => this.charged.push(...postings),
        onFatal: (error) => this.fatal.push(error),
      },
      snapshotWith(snapshot),
    )
  }

  grant(amounts: Record<string, bigint>, term = 1, more: Partial<GrantedAccount> = {}): void {
    this.ledger.applyGrant(this.#granted(amounts, term, more))
  }

  /** As far as a grant goes before it is stored. */
  prepare(amounts: Record<string, bigint>, term: number, more: Partial<GrantedAccount> = {}) {
    return this.ledger.prepareGrant(this.#granted(amounts, term, more))
  }

  #granted(amounts: Record<string, bigint>, term: number, more: Partial<GrantedAccount>) {
    return {
      term,
      lifetimeMs: DAY,
      expiresAt: this.time.truth() + DAY,
      agedMs: 0,
      accounts: Object.entries(amounts).map(([account, granted]) => ({ ...grantedAccount(account, granted), ...more })),
    }
  }

  left(account: string): bigint {
    return this.ledger.availableAt(this.clock.reading())(account).left
  }

  /** Records a charge; the promise is watched, so that a rejection is never unhandled. */
  charge(...postings: Posting[]): Promise<Durability> {
    return this.record(postings)
  }

  record(postings: readonly Posting[], changes: Partial<PendingEntry> = {}): Promise<Durability> {
    const done = this.ledger.record(entry(this.ledger.lastEntry() + 1, postings, changes))
    done.catch(() => undefined)
    return done
  }

  /** The moment is over: what was put off is done. */
  tick(): void {
    while (this.#soon.length > 0) for (const call of this.#soon.splice(0)) call()
  }

  async endBatch(error?: Error): Promise<void> {
    const batch = this.journal.batches.shift()
    if (batch === undefined) throw new Error('no batch is under way')
    batch.end(error)
    await new Promise((resolve) => setImmediate(resolve))
  }
}

/** Rules by which the overdraft of the line item is unlimited. */
export async function unlimitedRules(revision: number) {
  const { lineItems } = policyWith(revision)
  return policyInForce(revision, { lineItems: lineItems.map((item) => ({ ...item, overdraft: 'UNLIMITED' as const })) })
}

/** Rules by which the device may exceed its grants of these line items, up to the cap. */
export async function essentialRules(caps: Readonly<Record<string, bigint>>, ...normal: readonly string[]) {
  const [item] = policyWith(1).lineItems
  const essential = Object.entries(caps).map(([id, cap]) => {
    return { ...item!, id, offline: { policy: 'essential' as const, overspendCap: String(cap) } }
  })
  return policyInForce(1, { lineItems: [...essential, ...normal.map((id) => ({ ...item!, id }))] })
}
