/**
 * Post-restore recovery: the database comes from a backup, and does not know all that was sold and granted. What the sales
 * mark shows to be missing is withheld from each account, and the rest is sold; without that proof nothing is sold. Devices
 * that come back account for what they hold. The recovery of an instance ends when all of its devices have been heard from,
 * or by an administrator, who takes the risk. What nothing accounts for stays withheld until then: the twin has sold it to
 * clients of its own, or to devices that are gone.
 */
import { type AccountId, parseAccount } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import type { RecoveryStateWire } from '../../../protocol/edge/administration.ts'
import { CodedError } from '../../../protocol/errors.ts'
import { capIn } from '../../accounts/decide-over-pools.ts'
import { RECOVERY_SHOWN_MAX, USAGE_FORGOTTEN_MAX } from '../../devices/limits.ts'
import type { Recovery } from '../../storage/device-records.ts'
import type { LoadedPolicy, Policies } from '../../policy/load-policy.ts'
import { free, release, withhold } from '../../accounts/pool.ts'
import { lockRules, bumpPolicyRevision } from '../../policy/bump-policy-revision.ts'
import type { Pool } from '../../storage/records.ts'
import type { Reader, Store, Transaction } from '../../storage/store.ts'

/** What is known of what the database has forgotten. */
export interface Forgotten {
  /** How much can have been sold of each account in all, at most. */
  readonly sold: ReadonlyMap<AccountId, Micro>
  /** Why other accounts may have been sold from as well; null: they were not. */
  readonly unproven: Recovery['unproven']
  /** The highest position of usage records that an export has named. */
  readonly position: bigint
  /** The last instant at which the twin is known to have worked, POSIX ms. */
  readonly until: number
  /** For the audit. */
  readonly reason: string
}

/** The whole database comes from a backup: of every instance, what it has forgotten must not be mistaken for what follows. */
export async function beginRecovery(
  tx: Transaction,
  policies: Pick<Policies, 'of'>,
  { sold, unproven, position, until, reason }: Forgotten,
  now: number,
): Promise<void> {
  await tx.policyRevisions.lockAll()
  await withholdSold(tx, policies, sold)
  // Revisions rise with time, so that the same backup can be restored again.
  await tx.policyRevisions.raiseAll(now, now)
  await tx.outbox.appendPolicies(now)
  await tx.edge.recoveries.restored(now)
  await tx.edge.recoveries.beginAll(Math.max(await recoversSince(tx, now), until + 1), unproven)
  await tx.edge.audit.append({
    at: now,
    by: 'twin',
    action: 'NOTICE_RESTORE',
    deviceId: null,
    sessionId: null,
    detail: reason,
  })
  await tx.usage.passForgotten(
    greatest(BigInt(now) * 1_000n, (await tx.usage.settled()) + USAGE_FORGOTTEN_MAX, position),
  )
}

function greatest(first: bigint, ...others: readonly bigint[]): bigint {
  return others.reduce((most, each) => (each > most ? each : most), first)
}

/**
 * From when on devices have to be heard from: later than all that the backup knows of them, also on a host whose clock is
 * behind the one on which the backup was made. No device counts as heard from before the clock has come so far.
 */
export async function recoversSince(reader: Reader, now: number): Promise<number> {
  return Math.max(now, ((await reader.edge.devices.newestSync()) ?? -1) + 1)
}

/** Accounts of instances that the backup does not know have nothing to protect. */
async function withholdSold(
  tx: Transaction,
  policies: Pick<Policies, 'of'>,
  sold: ReadonlyMap<AccountId, Micro>,
): Promise<void> {
  const rules = new Map<string, LoadedPolicy | undefined>()
  const wanted: { account: AccountId; cap: Micro | null }[] = []
  for (const account of sold.keys()) {
    const instanceId = parseAccount(account)?.instanceId ?? ''
    if (!rules.has(instanceId)) rules.set(instanceId, await policies.of(tx, instanceId))
    const loaded = rules.get(instanceId)
    if (loaded !== undefined) wanted.push({ account, cap: capIn(loaded, account) })
  }
  const pools = await tx.accounts.open(wanted)
  const behind = [...pools.values()].filter((pool) => pool.sold < (sold.get(pool.account) ?? 0n))
  await tx.accounts.save(behind.map((pool) => withhold(pool, sold.get(pool.account) ?? 0n)))
}

