/** Sessions on devices, as reported. Charges arrive as ledger entries; commands are sent until reported as done. */
import { decimal, parseDecimal } from '../../core/pricing/amount.ts'
import { type ReservedItem, type Session, hasEnded, newSession } from '../../core/sessions/session.ts'
import type { SessionSnapshot } from '../../protocol/edge/sessions.ts'
import type { Transaction } from '../storage/store.ts'
import type { Device } from '../storage/device-records.ts'

/** Open sessions that one device may keep: as many as an agent can be set to have. */
export const SESSIONS_KEPT_MAX = 100_000

/**
 * Ignores ids of other owners and instances, and further sessions of a device that keeps too many.
 * @param forgetBefore deletes commands older than this; null: none
 */
export async function takeSessions(
  tx: Transaction,
  device: Device,
  snapshots: readonly SessionSnapshot[],
  forgetBefore: number | null,
): Promise<void> {
  let untilForgotten = forgetBefore
  let kept: number | undefined
  for (const snapshot of snapshots) {
    if (!device.instanceIds.includes(snapshot.instanceId)) continue
    const session = sessionOf(snapshot, device.id)
    const known = await tx.sessions.lock(session.id)
    if (known !== undefined && (known.keptBy !== device.id || known.instanceId !== session.instanceId)) continue
    if (!hasEnded(session) && (known === undefined || hasEnded(known))) {
      kept ??= await tx.sessions.countKeptBy(device.id)
      if (kept >= SESSIONS_KEPT_MAX) continue
      kept += 1
    }
    if (known !== undefined) {
      await tx.sessions.save(session)
      continue
    }
    await tx.sessions.insert(session)
    if (untilForgotten !== null) await tx.edge.sessionCommands.forget(device.id, untilForgotten)
    untilForgotten = null
    const wanted = await tx.edge.sessionCommands.take(device.id, session.id)
    if (wanted !== undefined && !hasEnded(session)) await tx.sessions.setWanted(session.id, wanted)
  }
}

/** A revoked device no longer reports: the outcome of its sessions is unknown, and its agent keeps no session alive. */
export async function disconnectSessions(tx: Transaction, deviceId: string, now: number): Promise<void> {
  await tx.sessions.disconnectKept(deviceId, now)
  // A charged session closes by its missed heartbeat, with a refund.
  await tx.sessions.disconnectIdle(deviceId, now)
}

function sessionOf(snapshot: SessionSnapshot, keptBy: string): Session {
  const { id, instanceId, state, created, since, lastHeartbeat, lastAccessRequest, requester, charge } = snapshot
  return {
    ...newSession({ id, instanceId, deviceId: null }, created),
    keptBy,
    state,
    since,
    lastHeartbeat,
    lastAccessRequest,
    requester: requester === null ? null : { ...requester, dictionary: {} },
    charge: charge === null ? null : { from: charge.from, until: charge.until, items: charge.items.map(itemOf) },
  }
}

/** Entries record the amounts; here only the line items are known. */
function itemOf(item: NonNullable<SessionSnapshot['charge']>['items'][number]): ReservedItem {
  return {
    item: { name: item.item, version: item.version, count: parseDecimal(item.count) ?? decimal('0'), metaData: null },
    shares: item.lineItemIds.map((lineItemId) => ({ lineItemId, accounts: [], charged: 0n })),
  }
}
