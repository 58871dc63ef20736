/** A device learns of it at its next sync; until then, the expiry of its grants limits it. */
import { nameOf, recordChange } from '../storage/audit.ts'
import { deviceEvent } from '../events/device-event.ts'
import { CodedError } from '../../protocol/errors.ts'
import { commandSession } from '../sessions/command-session.ts'
import type { SessionDeps } from '../sessions/session-life.ts'
import type { Store } from '../storage/store.ts'
import { lockUnrevoked } from '../storage/require-record.ts'
import { fenceCurrent } from './epochs.ts'
import type { Device, Suspension } from '../storage/device-records.ts'

export interface SuspendDevice {
  readonly store: Pick<Store, 'read' | 'transaction'>
  readonly sessions: SessionDeps
  readonly now: () => number
  /** {@link Moment.present} */
  readonly present: () => number
}

export type SuspensionCommand = 'LOCK' | 'UNLOCK' | 'TERMINATE'

const STATE = { LOCK: 'LOCKED', UNLOCK: null, TERMINATE: 'TERMINATED' } as const
const EVENT = { LOCK: 'locked', UNLOCK: 'unlocked', TERMINATE: 'terminated' } as const
const ACTION = { LOCK: 'LOCK_DEVICE', UNLOCK: 'UNLOCK_DEVICE', TERMINATE: 'TERMINATE_DEVICE' } as const

/** Repeating the request completes one that was interrupted. @throws CodedError NOT_FOUND, CONFLICT */
export async function suspendDevice(
  { store, sessions, now, present }: SuspendDevice,
  deviceId: string,
  command: SuspensionCommand,
): Promise<void> {
  const at = now()
  await store.transaction(async (tx) => {
    const device = await lockUnrevoked(tx, deviceId)
    const changed = { ...device, suspension: nextSuspension(device, command, nameOf(tx.actor), at) }
    await tx.edge.devices.save(changed)
    // A device may keep many.
    await tx.sessions.setWantedOfKept(deviceId, command)
    if (command === 'TERMINATE') await fenceCurrent(tx, changed, 'TERMINATED', { now: at, present: present() })
    await recordChange(tx, at, { action: ACTION[command], deviceId })
    if (changed.suspension?.state !== device.suspension?.state) {
      const what = EVENT[command]
      await tx.events.append(deviceEvent(changed, { type: `device.${what}`, what: `${what}/${at}`, at }))
    }
    await tx.outbox.append([{ kind: 'device', deviceId, reason: 'session' }], at)
  })
  for (const sessionId of await store.read((reader) => reader.sessions.opened(deviceId))) {
    const partOf = { deviceId, suspension: STATE[command] }
    await commandSession(sessions, { id: sessionId, command, partOf }, at).catch((error: unknown) => {
      // Closed or deleted meanwhile, or another command has followed.
      if (!(error instanceof CodedError) || (error.code !== 'CONFLICT' && error.code !== 'NOT_FOUND')) throw error
    })
  }
}

function nextSuspension(
  { id, suspension }: Device,
  command: SuspensionCommand,
  by: string,
  at: number,
): Suspension | null {
  const state = STATE[command]
  // One that the clock dated ahead begins now: only a token that is made after it lifts a termination.
  if (suspension?.state === state && suspension.since <= at) return suspension
  if (suspension?.state === 'TERMINATED' && state !== 'TERMINATED') {
    throw new CodedError('CONFLICT', `The service of the device ${id} was ended: it must enroll again.`)
  }
  return state === null ? null : { state, since: at, by }
}
