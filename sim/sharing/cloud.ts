/** The cloud side of a shared pool: the product's merge, grants and recalls over in-memory tables. */
import type { CompiledPolicy } from '../../src/core/rules/compile.ts'
import { type Need, type TopUpRequest, available } from '../../src/core/accounts/grant.ts'
import type { Policy } from '../../src/core/rules/policy.ts'
import type { Grant } from '../../src/protocol/edge/sync.ts'
import { type GrantContext, giveGrant } from '../../src/cloud/sync/grants/give-grant.ts'
import { grantableAt } from '../../src/cloud/sync/grants/grants.ts'
import { movePools } from '../../src/cloud/accounts/move-pools.ts'
import {
  type DeviceAccountRecord,
  type Recall,
  type Shortage,
  newDeviceAccount,
} from '../../src/cloud/storage/device-records.ts'
import { isShortNow } from '../../src/cloud/sync/grants/rebalance.ts'
import type { LoadedPolicy } from '../../src/cloud/policy/load-policy.ts'
import { free, newPool, retarget } from '../../src/cloud/accounts/pool.ts'
import type { Pool } from '../../src/cloud/storage/records.ts'
import { ACCOUNT, INSTANCE } from './pool.ts'
import { shortagesOf } from './shortages-of.ts'

export interface Report {
  readonly used: bigint
  readonly refunded: bigint
  readonly returned: bigint
  readonly topUpRequests: readonly TopUpRequest[]
  readonly needs: readonly Need[]
}

const GRANT_LIFETIME_MS = 7 * 86_400_000

/** The cloud recalls nothing, or gives each device whatever it asks for in advance. */
export type SharingDefect = 'recalls-nothing' | 'shares-nothing'

interface Site {
  readonly now: number
  readonly options: { readonly syncEveryMs: number; readonly horizonMs: number; readonly defect?: SharingDefect }
}

export class SharedCloud {
  pool: Pool
  readonly #site: Site
  readonly #rules: ReadonlyMap<string, LoadedPolicy>
  readonly #notify: (deviceId: string) => void
  readonly #records = new Map<string, DeviceAccountRecord>()
  readonly #lastSyncAt = new Map<string, number>()
  readonly #shortages = new Map<string, Shortage>()

  constructor(site: Site, policy: Policy, compiled: CompiledPolicy, notify: (deviceId: string) => void) {
    this.#site = site
    this.#notify = notify
    const lineItems = new Map(policy.lineItems.map((each) => [each.id, each]))
    const loaded = {
      revision: 1,
      calendarDue: null,
      bumpedAt: 0,
      engine: 1,
      accountId: 'customer',
      policy,
      instanceName: '',
      compiled,
      lineItems,
      cloudReserves: new Map(),
      importedUse: new Map(),
      overspendCapsMax: new Map(),
      unproven: false,
      recovery: 0,
    }
    this.#rules = new Map([[INSTANCE, loaded]])
    this.pool = newPool(ACCOUNT, policy.lineItems[0]?.quantity ?? 0n)
  }

  get free(): bigint {
    return free(this.pool)
  }

  recordOf(deviceId: string): DeviceAccountRecord {
    return this.#records.get(deviceId) ?? newDeviceAccount(deviceId, 1, ACCOUNT)
  }

