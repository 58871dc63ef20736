/**
 * Incarnations that have been silent for too long are settled: what they hold counts as used (the default), or goes back to
 * the pool at a risk that is shown. Whatever becomes known later corrects it: a presumption comes down to the true figure, and
 * use of what was released is an overrun. A device that comes back is billed, closed exactly and begins anew, as after any
 * other fence. Of a twin that was restored from a backup, silence counts from the restore at the earliest: what was silent in the
 * backup may have been granted something since.
 */
import type { Policies } from '../load-policy.ts'
import type { Store, Transaction } from '../store.ts'
import { fenced } from './attach.ts'
import { type AccountMove, movePools } from './move.ts'
import { type Incarnation, type Settlement, settled } from './records.ts'
import { holdRules, openPools } from './rules-in-force.ts'
import { writePresumptions } from './write-presumptions.ts'

export interface SettleSilent {
  readonly store: Pick<Store, 'transaction'>
  readonly policies: Pick<Policies, 'hold'>
  readonly now: () => number
  /** How long an incarnation may be silent, ms. */
  readonly afterMs: number
  readonly as: Settlement
}

/** Settles one, all of it in one transaction; false when none is due. Any number of nodes may look at the same time. */
export async function settleNextSilent(parts: SettleSilent): Promise<boolean> {
  const now = parts.now()
  const before = now - parts.afterMs
  return parts.store.transaction(async (tx) => {
    const due = await tx.edge.incarnations.nextSilent(before)
    if (due === undefined) return false
    await tx.edge.devices.lock(due.deviceId)
    const incarnation = await tx.edge.incarnations.get(due.deviceId, due.number)
    // Another node may have been faster, or the device has spoken.
    if (incarnation?.settledAt !== null) return true
    if (incarnation.status === 'CLOSED' || incarnation.quietSince >= before) return true
    await settle(parts, tx, incarnation, now)
    return true
  })
}

/** The incarnation gets no more grants, if it could still get any, and what it holds is settled. The device is locked. */
async function settle(
  { policies, as }: SettleSilent,
  tx: Transaction,
  incarnation: Incarnation,
  now: number,
): Promise<void> {
  const { deviceId, number } = incarnation
  const device = await tx.edge.devices.get(deviceId)
  if (device === undefined) throw new Error('invariant: devices are never deleted')
  const records = await tx.edge.deviceAccounts.ofIncarnation(deviceId, number)
  const moves = [...records.values()]
    .map((before): AccountMove => ({ before, after: settled(before, as) }))
    .filter(({ before, after }) => before.presumed !== after.presumed || before.released !== after.released)
  const rules = await holdRules(tx, policies, device.instanceIds, now)
  const pools = await openPools(
    tx,
    rules,
    moves.map(({ after }) => after.account),
  )
  const moved = movePools(pools, moves)
  if (moved === undefined) throw new Error('invariant: what is settled was held before')
  await tx.accounts.save([...moved.values()])
  await tx.edge.deviceAccounts.save(moves.map(({ after }) => after))
  const over: Incarnation = { ...fenced(incarnation, 'SILENT', now), settlement: as, settledAt: now }
  await tx.edge.incarnations.save({ ...over, quietSince: incarnation.quietSince })
  await writePresumptions({ tx, incarnation: over, now }, moves, moved)
}