/** Ends those in which all devices were heard from. Always false: there is nothing to continue with at once. */
export async function endRecoveries(store: Pick<Store, 'read' | 'transaction'>, now: number): Promise<false> {
  for (const { instanceId, since, unproven } of await store.read((reader) => reader.edge.recoveries.underWay())) {
    if (unproven !== null) continue
    await store.transaction(async (tx) => {
      const waiting = await tx.edge.recoveries.waitingFor(instanceId, since, 1)
      if (waiting.length === 0) await tx.edge.recoveries.end(instanceId, now, 'twin')
    })
  }
  return false
}

/** @throws CodedError NOT_FOUND for an instance that does not exist */
export async function showRecovery(
  { store }: { readonly store: Pick<Store, 'read'> },
  instanceId: string,
): Promise<RecoveryStateWire> {
  return store.read((reader) => stateOf(reader, instanceId))
}

/**
 * An administrator takes the risk: what is withheld is sold again, and what was not known to be unsold, too.
 *
 * @returns the state before, with what may now be sold twice
 * @throws CodedError NOT_FOUND
 */
export async function overrideRecovery(
  { store, now }: { readonly store: Pick<Store, 'transaction'>; readonly now: () => number },
  instanceId: string,
  by: string,
): Promise<RecoveryStateWire> {
  return store.transaction(async (tx) => {
    const revision = await lockRules(tx, instanceId)
    const state = await stateOf(tx, instanceId)
    if (state.since === null && state.accounts.length === 0) return state
    const at = now()
    const withheld = (await tx.edge.pools(instanceId)).filter((pool) => pool.withheld > 0n)
    const locked = await tx.accounts.lock(withheld.map(({ account }) => account))
    await tx.accounts.save([...locked.values()].map(release))
    if (state.since !== null) await tx.edge.recoveries.end(instanceId, at, by)
    // Rules that are kept in memory know that nothing may be sold.
    await bumpPolicyRevision(tx, revision, at)
    const detail = JSON.stringify({ instanceId, exposure: state.accounts })
    await tx.edge.audit.append({ at, by, action: 'END_RECOVERY', deviceId: null, sessionId: null, detail })
    return state
  })
}

async function stateOf(reader: Reader, instanceId: string): Promise<RecoveryStateWire> {
  if ((await reader.instances.get(instanceId)) === undefined) {
    throw new CodedError('NOT_FOUND', `There is no instance ${instanceId}.`)
  }
  const recovery = await reader.edge.recoveries.get(instanceId)
  const isUnderWay = recovery?.endedAt === null
  const unproven = isUnderWay ? recovery.unproven : null
  const exposed = (await reader.edge.pools(instanceId)).filter((pool) => atRisk(pool, unproven !== null) > 0n)
  return {
    since: isUnderWay ? recovery.since : null,
    unproven,
    waitingFor: isUnderWay
      ? [...(await reader.edge.recoveries.waitingFor(instanceId, recovery.since, RECOVERY_SHOWN_MAX))]
      : [],
    accounts: exposed.slice(0, RECOVERY_SHOWN_MAX).map((pool) => ({
      account: pool.account,
      atRisk: String(atRisk(pool, unproven !== null)),
      free: String(unproven === null ? free(pool) : 0n),
    })),
  }
}

/**
 * What of the account may be sold twice when the recovery is ended, at most: what is withheld, also where that is more than is
 * free now, because tokens come back. Where nothing is proven, all that is free.
 */
function atRisk(pool: Pool, unproven: boolean): Micro {
  if (pool.capTarget === null) return 0n
  const left = unproven ? free(release(pool)) : 0n
  return pool.withheld > left ? pool.withheld : left
}
