/**
 * Decides the usual syncs of a shared transaction one after another. Loads their data once for all of them, and writes the
 * results when all are decided. A sync that needs other data is unusual, and leaves no trace. Data about short accounts is
 * the exception: it is read for each sync, from a database that has the balances of all syncs before it.
 */
import type { AccountId } from '../../core/accounts/account.ts'
import { type Session, isLive } from '../../core/sessions/session.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { Policies } from '../policy/load-policy.ts'
import type { RulesInForce } from '../policy/rules-in-force.ts'
import type {
  Device,
  DeviceAccountRecord,
  Epoch,
  EpochWithSessionCount,
  LastSegment,
  Shortage,
} from '../storage/device-records.ts'
import type { Pool } from '../storage/records.ts'
import type { Transaction } from '../storage/store.ts'
import type { SyncDeps } from './merge-context.ts'
import { type OpenedSync, type SyncResult, receiveSegment } from './receive-segment.ts'

/** The sync must have a transaction for itself. */
export class Unusual extends Error {}

/** Some of the writes are in the transaction, and a sync fails: all must begin again, each in a transaction for itself. */
class HalfWritten extends Error {}

/** Read under the locks of the devices, their rules and the accounts. */
export interface Loaded {
  readonly devices: ReadonlyMap<string, Device>
  /** By device. */
  readonly epochs: ReadonlyMap<string, EpochWithSessionCount>
  /** By device, the sessions in the cloud that have not ended, without those that another transaction has locked. */
  readonly sessions: ReadonlyMap<string, readonly Session[]>
  readonly rules: RulesInForce
  /** Accounts that are locked, if they exist. */
  readonly accounts: ReadonlySet<AccountId>
  readonly pools: ReadonlyMap<AccountId, Pool>
  /** Those that a device or the cloud is short of. */
  readonly short: ReadonlySet<AccountId>
  /** By device, those of the accounts. */
  readonly records: ReadonlyMap<string, ReadonlyMap<AccountId, DeviceAccountRecord>>
  /** Devices with an account that was unlimited before and has a limit again. */
  readonly limited: ReadonlySet<string>
  /** Devices that may have to return tokens. */
  readonly recalled: ReadonlySet<string>
}

class Writes {
  readonly pools = new Map<AccountId, Pool>()
  readonly records: DeviceAccountRecord[] = []
  readonly shortages: Shortage[] = []
  readonly epochs: { readonly epoch: Epoch; readonly stored: Epoch }[] = []
  readonly segments: LastSegment[] = []
  readonly sessions: { readonly session: Session; readonly stored: Session }[] = []
  readonly devices: { readonly device: Device; readonly stored: Device }[] = []
  /** In this order after the rest. */
  readonly afterRest: (() => Promise<void>)[] = []
  /** Whether some of it is in the transaction. */
  isWritten = false

  add(other: Writes): void {
    for (const [account, pool] of other.pools) this.pools.set(account, pool)
    this.records.push(...other.records)
    this.shortages.push(...other.shortages)
    this.epochs.push(...other.epochs)
    this.segments.push(...other.segments)
    this.sessions.push(...other.sessions)
    this.devices.push(...other.devices)
    this.afterRest.push(...other.afterRest)
  }
}

/** For the syncs of one batch. */
export type CreateLoadedSyncs = (
  ...loaded: ConstructorParameters<typeof LoadedSyncs>
) => Pick<LoadedSyncs, 'decide' | 'write'>

export const createLoadedSyncs: CreateLoadedSyncs = (...loaded) => new LoadedSyncs(...loaded)

export class LoadedSyncs {
  readonly #deps: SyncDeps
  readonly #tx: Transaction
  readonly #loaded: Loaded
  readonly #all = new Writes()
  /** Of the sync that is being decided. */
  #own = new Writes()
  readonly #shown: Transaction
  /** Those that a device or the cloud is short of. */
  readonly #short: Set<AccountId>
  /** As they are in the database. */
  readonly #pools: Map<AccountId, Pool>

  constructor(deps: SyncDeps, tx: Transaction, loaded: Loaded) {
    this.#tx = tx
    this.#loaded = loaded
    this.#short = new Set(loaded.short)
    this.#pools = new Map(loaded.pools)
    this.#shown = this.#show()
    const policies: Pick<Policies, 'lockSomeShared'> = {
      lockSomeShared: async (...[, instanceIds, , following]: Parameters<Policies['lockSomeShared']>) => {
        following?.beginReads?.()
        const wanted = new Set(instanceIds)
        return new Map([...loaded.rules].filter(([instanceId]) => wanted.has(instanceId)))
      },
    }
    this.#deps = { ...deps, policies }
  }

