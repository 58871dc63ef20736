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
  const reported = snapshots
    .filter(({ instanceId }) => device.instanceIds.includes(instanceId))
    .map((snapshot) => sessionOf(snapshot, device.id))
  if (reported.length === 0) return
  const stored = await tx.sessions.lockStored(reported.map(({ id }) => id))
  const taken = new Map<string, Session>()
  let kept: number | undefined
  let opened = 0
  for (const session of reported) {
    const known = taken.get(session.id) ?? stored.get(session.id)
    if (known !== undefined && (known.keptBy !== device.id || known.instanceId !== session.instanceId)) continue
    const wasOpen = known !== undefined && !hasEnded(known)
    if (!hasEnded(session) && !wasOpen) {
      kept ??= await tx.sessions.countKeptBy(device.id)
      if (kept + opened >= SESSIONS_KEPT_MAX) continue
      opened += 1
    } else if (hasEnded(session) && wasOpen) opened -= 1
    taken.set(session.id, session)
  }
  await tx.sessions.saveSome(
    [...stored.values()].flatMap((before) => {
      const session = taken.get(before.id)
      return session === undefined ? [] : [{ session, stored: before }]
    }),
  )
  await addSessions(
    tx,
    device,
    [...taken.values()].filter(({ id }) => !stored.has(id)),
    forgetBefore,
  )
}

/** With the commands that waited for them. */
async function addSessions(
  tx: Transaction,
  device: Device,
  sessions: readonly Session[],
  forgetBefore: number | null,
): Promise<void> {
  if (sessions.length === 0) return
  const { sessionCommands } = tx.edge
  if (forgetBefore !== null) await sessionCommands.forget(device.id, forgetBefore)
  const wanted = await sessionCommands.take(
    device.id,
    sessions.map(({ id }) => id),
  )
  await tx.sessions.insertKept(
    sessions.map((session) => ({
      session,
      wanted: hasEnded(session) ? null : (wanted.get(session.id) ?? null),
    })),
  )
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
