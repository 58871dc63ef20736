/**
 * Sessions that devices keep. The twin shows them as their device reports them, and neither charges nor ends them: their
 * charges and refunds come as ledger entries. What an administrator wants of one is told to the device with every answer
 * until it has reported that it is so.
 */
import { decimal, parseDecimal } from '../../core/pricing/amount.ts'
import { type ReservedItem, SESSION_REST_MS, type Session, hasEnded, newSession } from '../../core/sessions/session.ts'
import type { SessionCommand, SessionSnapshot } from '../../protocol/edge/sessions.ts'
import { SEGMENT_SESSIONS_MAX } from '../../protocol/edge/sessions.ts'
import type { Transaction } from '../storage/store.ts'
import type { Device } from '../storage/device-records.ts'

/**
 * Locks every session that a segment may touch, before rules and accounts are: see the order in store.ts. Returns the ids
 * of those that it has locked; one that is opened meanwhile is left to the next segment.
 */
export async function lockSessions(
  tx: Transaction,
  { id }: Device,
  { sessions }: { readonly sessions: readonly SessionSnapshot[] },
): Promise<ReadonlySet<string>> {
  const opened = (await tx.sessions.ofDevice(id)).map((session) => session.id)
  const kept = (await tx.sessions.keptBy(id)).map(({ session }) => session.id)
  const touched = new Set([...opened, ...kept, ...sessions.map((session) => session.id.toLowerCase())])
  const locked = new Set<string>()
  for (const each of [...touched].sort()) if ((await tx.sessions.lock(each)) !== undefined) locked.add(each)
  return locked
}

/**
 * Takes in what the current epoch of a device says of its sessions. An id that another keeper has, and an instance
 * that the device does not serve, are nobody's business and change nothing.
 *
 * @param trustsClock orders may be forgotten because they are old
 */
export async function takeSessions(
  tx: Transaction,
  device: Device,
  snapshots: readonly SessionSnapshot[],
  now: number,
  trustsClock: boolean,
): Promise<void> {
  let hasForgotten = !trustsClock
  for (const snapshot of snapshots) {
    const instanceId = snapshot.instanceId.toLowerCase()
    if (!device.instanceIds.includes(instanceId)) continue
    const session = sessionOf({ ...snapshot, id: snapshot.id.toLowerCase(), instanceId }, device.id)
    const known = await tx.sessions.lock(session.id)
    if (known === undefined) {
      await tx.sessions.insert(session)
      if (!hasForgotten) await tx.edge.sessionCommands.forget(device.id, now - SESSION_REST_MS)
      hasForgotten = true
      const wanted = await tx.edge.sessionCommands.take(device.id, session.id)
      if (wanted !== undefined && !hasEnded(session)) await tx.sessions.want(session.id, wanted)
    } else if (known.keptBy === device.id && known.instanceId === instanceId) await tx.sessions.save(session)
  }
}

/** What the device is still to be told. */
export async function commandsFor(tx: Transaction, deviceId: string): Promise<SessionCommand[]> {
  const commands: SessionCommand[] = []
  for (const { session, wanted } of await tx.sessions.keptBy(deviceId)) {
    if (wanted === null || isSo(session, wanted)) continue
    commands.push({ id: session.id, command: wanted })
    if (commands.length >= SEGMENT_SESSIONS_MAX) break
  }
  return commands
}

/**
 * A device that begins anew tells of all that it keeps. What it does not name it has lost, because it was wiped or set back
 * to a backup: what became of that is not known. What is told later, because a segment was full, stands again as it is told.
 */
export async function disconnectUntold(
  tx: Transaction,
  deviceId: string,
  told: readonly SessionSnapshot[],
  now: number,
): Promise<void> {
  await disconnect(tx, deviceId, new Set(told.map(({ id }) => id.toLowerCase())), now)
}

/** A device that was revoked reports no more: what becomes of its sessions is not known, and its agent keeps none alive. */
export async function disconnectSessions(tx: Transaction, deviceId: string, now: number): Promise<void> {
  await disconnect(tx, deviceId, new Set(), now)
  for (const { id } of await tx.sessions.ofDevice(deviceId)) {
    const session = await tx.sessions.lock(id)
    // One that is charged for ends by its missing heartbeat, with a refund.
    if (session?.state === 'IDLE') await tx.sessions.save({ ...session, state: 'DISCONNECTED', since: now })
  }
}

async function disconnect(tx: Transaction, deviceId: string, but: ReadonlySet<string>, now: number): Promise<void> {
  for (const { session } of await tx.sessions.keptBy(deviceId)) {
    if (!but.has(session.id)) await tx.sessions.save({ ...session, state: 'DISCONNECTED', charge: null, since: now })
  }
}

function isSo({ state }: Session, wanted: SessionCommand['command']): boolean {
  if (wanted === 'LOCK') return state === 'LOCKED'
  return wanted === 'UNLOCK' ? state !== 'LOCKED' : hasEnded({ state })
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

/** What was paid stands in the entries; here it is known only which line items did. */
function itemOf(item: NonNullable<SessionSnapshot['charge']>['items'][number]): ReservedItem {
  return {
    item: { name: item.item, version: item.version, count: parseDecimal(item.count) ?? decimal('0'), metaData: null },
    shares: item.lineItemIds.map((lineItemId) => ({ lineItemId, accounts: [], charged: 0n })),
  }
}