  /**
   * @throws Unusual, or CodedError as `receiveSegment`: then nothing of it is written. Any other error ends the transaction,
   * also {@link HalfWritten}
   */
  async decide(opened: OpenedSync): Promise<SyncResult> {
    this.#own = new Writes()
    if (this.#loaded.limited.has(opened.deviceId)) throw new Unusual()
    try {
      const result = await receiveSegment(this.#deps, this.#shown, opened)
      this.keep()
      return result
    } catch (cause) {
      const leavesATrace = this.#own.isWritten && (cause instanceof Unusual || cause instanceof CodedError)
      throw leavesATrace ? new HalfWritten('The balances of the sync were written.', { cause }) : cause
    }
  }

  /** The next syncs see what the last one has written. */
  protected keep(): void {
    this.#all.add(this.#own)
  }

  async write(): Promise<void> {
    const { epochs, segments, sessions, devices, afterRest } = this.#all
    await this.#writeBalances(this.#all)
    await this.#tx.edge.epochs.saveSome(epochs)
    await this.#tx.edge.segments.append(...segments)
    await this.#tx.sessions.saveSome(sessions)
    await this.#tx.edge.devices.saveSome(devices)
    for (const write of afterRest) await write()
  }

  async #writeBalances(writes: Writes): Promise<void> {
    await this.#tx.accounts.save([...writes.pools.values()])
    await this.#tx.edge.deviceAccounts.save(writes.records.splice(0))
    for (const shortage of writes.shortages.splice(0)) await this.#tx.edge.shortages.save(shortage)
    for (const [account, pool] of writes.pools) this.#pools.set(account, pool)
    writes.pools.clear()
  }

  /** For what is read from the database: the balances of all devices, and their last contacts. */
  async #writeAllBalances(): Promise<void> {
    const { pools, records, shortages } = this.#own
    this.#own.isWritten ||= pools.size + records.length + shortages.length > 0
    try {
      await this.#tx.edge.devices.saveSome(this.#all.devices.splice(0))
      await this.#writeBalances(this.#all)
      await this.#writeBalances(this.#own)
    } catch (cause) {
      // Not of this sync alone.
      throw cause instanceof CodedError ? new HalfWritten('Balances were not written.', { cause }) : cause
    }
  }

  #poolOf(account: AccountId): Pool | undefined {
    return this.#own.pools.get(account) ?? this.#all.pools.get(account) ?? this.#pools.get(account)
  }

  /** Also counts devices that are back with a sync of this batch, which is not written yet. */
  async #countLive(instanceId: string, since: number, except: string): Promise<number> {
    const known = await this.#tx.edge.devices.countLive(instanceId, since, except)
    const back = this.#all.devices.filter(
      ({ device, stored }) => device.instanceIds.includes(instanceId) && (stored.lastSyncAt ?? -1) < since,
    )
    return known + back.length
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
      sessions: this.#showSessions(shown.sessions),
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
      outbox: {
        ...shown.outbox,
        append: async (...of) => void this.#own.afterRest.push(() => tx.outbox.append(...of)),
      },
      usage: {
        ...shown.usage,
        append: async (records) => void this.#own.afterRest.push(() => tx.usage.append(records)),
        deliver: async (delivery) => void this.#own.afterRest.push(() => tx.usage.deliver(delivery)),
      },
      edge: this.#showEdge(shown.edge),
    }
  }

  #showSessions(sessions: Transaction['sessions']): Transaction['sessions'] {
    const sessionsOf = (deviceId: string): readonly Session[] => this.#loaded.sessions.get(deviceId) ?? []
    const all = new Map([...this.#loaded.sessions.values()].flat().map((session) => [session.id, session]))
    const requireLoaded = (id: string): Session => {
      const session = all.get(id)
      if (session === undefined) throw new Unusual()
      return session
    }
    const idsOf = async (deviceId: string) => sessionsOf(deviceId).map(({ id }) => id)
    return {
      ...sessions,
      notEnded: idsOf,
      opened: idsOf,
      lockSome: async (ids) => ids.map((id) => requireLoaded(id).id),
      lockStored: async (ids) => new Map(ids.map((id) => [id, requireLoaded(id)])),
      ofDevice: async (deviceId) => sessionsOf(deviceId).filter(isLive),
      // A device that keeps sessions is unusual.
      commands: async () => [],
      disconnectKept: async () => undefined,
      saveSome: async (changes) => void this.#own.sessions.push(...changes),
    }
  }

  #showEdge(edge: Transaction['edge']): Transaction['edge'] {
    const { devices, epochs, records, recalled } = this.#loaded
    const { deviceAccounts, shortages } = this.#tx.edge
    return {
      ...edge,
      devices: {
        ...edge.devices,
        lock: async (id) => devices.get(id),
        countLive: (...of) => this.#countLive(...of),
        save: async (device, stored) => {
          if (stored === undefined) throw new Unusual()
          this.#own.devices.push({ device, stored })
        },
      },
      epochs: {
        ...edge.epochs,
        getWithSessionPresence: async (deviceId) => {
          const found = epochs.get(deviceId)
          const own = this.#loaded.sessions.get(deviceId)?.length ?? 0
          if (found === undefined || found.keepsSessions || found.ownSessions !== own) throw new Unusual()
          return { epoch: found.epoch, hasSessions: own > 0 }
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
        returnable: async (wanted, ...of) => {
          if (wanted.length === 0) return new Map()
          await this.#writeAllBalances()
          return deviceAccounts.returnable(wanted, ...of)
        },
        availableOfOthers: async (...of) => {
          await this.#writeAllBalances()
          return deviceAccounts.availableOfOthers(...of)
        },
        save: async (saved) => void this.#own.records.push(...saved),
      },
      shortages: {
        ...edge.shortages,
        of: async (wanted, ...of) => {
          if (!wanted.some((account) => this.#short.has(account))) return new Map()
          await this.#writeAllBalances()
          return shortages.of(wanted, ...of)
        },
        save: async (shortage) => {
          this.#own.shortages.push(shortage)
          this.#short.add(shortage.account)
        },
        recallsFrom: async (deviceId, ...of) => {
          const named = [...(records.get(deviceId)?.keys() ?? []), ...this.#own.pools.keys()]
          const isNews = (account: AccountId): boolean => this.#short.has(account) || isAboveCap(this.#poolOf(account))
          if (!recalled.has(deviceId) && !this.#own.isWritten && !named.some(isNews))
            return { aboveCaps: [], recalls: [] }
          await this.#writeAllBalances()
          return shortages.recallsFrom(deviceId, ...of)
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
