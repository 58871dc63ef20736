/**
 * Simulates how devices and the cloud share one pool, with the product's ledger, decisions, grants and recalls. No
 * disks, signatures or faults: messages arrive at once or not at all.
 */
import { setImmediate as nextTurn } from 'node:timers/promises'
import { decimal } from '../../src/core/pricing/amount.ts'
import { compilePolicy } from '../../src/core/rules/compile.ts'
import { available } from '../../src/core/accounts/grant.ts'
import type { Policy } from '../../src/core/rules/policy.ts'
import { SharedCloud, type SharingDefect } from './cloud.ts'
import { SharingDevice, type DeviceHabits } from './device.ts'
import { BEGIN, INSTANCE, LINE_ITEM, TOKEN } from './pool.ts'
import { Random } from '../world/random.ts'

const YEAR_MS = 365 * 86_400_000

export interface SharingOptions {
  readonly seed: number
  readonly quantity: number
  readonly syncEveryMs: number
  readonly horizonMs: number
  /** Tokens requested in advance before any use. */
  readonly starting: number
  /** Delay of a change notification, ms; null: no push. */
  readonly pushMs: number | null
  readonly devices: readonly DeviceHabits[]
  readonly defect?: SharingDefect
}

export class SharingSite {
  readonly options: SharingOptions
  readonly cloud: SharedCloud
  readonly devices: readonly SharingDevice[]
  now = BEGIN
  readonly #events: { readonly at: number; readonly n: number; readonly call: () => Promise<void> | void }[] = []
  #scheduled = 0

  constructor(options: SharingOptions) {
    this.options = options
    const policy = policyOf(options)
    const compiled = compilePolicy(policy)
    const random = new Random(`sharing ${options.seed}`)
    this.cloud = new SharedCloud(this, policy, compiled, (deviceId) => this.#notify(deviceId))
    this.devices = options.devices.map(
      (habits) => new SharingDevice(this, habits, compiled, random.stream(habits.name)),
    )
    for (const device of this.devices) device.begin()
    if (options.pushMs !== null) this.#watch()
  }

  async until(ms: number): Promise<void> {
    const end = BEGIN + ms
    for (;;) {
      const [next] = this.#events
      if (next === undefined || next.at > end) break
      this.#events.shift()
      this.now = next.at
      await next.call()
      // Lets pending records become durable.
      await nextTurn()
    }
    this.now = end
  }

  after(ms: number, call: () => Promise<void> | void): () => void {
    const event = { at: this.now + Math.max(0, ms), n: (this.#scheduled += 1), call }
    const index = this.#events.findIndex(({ at }) => at > event.at)
    if (index < 0) this.#events.push(event)
    else this.#events.splice(index, 0, event)
    return () => {
      const there = this.#events.indexOf(event)
      if (there >= 0) this.#events.splice(there, 1)
    }
  }

  /**
   * Whether free tokens plus balances of connected devices could pay all shortages. Ignores a request larger than all
   * of it.
   */
  get canPayAll(): boolean {
    const { most } = this
    const short = this.devices.reduce((sum, device) => (device.short <= most ? sum + device.short : sum), 0n)
    return most >= short
  }

  get most(): bigint {
    return this.devices.reduce((sum, device) => (device.isConnected ? sum + device.balance : sum), this.cloud.free)
  }

  heldBy(deviceId: string): bigint {
    return available(this.cloud.recordOf(deviceId))
  }

  #notify(deviceId: string): void {
    const { pushMs } = this.options
    const device = this.devices.find(({ name }) => name === deviceId)
    if (pushMs !== null && device !== undefined) this.after(pushMs, () => device.notified())
  }

  #watch(): void {
    this.after(1_000, () => {
      this.cloud.notifyServable()
      this.#watch()
    })
  }
}

function policyOf({ quantity }: SharingOptions): Policy {
  return {
    instanceId: INSTANCE,
    revision: 1,
    lineItems: [
      {
        id: LINE_ITEM,
        state: 'DEPLOYED',
        elastic: true,
        rateTableSeries: '',
        startsAt: BEGIN - YEAR_MS,
        endsAt: BEGIN + YEAR_MS,
        quantity: BigInt(quantity) * TOKEN,
        overdraft: 0n,
        periods: [{ index: 0, from: null, until: null }],
        actions: [],
        consumptionLimit: null,
      },
    ],
    conditions: [],
    rateTables: [
      { series: '', version: '1', effectiveFrom: 0, items: [{ name: 'use', version: '', rate: decimal('1') }] },
    ],
    timezoneTolerant: false,
    undecidedClock: 'allow',
  }
}
