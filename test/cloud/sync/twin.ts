// A twin without its network: the real use cases of the edge over a real SQLite file, with a clock that tests move.
import { randomUUID } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { decimal } from '../../../src/core/pricing/amount.ts'
import type { Action } from '../../../src/core/rules/policy.ts'
import { openSqliteStore } from '../../../src/cloud/storage/sqlite/store.ts'
import { attach } from '../../../src/cloud/sync/attach.ts'
import { setCloudReserve } from '../../../src/cloud/policy/cloud-reserve.ts'
import { enroll } from '../../../src/cloud/devices/enroll.ts'
import { issueEnrollmentToken } from '../../../src/cloud/devices/issue-enrollment-token.ts'
import type { Keyring } from '../../../src/cloud/devices/keyring.ts'
import type { Device, Settlement } from '../../../src/cloud/storage/device-records.ts'
import { openPools } from '../../../src/cloud/policy/rules-in-force.ts'
import { type ExpireInactive, expireNextInactive } from '../../../src/cloud/sync/grants/expire-inactive.ts'
import { receiveSegment } from '../../../src/cloud/sync/receive-segment.ts'
import { SyncBatcher } from '../../../src/cloud/sync/sync-batcher.ts'
import { type WatchedSyncDeps, sync } from '../../../src/cloud/sync/sync.ts'
import { notifyServable, recallForCloud } from '../../../src/cloud/sync/grants/watch-shortages.ts'
import type { MergeResult } from '../../../src/cloud/sync/merge-context.ts'
import type { EdgeTerms } from '../../../src/cloud/devices/terms.ts'
import { Policies } from '../../../src/cloud/policy/load-policy.ts'
import { capOf, charge, free, refund, retarget } from '../../../src/cloud/accounts/pool.ts'
import { bumpPolicyRevision } from '../../../src/cloud/policy/bump-policy-revision.ts'
import type { LineItemRecord, Pool } from '../../../src/cloud/storage/records.ts'
import { heartbeatOfDevice } from '../../../src/cloud/sessions/session-life.ts'
import type { Store, Transaction } from '../../../src/cloud/storage/store.ts'
import { createRateTable } from '../../../src/cloud/service-api/change-rate-tables.ts'
import { newSigner } from '../../support/new-signer.ts'
import { watchLockOrder } from '../storage/watch-lock-order.ts'

export const INSTANCE = '64d2028c-ae87-4069-a624-66089d957ef9'
export const START = 1_790_000_000_000
export const HOUR = 3_600_000
export const DAY = 24 * HOUR

export interface LineItemOptions {
  readonly quantity: bigint
  readonly overdraft?: bigint | 'UNLIMITED'
  readonly actions?: readonly Action[]
  readonly state?: LineItemRecord['state']
  readonly end?: number
}

export class Twin implements AsyncDisposable {
  readonly store: Store
  readonly keys: Keyring
  readonly policies: Policies
  readonly heartbeats: string[] = []
  /** Reports of devices about a past that this cloud does not know. */
  readonly restored: { readonly deviceId: string; readonly instanceIds: readonly string[] }[] = []
  terms: EdgeTerms = {
    grantLifetimeMs: 7 * DAY,
    grantHorizonMs: DAY,
    sessionIntervalMs: null,
    policyUsableMs: 30 * DAY,
    syncEveryMs: 300_000,
    receiptMarginMs: 7 * DAY,
    attachesMax: 1_000_000,
  }
  time = START
  sharesTransactions = true
  /** That the last sync has opened. */
  openedPools = 0
  readonly #cleanUp: () => Promise<void>
  readonly syncDeps: WatchedSyncDeps & { readonly syncBatcher: SyncBatcher }

  private constructor(store: Store, keys: Keyring, cleanUp: () => Promise<void>) {
    this.store = watchLockOrder(store)
    this.keys = keys
    this.policies = new Policies({ max: 10, undecidedClock: 'allow' })
    this.#cleanUp = cleanUp
    const termsNow = (): EdgeTerms => this.terms
    const deps = {
      store: this.store,
      keys,
      now: this.now,
      present: this.present,
      get terms() {
        return termsNow()
      },
      policies: this.policies,
      trustsClock: () => true,
      heartbeat: async (tx: Transaction, { id }: Device, ...rest: [now: number, locked: ReadonlySet<string>]) => {
        this.heartbeats.push(id)
        await heartbeatOfDevice(tx, id, ...rest)
      },
    }
    this.syncDeps = {
      ...deps,
      onRestored: (deviceId, instanceIds) => {
        this.restored.push({ deviceId, instanceIds })
      },
      syncBatcher: new SyncBatcher(deps, setImmediate),
    }
  }

