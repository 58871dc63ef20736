/**
 * After a restore, sales shown by the sales mark are withheld and the rest is sold; without that proof nothing is. Ends
 * when all devices have reported, or an administrator accepts the risk. See docs/decisions/sales-mark.md.
 */
import { recordChange } from '../../storage/audit.ts'
import { ENGINE } from '../../../core/engine.ts'
import { type AccountId, instanceIdOf } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import type { RecoveryStateWire } from '../../../protocol/edge/administration.ts'
import { capByPolicy } from '../../policy/rules-in-force.ts'
import { RECOVERY_SHOWN_MAX, USAGE_FORGOTTEN_ROWS_MAX, USAGE_ROWS_PER_MS } from '../../devices/limits.ts'
import type { Recovery } from '../../storage/device-records.ts'
import type { LoadedPolicy, Policies } from '../../policy/load-policy.ts'
import { free, release, withhold } from '../../accounts/pool.ts'
import { lockRules, bumpPolicyRevision } from '../../policy/bump-policy-revision.ts'
import { type Pool, USAGE_ROW_POSITIONS } from '../../storage/records.ts'
import type { Reader, Store, Transaction } from '../../storage/store.ts'
import { requireInstance } from '../../storage/require-record.ts'

export interface Forgotten {
  readonly sold: ReadonlyMap<AccountId, Micro>
  /** Why other accounts may have been sold from; null: they were not. */
  readonly unproven: Recovery['unproven']
  /** This node has seen usage records up to it. */
  readonly position: bigint
  /** Another node has begun this recovery. */
  readonly isJoined: boolean
  readonly until: number
  readonly reason: string
}

/** The whole database was restored: lost state of any instance must not collide with new state. */
export async function beginRecovery(
  tx: Transaction,
  policies: Pick<Policies, 'of'>,
  { sold, unproven, position, isJoined, until, reason }: Forgotten,
  now: number,
): Promise<void> {
  await tx.policyRevisions.lockAll()
  await withholdSold(tx, policies, sold)
  // Revisions grow with time, so that the same backup can be restored again.
  await tx.policyRevisions.bumpAll(now, ENGINE.version, now)
  await tx.outbox.appendPolicies(now)
  const since = Math.max(now, until + 1)
  await tx.edge.recoveries.restored(since, false)
  await tx.edge.recoveries.beginAll(since, unproven)
  await recordChange(tx, now, { action: 'NOTICE_RESTORE', detail: { reason } })
  // Nodes use the same clock here: that of one may be behind that of another.
  const time = (await tx.sweeps.databaseTime()) ?? now
  const byTime = least(BigInt(time) * USAGE_ROWS_PER_MS * USAGE_ROW_POSITIONS, POSITION_BY_TIME_MAX)
  const settled = await tx.usage.settled()
  const isPassed = isJoined && position <= settled
  const known = greatest(settled, position)
  // If the clock is behind. The time would not pass this in turn, so a later restore could use the same positions.
  const byCount = byTime > known || isPassed ? 0n : known + USAGE_FORGOTTEN_ROWS_MAX * USAGE_ROW_POSITIONS
  // An export may have returned the position: as a cursor it is forgotten, so no later export may return it.
  await tx.usage.passForgotten(greatest(byTime, byCount, position + USAGE_ROW_POSITIONS))
}

/** Far below the end of 64 bits, whatever the clock says. */
const POSITION_BY_TIME_MAX = 1n << 62n

function least(a: bigint, b: bigint): bigint {
  return a < b ? a : b
}

function greatest(first: bigint, ...others: readonly bigint[]): bigint {
  return others.reduce((most, each) => (each > most ? each : most), first)
}

