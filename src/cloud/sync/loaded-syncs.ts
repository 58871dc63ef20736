/**
 * Decides usual syncs of a shared transaction on what it has loaded for all of them, one after another, and keeps what they
 * write until all are decided. A sync that needs anything else is unusual, and leaves no trace.
 */
import type { AccountId } from '../../core/accounts/account.ts'
import type { Policies } from '../policy/load-policy.ts'
import type { RulesInForce } from '../policy/rules-in-force.ts'
import type { Device, DeviceAccountRecord, Epoch, EpochWithSessions, LastSegment } from '../storage/device-records.ts'
import type { Pool } from '../storage/records.ts'
import type { Transaction } from '../storage/store.ts'
import type { Sync } from './merge-context.ts'
import { type Judged, type SyncOrder, receiveSegment } from './receive-segment.ts'

/** The sync must have a transaction for itself. */
export class Unusual extends Error {}

/** Read under the locks of the devices, their rules and the accounts. */
export interface Loaded {
  readonly devices: ReadonlyMap<string, Device>
  /** By device. */
  readonly epochs: ReadonlyMap<string, EpochWithSessions>
  readonly rules: RulesInForce
  /** Accounts that are locked, if they exist. */
  readonly accounts: ReadonlySet<AccountId>
  readonly pools: ReadonlyMap<AccountId, Pool>
  /** Those that a device or the cloud is short of. */
  readonly short: ReadonlySet<AccountId>
  /** By device, those of the accounts. */
  readonly records: ReadonlyMap<string, ReadonlyMap<AccountId, DeviceAccountRecord>>
  /** Devices whose sync must look at more than these accounts. */
  readonly special: ReadonlySet<string>
}

class Writes {
  readonly pools = new Map<AccountId, Pool>()
  readonly records: DeviceAccountRecord[] = []
  readonly epochs: { readonly epoch: Epoch; readonly stored: Epoch }[] = []
  readonly segments: LastSegment[] = []
  readonly devices: { readonly device: Device; readonly stored: Device }[] = []
  readonly usage: (() => Promise<void>)[] = []

  add(other: Writes): void {
    for (const [account, pool] of other.pools) this.pools.set(account, pool)
    this.records.push(...other.records)
    this.epochs.push(...other.epochs)
    this.segments.push(...other.segments)
    this.devices.push(...other.devices)
    this.usage.push(...other.usage)
  }
}

/** Begins to decide the syncs of a batch. */
export type DecideLoaded = (
  ...loaded: ConstructorParameters<typeof LoadedSyncs>
) => Pick<LoadedSyncs, 'decide' | 'write'>

export class LoadedSyncs {
  readonly #deps: Sync
  readonly #tx: Transaction
  readonly #loaded: Loaded
  readonly #all = new Writes()
  /** Of the sync that is being decided. */
  #own = new Writes()
  readonly #shown: Transaction

  constructor(deps: Sync, tx: Transaction, loaded: Loaded) {
    this.#tx = tx
    this.#loaded = loaded
    this.#shown = this.#show()
    const policies: Pick<Policies, 'holdAll'> = {
      holdAll: async (...[, instanceIds, , ahead]: Parameters<Policies['holdAll']>) => {
        ahead?.whenHeld?.()
        const wanted = new Set(instanceIds)
        return new Map([...loaded.rules].filter(([instanceId]) => wanted.has(instanceId)))
      },
    }
    this.#deps = { ...deps, policies }
  }

  /** @throws Unusual, or CodedError as `receiveSegment`: then nothing of it is written */
  async decide(order: SyncOrder): Promise<Judged> {
    this.#own = new Writes()
    if (this.#loaded.special.has(order.deviceId)) throw new Unusual()
    const judged = await receiveSegment(this.#deps, this.#shown, order)
    this.keep()
    return judged
  }

  /** The next syncs see what the last one has written. */
  protected keep(): void {
    this.#all.add(this.#own)
  }

  async write(): Promise<void> {
    const { pools, records, epochs, segments, devices, usage } = this.#all
    await this.#tx.accounts.save([...pools.values()])
    await this.#tx.edge.deviceAccounts.save(records)
    await this.#tx.edge.epochs.saveSome(epochs)
    await this.#tx.edge.segments.append(...segments)
    await this.#tx.edge.devices.saveSome(devices)
    for (const write of usage) await write()
  }

  #poolOf(account: AccountId): Pool | undefined {
    return this.#own.pools.get(account) ?? this.#all.pools.get(account) ?? this.#loaded.pools.get(account)
  }

  #recordsOf(deviceId: string, accounts: readonly AccountId[]): ReadonlyMap<AccountId, DeviceAccountRecord> {
    const wanted = new Set(accounts)
    const all = this.#loaded.records.get(deviceId) ?? new Map<AccountId, DeviceAccountRecord>()
    return new Map([...all].filter(([account]) => wanted.has(account)))
  }

