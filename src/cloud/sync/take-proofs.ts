/** Records signed grants that the cloud lost, whatever the pool has now, because the device may have spent them. */
import type { AccountId } from '../../core/accounts/account.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import type { Grant } from '../../protocol/edge/sync.ts'
import { type AccountMove, movePools } from '../accounts/move-pools.ts'
import { type Proof, isForgotten } from './open-proofs.ts'
import { type DeviceAccountRecord, type Epoch, newDeviceAccount, settled } from '../storage/device-records.ts'
import { openPools } from '../policy/rules-in-force.ts'
import type { MergeContext } from './merge-context.ts'
import { saveMoves } from './save-moves.ts'

/** All that the proofs show of one account. */
interface ProvenGrant {
  /** The highest of the proven amounts. */
  readonly granted: Micro
  /** Of the proof with the highest term. */
  readonly term: number
  readonly unlimited: boolean
  /** True if any of the proofs was unlimited. */
  readonly metered: boolean
}

export async function takeProofs(
  context: Pick<MergeContext, 'deps' | 'tx' | 'device' | 'epoch' | 'now'>,
  proofs: readonly Proof[],
): Promise<Epoch> {
  const { deps, tx, device, epoch, now } = context
  const forgotten = proofs.filter((proof) => isForgotten(epoch, proof))
  if (epoch.status === 'CLOSED' || forgotten.length === 0) return epoch
  const grants = forgotten.flatMap(({ answer }) => (answer.outcome === 'MERGED' ? (answer.grant ?? []) : []))
  const proven = provenGrants(grants)
  const known = await tx.edge.deviceAccounts.get(device.id, epoch.number, [...proven.keys()])
  const moves = [...proven].flatMap(([account, grant]) => {
    const before = known.get(account) ?? newDeviceAccount(device.id, epoch.number, account)
    return provenMove(before, grant, epoch) ?? []
  })
  const rules = await deps.policies.lockSomeShared(tx, device.instanceIds, now)
  const pools = await openPools(
    tx,
    rules,
    moves.map(({ after }) => after.account),
  )
  const moved = movePools(pools, moves)
  if (moved === undefined) throw new Error('invariant: what was granted once fits a counter')
  // Grants of a settled epoch count as used until its segments prove otherwise.
  await saveMoves(context, moved)
  const term = Math.max(epoch.term, ...grants.map((grant) => grant.term))
  const next: Epoch = { ...epoch, term, grantsForgotten: true }
  await tx.edge.epochs.save(next)
  return next
}

function provenGrants(grants: readonly Grant[]): ReadonlyMap<AccountId, ProvenGrant> {
  const proven = new Map<AccountId, ProvenGrant>()
  for (const { term, accounts } of grants) {
    for (const { account, granted, unlimited } of accounts) {
      const before = proven.get(account)
      const last = before !== undefined && before.term > term ? before : { term, unlimited }
      proven.set(account, {
        granted: before !== undefined && before.granted > granted ? before.granted : granted,
        term: last.term,
        unlimited: last.unlimited,
        metered: unlimited || before?.metered === true,
      })
    }
  }
  return proven
}

/** Undefined if the account shows all of the grant already. */
function provenMove(
  before: DeviceAccountRecord,
  proven: ProvenGrant,
  { term, settlement }: Epoch,
): AccountMove | undefined {
  // A grant of other accounts can be known before this one. The device learns of a limit with its next grant.
  const unlimited = proven.unlimited || (proven.term <= term && before.unlimited)
  const metered = before.metered || proven.metered
  if (proven.granted <= before.granted && unlimited === before.unlimited && metered === before.metered) return undefined
  const granted = proven.granted > before.granted ? proven.granted : before.granted
  const wasMetered = before.wasMetered || metered
  const after = settled({ ...before, granted, unlimited, metered, wasMetered }, settlement)
  return { before, after, isProven: true }
}
