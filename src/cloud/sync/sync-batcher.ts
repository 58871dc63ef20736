/**
 * Usual syncs that wait at the same time share a transaction: their rows are locked, read and written together. An unusual one
 * has a transaction for itself.
 */
import type { AccountId } from '../../core/accounts/account.ts'
import { CodedError } from '../../protocol/errors.ts'
import { type Batch, Batcher, type Defer } from '../runtime/batcher.ts'
import { mayBeOfOneRequest, waitedForLocks } from '../storage/shared-failures.ts'
import type { Transaction } from '../storage/store.ts'
import { accountsIn } from './grants/give-grant.ts'
import { type CreateLoadedSyncs, type Loaded, Unusual, createLoadedSyncs } from './loaded-syncs.ts'
import { type SyncDeps, isServed } from './merge-context.ts'
import { type OpenedSync, type SyncResult, receiveSegment } from './receive-segment.ts'

/** Limits the time of a batch: every sync in it is answered when the whole batch is committed. */
const WEIGHT_MAX = 1_024
const WEIGHT_OF_SYNC = 16
const WEIGHT_OF_ACCOUNT = 4

/** A sync with more accounts has a transaction for itself. */
const ACCOUNTS_MAX = 64

/** Waiting syncs with which the next batch begins while one is committed. Smaller ones would take more statements for each sync. */
const EARLY_MIN = 16

/** With the accounts that it names. */
interface SyncRequest extends OpenedSync {
  readonly accounts: readonly AccountId[]
}

type Outcome = PromiseSettledResult<SyncResult | Promise<SyncResult>>

export class SyncBatcher {
  readonly #deps: SyncDeps
  readonly #createLoadedSyncs: CreateLoadedSyncs
  readonly #batcher: Batcher<SyncRequest, SyncResult>

  constructor(deps: SyncDeps, defer: Defer, create = createLoadedSyncs) {
    this.#deps = deps
    this.#createLoadedSyncs = create
    this.#batcher = new Batcher({
      defer,
      serve: (requests, batch) => this.#serve(requests, batch),
      weightOf: ({ segment, accounts }) =>
        WEIGHT_OF_SYNC + segment.entries.length + accounts.length * WEIGHT_OF_ACCOUNT,
      weightMax: WEIGHT_MAX,
    })
  }

  /** @throws CodedError DEVICE_REVOKED, GRANTS_FORGOTTEN */
  async receive(opened: OpenedSync): Promise<SyncResult> {
    const request: SyncRequest = { ...opened, accounts: namedAccounts(opened) }
    return looksUsual(request) ? this.#batcher.submit(request) : this.#alone(opened)
  }

  #alone(request: OpenedSync): Promise<SyncResult> {
    return this.#deps.store.transaction((tx) => receiveSegment(this.#deps, tx, request))
  }

  async #serve(requests: readonly SyncRequest[], { next }: Batch<SyncRequest>): Promise<readonly Outcome[]> {
    const alone = (request: OpenedSync): Outcome => ({ status: 'fulfilled', value: this.#alone(request) })
    try {
      const judged = await this.#deps.store.transaction(async (tx) => {
        const outcomes = await this.#judge(tx, requests)
        tx.serves(requests.length)
        next(EARLY_MIN)
        return outcomes
      })
      return requests.map((request) => judged.get(request) ?? alone(request))
    } catch (reason) {
      if (mayBeOfOneRequest(reason) || waitedForLocks(reason)) return requests.map(alone)
      return requests.map(() => ({ status: 'rejected', reason }))
    }
  }

  /** Without those that are unusual. */
  async #judge(tx: Transaction, all: readonly SyncRequest[]): Promise<ReadonlyMap<SyncRequest, Outcome>> {
    // The second one of a device sees what the first one has written.
    const requests = all.filter(
      ({ deviceId }, index) => all.findIndex((other) => other.deviceId === deviceId) === index,
    )
    // Sent together and answered in this order: what follows the lock is read under it.
    const ids = requests.map(({ deviceId }) => deviceId)
    const [devices, sessions, epochs] = await Promise.all([
      tx.edge.devices.lockSome(ids),
      tx.sessions.lockOfDevices(ids),
      tx.edge.epochs.someWithSessionCount(requests.map(epochOf)),
    ])
    // A device that another transaction has locked would delay all others.
    const locked = requests.filter(({ deviceId }) => devices.has(deviceId))
    if (locked.length === 0) return new Map()
    const syncs = await this.#load(tx, locked, { devices, sessions, epochs })
    const outcomes = new Map<SyncRequest, Outcome>()
    for (const request of locked) {
      try {
        outcomes.set(request, { status: 'fulfilled', value: await syncs.decide(request) })
      } catch (reason) {
        if (reason instanceof Unusual) continue
        // The store may run the transaction again, for example after a lost connection.
        if (!(reason instanceof CodedError)) throw reason
        outcomes.set(request, { status: 'rejected', reason })
      }
    }
    await syncs.write()
    return outcomes
  }

  async #load(
    tx: Transaction,
    requests: readonly SyncRequest[],
    known: Pick<Loaded, 'devices' | 'sessions' | 'epochs'>,
  ): Promise<ReturnType<CreateLoadedSyncs>> {
    const { devices } = known
    const instanceIds = [...devices.values()].flatMap((device) => device.instanceIds)
    const accounts = new Set<AccountId>()
    for (const { deviceId, accounts: named } of requests) {
      const device = devices.get(deviceId)
      if (device === undefined) throw new Error('invariant: the devices of these syncs are locked')
      for (const account of named) if (isServed(account, device)) accounts.add(account)
    }
    const now = Math.max(...requests.map((request) => request.now))
    const rules = await this.#deps.policies.lockSomeShared(tx, instanceIds, now, { likely: accounts })
    const pools = await tx.accounts.lock([...accounts])
    const [of, short] = await Promise.all([
      tx.edge.deviceAccounts.ofSome(requests.map(epochOf), [...accounts]),
      tx.edge.shortages.among([...accounts]),
    ])
    return this.#createLoadedSyncs(this.#deps, tx, { ...known, rules, accounts, pools, short, ...of })
  }
}

/** False if the segment alone shows that it needs its own transaction. */
function looksUsual({ segment, shown, accounts }: SyncRequest): boolean {
  const isPlain = !segment.final && segment.undeliveredRange === null && segment.sessions.length === 0
  return isPlain && shown.proofs.length + shown.rules.length === 0 && accounts.length <= ACCOUNTS_MAX
}

function epochOf({ deviceId, segment }: OpenedSync) {
  return { deviceId, number: segment.epoch }
}

function namedAccounts({ segment }: OpenedSync): readonly AccountId[] {
  return [...new Set([...segment.received.counters.map(({ account }) => account), ...accountsIn(segment.topUps)])]
}
