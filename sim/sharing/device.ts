/** A device on a shared pool: the product's ledger and decisions, with instant syncs. */
import type { AccountId } from '../../src/core/accounts/account.ts'
import { type Micro, decimal } from '../../src/core/pricing/amount.ts'
import type { CompiledPolicy } from '../../src/core/rules/compile.ts'
import { type ClockReading, exactly } from '../../src/core/rules/decision.ts'
import { sumPostings } from '../../src/core/accounts/grant.ts'
import { Ledger } from '../../src/agent/ledger/ledger.ts'
import { topUpsOf, poolBalancesOf } from '../../src/agent/sync/top-ups.ts'
import { type PoolBalances, LocalDecisions, type WaitingTopUp } from '../../src/agent/access/local-decisions.ts'
import { ActivePolicies } from '../../src/agent/policy/active-policies.ts'
import { newLedger } from '../device/new-ledger.ts'
import type { Random } from '../world/random.ts'
import type { SharedCloud } from './cloud.ts'
import { ACCOUNT, BEGIN, INSTANCE, TOKEN } from './pool.ts'

export interface DeviceHabits {
  readonly name: string
  /** Per request; 0: no requests. */
  readonly tokens: number
  readonly everyMs: number
  readonly retryMs: number
  readonly offline?: readonly { readonly from: number; readonly until: number }[]
}

interface Site {
  readonly now: number
  readonly options: { readonly syncEveryMs: number; readonly horizonMs: number; readonly starting: number }
  readonly cloud: Pick<SharedCloud, 'sync'>
  readonly canPayAll: boolean
  readonly most: bigint
  after(ms: number, call: () => Promise<void> | void): () => void
}

export class SharingDevice {
  readonly name: string
  readonly habits: DeviceHabits
  readonly counts = { granted: 0, refused: 0 }
  /** Longest time a request was refused although the pool could pay all shortages, ms. */
  longestWaitMs = 0
  short: Micro = 0n
  readonly #site: Site
  readonly #random: Random
  readonly #ledger: Ledger
  readonly #decisions: LocalDecisions
  #refusedSince: number | null = null
  #recalled: ReadonlyMap<AccountId, Micro> = new Map()
  #round: Promise<unknown> = Promise.resolve()