  #show(): Transaction {
    const tx = this.#tx
    const { accounts } = this.#loaded
    const shown = refusing(tx)
    return {
      ...shown,
      // Devices with sessions are unusual.
      sessions: { ...shown.sessions, keptBy: async () => [] },
      accounts: {
        ...shown.accounts,
        lock: async (wanted) => {
          if (!wanted.every((account) => accounts.has(account))) throw new Unusual()
          const pools = wanted.map((account) => [account, this.#poolOf(account)] as const)
          return new Map(pools.flatMap(([account, pool]) => (pool === undefined ? [] : [[account, pool]])))
        },
        save: async (pools) => {
          for (const pool of pools) this.#own.pools.set(pool.account, pool)
        },
      },
      usage: {
        ...shown.usage,
        append: async (records) => void this.#own.usage.push(() => tx.usage.append(records)),
        deliver: async (delivery) => void this.#own.usage.push(() => tx.usage.deliver(delivery)),
      },
      edge: this.#showEdge(shown.edge),
    }
  }

  #showEdge(edge: Transaction['edge']): Transaction['edge'] {
    const { devices, epochs, records, short } = this.#loaded
    return {
      ...edge,
      devices: {
        ...edge.devices,
        lock: async (id) => devices.get(id),
        countLive: (...of) => this.#tx.edge.devices.countLive(...of),
        save: async (device, stored) => {
          if (stored === undefined) throw new Unusual()
          this.#own.devices.push({ device, stored })
        },
      },
      epochs: {
        ...edge.epochs,
        getWithSessions: async (deviceId) => {
          const found = epochs.get(deviceId)
          if (found === undefined || found.hasSessions) throw new Unusual()
          return found
        },
        save: async (epoch, stored) => {
          if (stored === undefined) throw new Unusual()
          this.#own.epochs.push({ epoch, stored })
        },
      },
      segments: { ...edge.segments, append: async (...segments) => void this.#own.segments.push(...segments) },
      deviceAccounts: {
        ...edge.deviceAccounts,
        get: async (deviceId, _epoch, wanted) => this.#recordsOf(deviceId, wanted),
        getWithLimited: async (deviceId, _epoch, wanted) => ({
          records: this.#recordsOf(deviceId, wanted),
          limited: [],
        }),
        returnable: async (wanted) => {
          if (wanted.length > 0) throw new Unusual()
          return new Map()
        },
        save: async (saved) => void this.#own.records.push(...saved),
      },
      shortages: {
        ...edge.shortages,
        of: async (wanted) => {
          if (wanted.some((account) => short.has(account))) throw new Unusual()
          return new Map()
        },
        recallsFrom: async (deviceId) => {
          const named = [...(records.get(deviceId)?.keys() ?? []), ...this.#own.pools.keys()]
          if (named.some((account) => isAboveCap(this.#poolOf(account)))) throw new Unusual()
          return { aboveCaps: [], recalls: [] }
        },
      },
    }
  }
}

function isAboveCap(pool: Pool | undefined): boolean {
  return pool !== undefined && pool.capTarget !== null && pool.charged + pool.grantedOut > pool.capTarget
}

/** Every function throws. */
function refusing<T extends object>(accessors: T): T {
  const refused = Object.entries(accessors).map(([name, value]: [string, unknown]) => [name, refusal(value)])
  return Object.fromEntries(refused) as T
}

function refusal(value: unknown): unknown {
  if (typeof value === 'function') return () => Promise.reject(new Unusual())
  return typeof value === 'object' && value !== null ? refusing(value) : value
}
