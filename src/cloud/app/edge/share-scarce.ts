/**
 * A pool that has nothing left while devices hold rights that they may not need: those are asked, with their next answer and
 * by a hint to come at once, to give back what they can spare. Each may keep its fair share, and is asked once in a sync
 * interval at most. Nothing is taken from a device that has not given it back.
 */
import type { AccountId } from '../../../core/account.ts'
import type { Micro } from '../../../core/amount.ts'
import { type Want, room } from '../../../core/grant.ts'
import { RELEASES_MAX } from '../../../protocol/edge/sync.ts'
import type { Hint, Pool } from '../records.ts'
import type { Transaction } from '../store.ts'
import { RELEASES_ASKED_MAX } from './limits.ts'
import type { DeviceAccountRecord, ReleaseAsk } from './records.ts'
import type { Taking } from './taking.ts'

/**
 * What the device was asked for, and what of it is still open after the merge, as much as one answer takes: what it has given
 * back is settled. A request that was written since its account could have been locked waits for the next segment.
 *
 * @param locked accounts that this transaction has locked
 */
export async function takeAsks(
  { tx, device, incarnation }: Taking,
  locked: ReadonlyMap<AccountId, Pool>,
): Promise<{
  readonly asked: readonly ReleaseAsk[]
  readonly open: readonly ReleaseAsk[]
}> {
  const asks = (await tx.edge.releases.of(device.id)).filter(({ account }) => locked.has(account))
  if (asks.length === 0) return { asked: [], open: [] }
  const accounts = asks.map(({ account }) => account)
  const records = await tx.edge.deviceAccounts.get(device.id, incarnation.number, accounts)
  const open = asks.filter(({ account, keep }) => {
    const record = records.get(account)
    return record !== undefined && !record.unlimited && room(record) > keep
  })
  const done = asks.filter((ask) => !open.includes(ask)).map(({ account }) => account)
  await tx.edge.releases.remove(device.id, done)
  return { asked: asks, open: open.slice(0, RELEASES_MAX) }
}

/** What a device that is asked for tokens, or has just given them back, gets of them: what a waiting request needs, and no comfort. */
export function withoutComfort(wants: readonly Want[], asks: readonly ReleaseAsk[]): readonly Want[] {
  const asked = new Set(asks.map(({ account }) => account))
  return wants.map((want) => (asked.has(want.account) ? { ...want, wanted: want.atLeast } : want))
}

export interface Shortage {
  readonly want: Want
  /** After the grant. */
  readonly pool: Pool
  readonly record: DeviceAccountRecord
  /** The segment reports use of the account: its wish for more is not that of an idle device. */
  readonly inUse: boolean
}

/**
 * Asks other devices for what this one lacks. Comfort is worth asking for only to a device that uses the account, and only
 * up to a fair share of all that is not spent.
 *
 * @param devices how many live devices draw on the account, this one included
 */
export async function askOthers(
  { tx, device, now, deps }: Taking,
  shortages: readonly Shortage[],
  devices: (account: AccountId) => number,
): Promise<void> {
  const asked = new Set<string>()
  for (const { want, pool, record, inUse } of shortages) {
    if (pool.capTarget === null || pool.charged + pool.grantedOut < pool.capTarget) continue
    const { account } = want
    const others = await tx.edge.deviceAccounts.roomOfOthers(account, device.id, RELEASES_ASKED_MAX)
    const own = room(record)
    const unspent = others.reduce((sum, other) => sum + other.room, own)
    const share = unspent / BigInt(Math.max(1, devices(account)))
    const comfortable = inUse && want.wanted > own && own < share ? share - own : 0n
    const needed = want.atLeast > own ? want.atLeast - own : 0n
    await ask(tx, others, account, share, needed > comfortable ? needed : comfortable)
  }
  const hints = [...asked].map((deviceId): Hint => ({ kind: 'device', deviceId, reason: 'sync' }))
  if (hints.length > 0) await tx.outbox.append(hints, now)

  /** As many as it takes if each of them spared all that it has: only they know what they need. */
  async function ask(
    within: Transaction,
    others: readonly { readonly deviceId: string; readonly room: Micro }[],
    account: AccountId,
    keep: Micro,
    lacking: Micro,
  ): Promise<void> {
    let hoped = 0n
    for (const other of others) {
      if (hoped >= lacking) return
      const fresh = await within.edge.releases.ask(other.deviceId, account, keep, now, now - deps.terms.syncEveryMs)
      if (fresh) asked.add(other.deviceId)
      hoped += other.room > keep ? other.room - keep : 0n
    }
  }
}
