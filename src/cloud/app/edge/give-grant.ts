/**
 * Gives a device its grant: what is sized in `grants.ts` goes into the pools and the accounts of the device, in the
 * transaction of the merge, and other devices are asked for what it still lacks. Of what a restored twin may have forgotten
 * nothing is granted.
 */
import { type AccountId, parseAccount } from '../../../core/account.ts'
import { type Want, room } from '../../../core/grant.ts'
import type { Grant } from '../../../protocol/edge/sync.ts'
import type { Pool } from '../records.ts'
import { type Grantable, type Granting, grantWants, lastUsableAt, quantityOf } from './grants.ts'
import type { DeviceAccountRecord } from './records.ts'
import type { RulesInForce } from './rules-in-force.ts'
import { type Shortage, askOthers } from './share-scarce.ts'
import { type Taking, ownerOf } from './taking.ts'

/** Wants that can be met at all, each account once. */
export function usefulWants(wants: readonly Want[], grantable: Grantable): readonly Want[] {
  const byAccount = new Map<AccountId, Want>()
  for (const want of wants) {
    if (want.wanted === 0n && want.atLeast === 0n) continue
    if (!byAccount.has(want.account) && grantable(want.account) !== undefined) byAccount.set(want.account, want)
  }
  return [...byAccount.values()]
}

/** Whether the device shall give back what it holds: an administrator asked for it, or a cap was lowered. */
export async function mustRelease({ tx, device, incarnation }: Taking): Promise<boolean> {
  const { deviceAccounts } = tx.edge
  if (device.releaseAsked) return deviceAccounts.hasRoom(device.id, incarnation.number)
  return deviceAccounts.hasRoomAboveCap(device.id, incarnation.number)
}

interface Giving {
  readonly rules: RulesInForce
  /** By these rules. */
  readonly grantable: Grantable
  readonly wants: readonly Want[]
  /** After the merge, as is what is held of them. */
  readonly pools: ReadonlyMap<AccountId, Pool>
  readonly held: (account: AccountId) => DeviceAccountRecord
  readonly releasing: boolean
}

/** The signed part of the answer; pools, accounts and asks are written. */
export async function giveGrant(
  taking: Taking,
  { rules, grantable, wants, pools, held, releasing }: Giving,
): Promise<Grant> {
  const { deps, tx, device, incarnation, now } = taking
  const { terms } = deps
  const others = new Map<string, number>()
  for (const instanceId of rules.keys()) {
    others.set(instanceId, await tx.edge.devices.countLive(instanceId, now - terms.grantHorizonMs, device.id))
  }
  const devicesOn = (account: AccountId): number => (others.get(parseAccount(account)?.instanceId ?? '') ?? 0) + 1
  const forgotten = await forgottenOf(taking, rules, wants)
  const granting = grantWants(
    wants,
    pools,
    held,
    devicesOn,
    (account) => quantityOf(account, grantable),
    (account) => releasing || forgotten.has(account),
  )
  await tx.accounts.save([...granting.pools.values()])
  await tx.edge.deviceAccounts.save(granting.accounts)
  if (!releasing) await askOthers(taking, shortagesAfter(taking, wants, pools, held, granting), devicesOn)
  const lifetimeMs = Math.max(0, Math.min(terms.grantLifetimeMs, (lastUsableAt(rules) ?? Infinity) - now))
  return {
    // Rises with time, so that a twin restored from a backup goes on above every term that it has forgotten.
    term: Math.max(incarnation.term + 1, now),
    lifetimeMs,
    expiresAt: now + lifetimeMs,
    accounts: granting.granted,
  }
}

/** Accounts of which a restored twin grants nothing: somebody may hold more of them than it remembers. */
async function forgottenOf(
  { tx, incarnation }: Taking,
  rules: RulesInForce,
  wants: readonly Want[],
): Promise<ReadonlySet<AccountId>> {
  const forgotten = new Set<AccountId>()
  for (const instanceId of rules.keys()) {
    const since = await tx.edge.learning.since(instanceId)
    if (since === undefined) continue
    const accounts = wants.map(({ account }) => account).filter((id) => parseAccount(id)?.instanceId === instanceId)
    for (const account of await tx.edge.learning.blocked(accounts, since, ownerOf(incarnation))) forgotten.add(account)
  }
  return forgotten
}

/** What is still lacking of the wants after the grant. */
function shortagesAfter(
  { segment }: Taking,
  wants: readonly Want[],
  pools: ReadonlyMap<AccountId, Pool>,
  held: (account: AccountId) => DeviceAccountRecord,
  granting: Granting,
): readonly Shortage[] {
  const granted = new Map(granting.accounts.map((record) => [record.account, record]))
  const counted = new Set(segment.received.counters.map(({ account }) => account))
  return wants.flatMap((want): Shortage[] => {
    const { account } = want
    const record = granted.get(account) ?? held(account)
    const pool = granting.pools.get(account) ?? pools.get(account)
    const has = room(record)
    if (pool === undefined || (has >= want.atLeast && has >= want.wanted)) return []
    return [{ want, pool, record, inUse: counted.has(account) }]
  })
}