  async sync(
    deviceId: string,
    report: Report,
  ): Promise<{ readonly grant: Grant; readonly recalls: readonly Recall[] }> {
    const { now } = this.#site
    const before = this.recordOf(deviceId)
    const { used, refunded, returned, topUpRequests, needs } = report
    const after = { ...before, used, refunded, returned }
    const moved = movePools(new Map([[ACCOUNT, this.pool]]), [{ before, after }])
    this.pool = moved?.after.get(ACCOUNT) ?? this.pool
    this.#records.set(deviceId, after)
    this.#lastSyncAt.set(deviceId, now)
    const grant = await giveGrant(this.#contextOf(deviceId), {
      rules: this.#rules,
      grantable: grantableAt(this.#rules, now),
      topUps: { topUpRequests, needs },
      named: [],
      pools: new Map([[ACCOUNT, this.pool]]),
      recordOf: () => this.recordOf(deviceId),
      inUse: new Set(used > before.used ? [ACCOUNT] : []),
      releasing: false,
      unsaved: { moves: [], after: new Map() },
    })
    return { grant, recalls: this.#recallsFrom(deviceId) }
  }

  raise(by: bigint): void {
    this.pool = retarget(this.pool, (this.pool.capTarget ?? 0n) + by)
  }

  /** Like the background work: notifies devices that can be served again. */
  notifyServable(): void {
    const { now, options } = this.#site
    for (const [who, shortage] of this.#shortages) {
      const { notifiedAt, at, enough } = shortage
      const isDue = notifiedAt === null || (notifiedAt <= now - options.syncEveryMs && notifiedAt < at)
      if (!isDue || this.free < enough) continue
      this.#shortages.set(who, { ...shortage, notifiedAt: now })
      this.#notify(who)
    }
  }

  #contextOf(deviceId: string): GrantContext {
    const { now, options } = this.#site
    return {
      deps: { terms: { ...options, grantHorizonMs: options.horizonMs, grantLifetimeMs: GRANT_LIFETIME_MS } },
      device: { id: deviceId },
      epoch: { deviceId, number: 1, term: 0 },
      now,
      tx: {
        accounts: { save: async (pools) => void (this.pool = pools[0] ?? this.pool) },
        outbox: {
          append: async (notifications) => {
            for (const notification of notifications)
              if (notification.kind === 'device') this.#notify(notification.deviceId)
          },
        },
        edge: {
          devices: {
            countLive: async (_instance, since, except) =>
              options.defect === 'shares-nothing'
                ? 0
                : [...this.#lastSyncAt].filter(([id, at]) => id !== except && at >= since).length,
          },
          deviceAccounts: {
            save: async (records) => {
              for (const record of records) this.#records.set(record.deviceId, record)
            },
            returnable: async (_accounts, except, reportedSince) => {
              const others = [...this.#records.values()].filter(({ deviceId }) => deviceId !== except)
              const sumOf = (records: readonly DeviceAccountRecord[]): bigint =>
                records.reduce((sum, record) => sum + available(record), 0n)
              const inContact = others.filter(({ deviceId }) => (this.#lastSyncAt.get(deviceId) ?? 0) > reportedSince)
              return new Map([[ACCOUNT, { all: sumOf(others), inContact: sumOf(inContact) }]])
            },
            availableOfOthers: async (_account, except, reportedSince, limit) =>
              [...this.#records.values()]
                .filter((record) => record.deviceId !== except && available(record) > 0n)
                .filter((record) => (this.#lastSyncAt.get(record.deviceId) ?? 0) > reportedSince)
                .map((record) => ({ deviceId: record.deviceId, available: available(record) }))
                .toSorted((a, b) => (a.available < b.available ? 1 : -1))
                .slice(0, limit),
          },
          shortages: {
            of: async (accounts, times, who) =>
              new Map(accounts.map((account) => [account, shortagesOf([...this.#shortages.values()], times, who)])),
            save: async (shortage) => void this.#shortages.set(shortage.who, shortage),
          },
        },
      },
    }
  }

  #recallsFrom(deviceId: string): readonly Recall[] {
    const { now, options } = this.#site
    const keeps = [...this.#shortages.values()]
      .filter((shortage) => shortage.who !== deviceId && isShortNow(shortage, now, options))
      .filter(({ enough }) => this.free < enough)
      .flatMap(({ keep }) => (keep !== null && available(this.recordOf(deviceId)) > keep ? [keep] : []))
    if (keeps.length === 0 || options.defect === 'recalls-nothing') return []
    return [{ account: ACCOUNT, keep: keeps.reduce((least, keep) => (keep < least ? keep : least)) }]
  }
}
