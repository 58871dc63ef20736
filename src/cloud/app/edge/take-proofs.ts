/**
 * Grants that the twin has signed itself and does not remember are entered again, whatever has become of the pool since,
 * because the device may have spent them.
 */
import type { AccountId } from '../../../core/account.ts'
import type { Micro } from '../../../core/amount.ts'
import type { Transaction } from '../store.ts'
import { type AccountMove, movePools } from './move.ts'
import type { Proof } from './open-proofs.ts'
import { type Device, type Incarnation, newDeviceAccount, settled } from './records.ts'
import { holdRules, openPools } from './rules-in-force.ts'
import type { Sync } from './taking.ts'
import { writePresumptions } from './write-settlement.ts'

/** What proofs say of one account, in whatever order they come. */
interface Shown {
  readonly granted: Micro
  /** How it was granted last. */
  readonly last: { readonly term: number; readonly unlimited: boolean }
  /** It was granted without limit at some time. */
  readonly metered: boolean
}

/** The incarnation with what its proofs say that it was granted; the same one when they say nothing new. */
export async function takeProofs(
  { policies }: Pick<Sync, 'policies'>,
  tx: Transaction,
  device: Device,
  incarnation: Incarnation,
  proofs: readonly Proof[],
  now: number,
): Promise<Incarnation> {
  const shown = new Map<AccountId, Shown>()
  let { term } = incarnation
  for (const { answer } of proofs) {
    if (answer.outcome !== 'MERGED' || answer.grant === null || answer.incarnation !== incarnation.number) continue
    if (answer.grant.term > term) term = answer.grant.term
    for (const { account, granted, unlimited } of answer.grant.accounts) {
      const before = shown.get(account)
      const last =
        before !== undefined && before.last.term > answer.grant.term
          ? before.last
          : { term: answer.grant.term, unlimited }
      shown.set(account, {
        granted: before !== undefined && before.granted > granted ? before.granted : granted,
        last,
        metered: unlimited || before?.metered === true,
      })
    }
  }
  if (incarnation.status === 'CLOSED' || term === incarnation.term) return incarnation

  const known = await tx.edge.deviceAccounts.get(device.id, incarnation.number, [...shown.keys()])
  const moves = [...shown].flatMap(([account, proven]): AccountMove[] => {
    const before = known.get(account) ?? newDeviceAccount(device.id, incarnation.number, account)
    const unlimited = proven.last.term > incarnation.term ? proven.last.unlimited : before.unlimited
    const metered = before.metered || proven.metered
    if (proven.granted <= before.granted && unlimited === before.unlimited && metered === before.metered) return []
    const more = proven.granted > before.granted ? proven.granted : before.granted
    return [{ before, after: settled({ ...before, granted: more, unlimited, metered }, incarnation.settlement) }]
  })
  const rules = await holdRules(tx, policies, device.instanceIds, now)
  const pools = await openPools(
    tx,
    rules,
    moves.map(({ after }) => after.account),
  )
  const moved = movePools(pools, moves)
  if (moved === undefined) throw new Error('invariant: what was granted once fits a counter')
  await tx.accounts.save([...moved.values()])
  await tx.edge.deviceAccounts.save(moves.map(({ after }) => after))
  // What was granted to an incarnation that is settled counts as used until its segments say otherwise.
  await writePresumptions({ tx, incarnation, now }, moves, moved)
  const next: Incarnation = { ...incarnation, term, grantsForgotten: true }
  await tx.edge.incarnations.save(next)
  return next
}
