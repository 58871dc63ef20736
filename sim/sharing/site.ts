/**
 * One pool that several devices and the cloud itself draw on, in virtual time: how it is shared, and nothing else. Ledger,
 * decisions and top-up requests of the devices are the product's, and so are the sizing of grants, recalls and the
 * arithmetic of the pool. There are no disks, signatures and faults: messages arrive at once, or not at all.
 */
import { setImmediate as nextTurn } from 'node:timers/promises'
import { decimal } from '../../src/core/pricing/amount.ts'
import { compilePolicy } from '../../src/core/rules/compile.ts'
import { available } from '../../src/core/accounts/grant.ts'
import type { Policy } from '../../src/core/rules/policy.ts'
import { SharedCloud } from './cloud.ts'
import { SharingDevice, type DeviceHabits } from './device.ts'
import { BEGIN, INSTANCE, LINE_ITEM, TOKEN } from './pool.ts'
import { Random } from '../world/random.ts'

const YEAR_MS = 365 * 86_400_000

export interface SharingOptions {
  readonly seed: number
  /** Tokens. */
  readonly quantity: number
  readonly syncEveryMs: number
  readonly horizonMs: number
  /** Tokens that a device wants to hold before it has used any. */
  readonly starting: number
  /** How long a change notification takes, ms; null: there is no push. */
  readonly pushMs: number | null
  readonly devices: readonly DeviceHabits[]
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

  /** Runs what comes due until the instant, ms from the beginning. */
  async until(ms: number): Promise<void> {
    const end = BEGIN + ms
    for (;;) {
      const [next] = this.#events
      if (next === undefined || next.at > end) break
      this.#events.shift()
      this.now = next.at
      await next.call()
      // Whatever was recorded becomes durable.
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
   * Whether all that is short at this moment could be paid by what is free and what connected devices hold. A request that all
   * of it could not pay alone does not count.
   */
  get canPayAll(): boolean {
    const { most } = this
    const short = this.devices.reduce((sum, device) => (device.short <= most ? sum + device.short : sum), 0n)
    return most >= short
  }

  /** What is free and what connected devices hold. */
  get most(): bigint {
    return this.devices.reduce((sum, device) => (device.isConnected ? sum + device.balance : sum), this.cloud.free)
  }

  /** Tokens that are neither free nor charged: what devices hold, by what the cloud knows. */
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