  constructor(site: Site, habits: DeviceHabits, compiled: CompiledPolicy, random: Random) {
    this.#site = site
    this.habits = habits
    this.name = habits.name
    this.#random = random
    const activePolicies = new ActivePolicies()
    const { horizonMs: grantHorizonMs, starting } = site.options
    const { policy } = compiled
    activePolicies.put({
      document: {
        ...policy,
        instanceName: '',
        format: 1,
        engine: 1,
        oldestEngine: 1,
        lineItems: [],
        conditions: [],
        rateTables: [],
        issuedAt: BEGIN,
        usableForMs: 365 * 86_400_000,
        grantHorizonMs,
        sessionIntervalMs: 3_600_000,
        trustedKeys: [],
      },
      compiled,
    })
    const clock = {
      reading: (): ClockReading => exactly(site.now),
      sinceBoot: () => site.now - BEGIN,
      stored: () => ({ bootId: 'boot', sinceBoot: site.now - BEGIN, earliest: site.now, latest: site.now }),
    }
    this.#ledger = new Ledger(
      {
        journal: { append: async () => undefined, saveClock: async () => undefined, limit: async () => undefined },
        clock,
        policies: activePolicies,
        startingGrant: BigInt(starting) * TOKEN,
        writeBehind: null,
        defer: (call) => call(),
        now: () => site.now,
        timers: { after: (ms, call) => site.after(ms, call) },
        batchEntries: 1_000_000,
        onNeed: () => void site.after(0, () => this.sync()),
        onFatal: (error) => {
          throw error
        },
      },
      newLedger(),
    )
    this.#decisions = new LocalDecisions({
      ledger: this.#ledger,
      policies: activePolicies,
      clock,
      link: {
        requestGrant: (request) => (this.isConnected ? this.#rounds(request) : Promise.resolve(null)),
        status: () => ({ deviceId: this.name, policies: [{ instanceId: INSTANCE }] }),
      },
      topUpDeadlineMs: 2_000,
    })
  }

  get isConnected(): boolean {
    const at = this.#site.now - BEGIN
    return !(this.habits.offline ?? []).some(({ from, until }) => at >= from && at < until)
  }

  get balance(): Micro {
    return this.#ledger.availableAt(exactly(this.#site.now))(ACCOUNT).left
  }

  begin(): void {
    const { syncEveryMs } = this.#site.options
    this.#site.after(this.#random.whole(0, 1_000), () => this.#syncAgain(syncEveryMs))
    if (this.habits.tokens > 0) this.#askLater()
  }

  async notified(): Promise<void> {
    if (this.isConnected) await this.sync()
  }

  async sync(): Promise<void> {
    if (this.isConnected) await this.#rounds({ needs: [], accounts: [] })
  }

  async #syncAgain(everyMs: number): Promise<void> {
    await this.sync()
    this.#site.after(everyMs * (1 - this.#random.fraction() / 4), () => this.#syncAgain(everyMs))
  }

  #askLater(): void {
    const { everyMs } = this.habits
    this.#site.after(everyMs * (0.5 + this.#random.fraction()), () => this.#ask())
  }

  async #ask(): Promise<void> {
    const { tokens, retryMs } = this.habits
    const request = {
      requester: { type: 'user', value: this.name, dictionary: {} },
      items: [{ name: 'use', version: '', count: decimal(String(tokens)) }],
    }
    const isGranted = await this.#decisions.decide(
      { instanceId: INSTANCE, request, mode: 'BEST_EFFORT' },
      async ({ decision }) => {
        const n = this.#ledger.lastEntry() + 1
        const granted = decision.items.every(({ outcome }) => outcome === 'GRANTED')
        await this.#ledger.record({
          n,
          body: '{}',
          moves: 'used',
          postings: decision.postings,
          idempotencyRecord: null,
        })
        return granted
      },
    )
    this.#note(isGranted)
    if (isGranted) this.#askLater()
    else this.#site.after(retryMs, () => this.#ask())
  }

  /** Counts a refusal's duration only while the pool could pay all shortages. */
  #note(isGranted: boolean): void {
    const { now } = this.#site
    if (this.#refusedSince !== null) this.longestWaitMs = Math.max(this.longestWaitMs, now - this.#refusedSince)
    this.counts[isGranted ? 'granted' : 'refused'] += 1
    this.short = isGranted ? 0n : BigInt(this.habits.tokens) * TOKEN
    const isOwed = !isGranted && this.isConnected && this.#site.canPayAll && this.short <= this.#site.most
    this.#refusedSince = isOwed ? (this.#refusedSince ?? now) : null
  }

  #rounds(request: WaitingTopUp): Promise<PoolBalances> {
    const next = this.#round.then(() => this.#run(request, sumPostings(request.needs.flat())))
    this.#round = next
    return next
  }

  /** @param needed by the waiting request: not returned */
  async #run(request: WaitingTopUp, needed: ReadonlyMap<AccountId, Micro>): Promise<PoolBalances> {
    const returns = this.#ledger.giveUpSpare(this.#recalled, needed)
    const givenBack = new Set([...returns.map(({ account }) => account), ...this.#recalled.keys()])
    this.#recalled = new Map()
    const topUps = topUpsOf(this.#ledger.demand, request, givenBack, false)
    const held = new Map(this.#ledger.accounts()).get(ACCOUNT)
    const { used = 0n, refunded = 0n, returned = 0n } = held ?? {}
    const { grant, recalls } = await this.#site.cloud.sync(this.name, { used, refunded, returned, ...topUps })
    this.#ledger.applyGrant({ ...grant, term: this.#nextTerm(), agedMs: 0 })
    this.#recalled = new Map(recalls.map(({ account, keep }) => [account, keep]))
    if (this.#ledger.demand.hasSpare(this.#recalled, needed)) await this.#run({ needs: [], accounts: [] }, needed)
    return poolBalancesOf(grant)
  }

  #term = 0
  #nextTerm(): number {
    return (this.#term += 1)
  }
}