async function withholdSold(
  tx: Transaction,
  policies: Pick<Policies, 'of'>,
  sold: ReadonlyMap<AccountId, Micro>,
): Promise<void> {
  const rules = new Map<string, LoadedPolicy | undefined>()
  const wanted: { account: AccountId; cap: Micro | null }[] = []
  for (const account of sold.keys()) {
    const instanceId = instanceIdOf(account)
    if (!rules.has(instanceId)) rules.set(instanceId, await policies.of(tx, instanceId))
    const loaded = rules.get(instanceId)
    if (loaded !== undefined) wanted.push({ account, cap: capByPolicy(loaded, account) })
  }
  const pools = await tx.accounts.open(wanted)
  const behind = [...pools.values()].filter((pool) => pool.sold < (sold.get(pool.account) ?? 0n))
  await tx.accounts.save(behind.map((pool) => withhold(pool, sold.get(pool.account) ?? 0n)))
}

export async function endRecoveries(store: Pick<Store, 'read' | 'transaction'>, now: number): Promise<void> {
  for (const recovery of await store.read((reader) => reader.edge.recoveries.underWay())) {
    if (recovery.unproven !== null) continue
    await store.transaction(async (tx) => {
      const waiting = await tx.edge.recoveries.waitingFor(recovery, 1)
      if (waiting.length === 0) await tx.edge.recoveries.end(recovery, now)
    })
  }
}

/** @throws CodedError NOT_FOUND for an unknown instance */
export async function showRecovery(
  { store }: { readonly store: Pick<Store, 'read'> },
  instanceId: string,
): Promise<RecoveryStateWire> {
  return store.read((reader) => stateOf(reader, instanceId))
}

/** An administrator accepts the risk. @returns the previous state, with the risk. @throws CodedError NOT_FOUND */
export async function overrideRecovery(
  { store, now }: { readonly store: Pick<Store, 'transaction'>; readonly now: () => number },
  instanceId: string,
): Promise<RecoveryStateWire> {
  return store.transaction(async (tx) => {
    const revision = await lockRules(tx, instanceId)
    const state = await stateOf(tx, instanceId)
    if (state.since === null && state.accounts.length === 0) return state
    const at = now()
    const withheld = (await tx.accounts.ofInstance(instanceId)).filter((pool) => pool.withheld > 0n)
    const locked = await tx.accounts.lock(withheld.map(({ account }) => account))
    await tx.accounts.save([...locked.values()].map(release))
    const recovery = await tx.edge.recoveries.get(instanceId)
    if (recovery?.endedAt === null) await tx.edge.recoveries.end(recovery, at)
    // Cached rules must learn that selling is permitted.
    await bumpPolicyRevision(tx, revision, at)
    await recordChange(tx, at, { action: 'END_RECOVERY', instanceId, detail: { exposure: state.accounts } })
    return state
  })
}

async function stateOf(reader: Reader, instanceId: string): Promise<RecoveryStateWire> {
  await requireInstance(reader, instanceId)
  const recovery = await reader.edge.recoveries.get(instanceId)
  const isUnderWay = recovery?.endedAt === null
  const unproven = isUnderWay ? recovery.unproven : null
  const exposed = (await reader.accounts.ofInstance(instanceId)).filter((pool) => atRisk(pool, unproven !== null) > 0n)
  return {
    since: isUnderWay ? recovery.since : null,
    unproven,
    waitingFor: isUnderWay ? [...(await reader.edge.recoveries.waitingFor(recovery, RECOVERY_SHOWN_MAX))] : [],
    accounts: exposed.slice(0, RECOVERY_SHOWN_MAX).map((pool) => ({
      account: pool.account,
      atRisk: String(atRisk(pool, unproven !== null)),
      free: String(unproven === null ? free(pool) : 0n),
    })),
  }
}

/** Tokens sold twice at most: the withheld ones, even above those now free, because tokens return. */
function atRisk(pool: Pool, unproven: boolean): Micro {
  if (pool.capTarget === null) return 0n
  const left = unproven ? free(release(pool)) : 0n
  return pool.withheld > left ? pool.withheld : left
}
