/** Notifies devices that can be served again, and recalls tokens before the cloud's own renewals. */
import { type AccountId, lineAccount } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import { periodAt } from '../../../core/rules/compile.ts'
import { noteCloudLack } from './cloud-shortages.ts'
import { returnableOf } from './rebalance.ts'
import { type Policies, reserveOf } from '../../policy/load-policy.ts'
import { free, recoverable } from '../../accounts/pool.ts'
import type { ChangeNotification, Pool } from '../../storage/records.ts'
import type { Reader, Store } from '../../storage/store.ts'
import { RENEWALS_WATCHED_MAX, SERVABLE_NOTIFIED_MAX, SHORTAGES_FORGOTTEN_MAX } from '../../devices/limits.ts'
import { CLOUD_RENEWALS, CLOUD_RESERVE, NOTHING_RETURNABLE } from '../../storage/device-records.ts'
import type { EdgeTerms } from '../../devices/terms.ts'

export interface WatchShortages {
  readonly store: Pick<Store, 'read' | 'transaction'>
  readonly policies: Pick<Policies, 'of' | 'lockShared'>
  readonly now: () => number
  readonly terms: Pick<EdgeTerms, 'syncEveryMs' | 'grantHorizonMs'>
}

/** How long after its shortage a device is notified of tokens, ms. */
const NOTIFY_FOR_MS = 24 * 60 * 60_000

/** Renewals due within this many sync intervals recall tokens: one to return them, one as a margin. */
const AHEAD_SYNCS = 2

const RECALL_EVERY_MAX_MS = 30_000

/** Notifies some devices. The others wait for the next look, to spread the load. */
export async function notifyServable({ store, now, terms }: WatchShortages): Promise<void> {
  const at = now()
  const times = { now: at, since: at - NOTIFY_FOR_MS, notifiedBefore: at - terms.syncEveryMs }
  const isAny = await store.read(async (reader) => (await reader.edge.shortages.servable(times, 1)).length > 0)
  if (!isAny) return
  await store.transaction(async (tx) => {
    const devices = await tx.edge.shortages.takeServable(times, SERVABLE_NOTIFIED_MAX)
    await tx.outbox.append(
      devices.map((deviceId): ChangeNotification => ({ kind: 'device', deviceId, reason: 'sync' })),
      at,
    )
  })
}

/** At least once per sync interval, ms, so that no renewal falls between two looks and no recall expires. */
export function recallEveryMs({ syncEveryMs }: Pick<EdgeTerms, 'syncEveryMs'>): number {
  return Math.min(RECALL_EVERY_MAX_MS, syncEveryMs)
}

export async function recallForCloud({ store, policies, now, terms }: WatchShortages): Promise<void> {
  const at = now()
  const needed = await store.read(async (reader) => {
    return new Map([
      [CLOUD_RENEWALS, await renewalsAhead(reader, at + AHEAD_SYNCS * terms.syncEveryMs)],
      [CLOUD_RESERVE, await unfilledReserves(reader, policies, at)],
    ])
  })
  for (const [who, amounts] of needed) {
    for (const [account, { instanceId, amount }] of amounts) {
      await store.transaction(async (tx) => {
        const loaded = await policies.lockShared(tx, instanceId, at)
        const pool = (await tx.accounts.lock([account])).get(account)
        if (loaded === undefined || pool === undefined) return
        const context = { deps: { terms }, tx, now: at }
        const others = await returnableOf(context, [account], '')
        const returnable = others.get(account) ?? NOTHING_RETURNABLE
        const most = free(pool) + returnable.all
        const lacking = amount < most ? amount : most
        if (lacking <= free(pool)) return
        await noteCloudLack(context, loaded, { pool, who, lacking, returnable })
      })
    }
  }
  const noted = { before: at - NOTIFY_FOR_MS, after: at + NOTIFY_FOR_MS }
  await store.transaction((tx) => tx.edge.shortages.forget(noted, SHORTAGES_FORGOTTEN_MAX))
}

interface Needed {
  readonly instanceId: string
  readonly amount: Micro
}

async function renewalsAhead(reader: Reader, until: number): Promise<ReadonlyMap<AccountId, Needed>> {
  const sums = new Map<AccountId, Needed>()
  for (const { instanceId, charge } of await reader.sessions.renewedBy(until, RENEWALS_WATCHED_MAX)) {
    for (const { accounts, charged } of (charge?.items ?? []).flatMap(({ shares }) => shares)) {
      for (const account of accounts) {
        sums.set(account, { instanceId, amount: (sums.get(account)?.amount ?? 0n) + charged })
      }
    }
  }
  return lackingOnly(reader, sums)
}

async function unfilledReserves(
  reader: Reader,
  policies: Pick<Policies, 'of'>,
  now: number,
): Promise<ReadonlyMap<AccountId, Needed>> {
  const reserved = new Map<AccountId, Needed>()
  for (const { instanceId, lineItemId, tokens } of await reader.edge.cloudReserves.list(null)) {
    if (tokens === 0n) continue
    const loaded = await policies.of(reader, instanceId)
    const lineItem = loaded?.lineItems.get(lineItemId)
    const period = lineItem === undefined ? undefined : periodAt(lineItem.periods, now)
    if (loaded === undefined || period === undefined) continue
    const account = lineAccount(instanceId, lineItemId, period.index)
    const charged = (await reader.accounts.get([account])).get(account)?.charged ?? 0n
    const unfilled = reserveOf(account, loaded) - charged
    if (unfilled > 0n) reserved.set(account, { instanceId, amount: unfilled })
  }
  return lackingOnly(reader, reserved)
}

async function lackingOnly(
  reader: Reader,
  needed: ReadonlyMap<AccountId, Needed>,
): Promise<ReadonlyMap<AccountId, Needed>> {
  const pools = await reader.accounts.get([...needed.keys()])
  const isLacking = (pool: Pool | undefined, amount: Micro): boolean =>
    pool !== undefined && pool.capTarget !== null && free(pool) < amount && recoverable(pool) > 0n
  return new Map([...needed].filter(([account, { amount }]) => isLacking(pools.get(account), amount)))
}