  /** Over a SQLite file of its own. */
  static async open(): Promise<Twin> {
    const folder = await mkdtemp(join(tmpdir(), 'tallygate-edge-'))
    const store = openSqliteStore({
      path: join(folder, 'twin.db'),
      check: false,
      onBroken: (error) => {
        throw error instanceof Error ? error : new Error(String(error))
      },
    })
    return Twin.over(store, () => rm(folder, { recursive: true, force: true }))
  }

  /** Over a store that is empty. */
  static async over(store: Store, cleanUp: () => Promise<void> = async () => undefined): Promise<Twin> {
    const twin = new Twin(store, await newKeyring(), cleanUp)
    await twin.addInstance(INSTANCE)
    return twin
  }

  /** With the same keys over the same database, by connections of its own. */
  async anotherNode(store: Store): Promise<Twin> {
    return new Twin(store, this.keys, async () => undefined)
  }

  readonly now = (): number => this.time
  /** The clock is never in doubt here. */
  readonly present = this.now

  readonly addresses = () => ({
    edge: 'https://twin.test/edge/api/v1',
    service: 'https://twin.test/api',
    push: null,
  })

  async addInstance(id: string): Promise<void> {
    await this.store.transaction(async (tx) => {
      await tx.instances.insert({
        id,
        shortName: 'test',
        accountId: 'customer',
        defaultInstance: (await tx.instances.defaultOf('customer')) === undefined,
        created: START,
        modified: START,
      })
      await tx.policyRevisions.insert({
        instanceId: id,
        revision: 1,
        bumpedAt: START,
        listedAt: START,
        calendarDue: null,
        engine: 1,
      })
    })
  }

  /** Maps or changes a line item, and moves the caps of its accounts as an administrator's change does. */
  async setLineItem(id: string, options: LineItemOptions, instanceId = INSTANCE): Promise<void> {
    const { overdraft = 0n } = options
    const record: LineItemRecord = {
      instanceId,
      id,
      state: options.state ?? 'DEPLOYED',
      quantity: options.quantity,
      start: START - DAY,
      end: options.end ?? START + 365 * DAY,
      elastic: true,
      rateTableSeries: null,
      overdraftType: overdraft === 'UNLIMITED' ? 'Unlimited' : 'Number',
      overdraftLimit: overdraft === 'UNLIMITED' ? null : overdraft,
      resetFrequency: null,
      given: {},
      calendar: { frequency: 'NONE', first: 0, firstAt: START - DAY, next: 1 },
      created: START,
      modified: START,
      deleted: null,
    }
    await this.store.transaction(async (tx) => {
      const revision = await tx.policyRevisions.lock(instanceId)
      if (revision === undefined) throw new Error('no such instance')
      if ((await tx.lineItems.get(instanceId, id)) === undefined) await tx.lineItems.insert(record)
      else await tx.lineItems.update(record)
      await tx.actions.replace(instanceId, id, options.actions ?? [])
      const pools = await tx.accounts.lock((await tx.accounts.ofLineItem(instanceId, id)).map(({ account }) => account))
      const capped = {
        id,
        quantity: options.quantity,
        overdraft,
        consumptionLimit: null,
        actions: options.actions ?? [],
      }
      await tx.accounts.save([...pools.values()].map((pool) => retarget(pool, capOf(pool.account, capped))))
      await bumpPolicyRevision(tx, revision, this.time)
    })
  }

  /** A rate table in effect, without series. */
  async setRates(items: Readonly<Record<string, number>>): Promise<void> {
    const rated = Object.entries(items).map(([name, rate]) => ({ name, version: '', rate: decimal(rate) }))
    await createRateTable(this.store, { version: '1', effectiveFrom: START - DAY, items: rated }, this.time)
  }

  async enrollmentToken(instanceIds: string[] = [INSTANCE]): Promise<string> {
    const { token } = await issueEnrollmentToken(
      { store: this.store, keys: this.keys, addresses: this.addresses, now: this.now, newId: randomUUID },
      { instanceIds },
    )
    return token
  }

  async enroll(token: string, jwk: Device['publicKey'], name?: string) {
    return enroll(
      { store: this.store, keys: this.keys, addresses: this.addresses, now: this.now, newId: randomUUID },
      token,
      { publicKey: jwk, ...(name === undefined ? {} : { name }) },
    )
  }

  async device(id: string): Promise<Device> {
    const device = await this.store.read((reader) => reader.edge.devices.get(id))
    if (device === undefined) throw new Error(`no device ${id}`)
    return device
  }

  /** Changes what the cloud has stored of a device. */
  async changeDevice(id: string, part: Partial<Device>): Promise<void> {
    await this.store.transaction(async (tx) => {
      const locked = await tx.edge.devices.lock(id)
      if (locked === undefined) throw new Error(`no device ${id}`)
      await tx.edge.devices.save({ ...locked, ...part })
    })
  }

  async attach(deviceId: string, nonce: string, above = 0, acknowledged = 0, backlog = 0): Promise<string> {
    return attach(
      { store: this.store, keys: this.keys, now: this.now, present: this.present, terms: this.terms },
      deviceId,
      {
        nonce,
        bootId: 'boot',
        above,
        acknowledged,
        backlog,
        software: 'test',
      },
    )
  }

  /** Usual ones that are sent at the same time share a transaction. */
  async sync(deviceId: string, document: string, proofs: readonly string[] = []): Promise<MergeResult> {
    const deps = this.syncDeps
    const alone: WatchedSyncDeps['syncBatcher'] = {
      receive: (order) => this.store.transaction((tx) => receiveSegment(deps, tx, order)),
    }
    return sync(
      {
        ...deps,
        terms: this.terms,
        syncBatcher: this.sharesTransactions ? deps.syncBatcher : alone,
        onOutcome: (_outcome, opened) => (this.openedPools = opened),
      },
      await this.device(deviceId),
      document,
      proofs,
    )
  }

  settlement(as: Settlement = 'CHARGED', afterMs = 30 * DAY, percentMax = 100): ExpireInactive {
    const { store, policies, present } = this
    return { store, policies, present, afterMs, as, percentMax }
  }

  /** Looks at its clock, and trusts it. */
  async noteClock(): Promise<void> {
    await this.store.transaction((tx) => tx.sweeps.noteClock({ at: this.time, sinceBoot: 0, bootId: 'boot' }))
  }

  /** Settles all that have been silent for so long; how many looks it took. */
  async settle(...terms: Parameters<Twin['settlement']>): Promise<number> {
    let looks = 1
    while (await expireNextInactive(this.settlement(...terms))) looks += 1
    return looks
  }

  /** Notifies devices that were short of tokens that are there again. */
  async notifyServable(): Promise<void> {
    await notifyServable(this.#watching)
  }

  /** Recalls what the cloud itself will need. */
  async recallForCloud(): Promise<void> {
    await recallForCloud(this.#watching)
  }

  get #watching() {
    const { store, policies, now, terms } = this
    return { store, policies, now, terms }
  }

  async pool(account: string): Promise<Pool> {
    const pools = await this.store.read((reader) => reader.accounts.get([account]))
    const pool = pools.get(account)
    if (pool === undefined) throw new Error(`no account ${account}`)
    return pool
  }

  /** What the cloud itself charges, without a device. */
  async chargeDirectly(account: string, amount: bigint): Promise<boolean> {
    return this.store.transaction(async (tx) => {
      const rules = await this.policies.lockSomeShared(tx, [INSTANCE], this.time)
      const pool = (await openPools(tx, rules, [account])).get(account)
      if (pool === undefined || free(pool) < amount) return false
      await tx.accounts.save([charge(pool, amount)])
      return true
    })
  }

  /** What the cloud itself refunds. */
  async refundDirectly(account: string, amount: bigint): Promise<void> {
    await this.store.transaction(async (tx) => {
      const pool = (await tx.accounts.lock([account])).get(account)
      if (pool !== undefined) await tx.accounts.save([refund(pool, amount)])
    })
  }

  async reserve(lineItemId: string, tokens: bigint): Promise<void> {
    await setCloudReserve(this.#watching, { instanceId: INSTANCE, lineItemId, tokens })
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.store.close()
    await this.#cleanUp()
  }
}

async function newKeyring(): Promise<Keyring> {
  const { signer, jwk, publicKey } = await newSigner()
  return { signer, trusted: [{ keyId: signer.keyId, jwk, publicKey }] }
}
