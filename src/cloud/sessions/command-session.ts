/** At once for a cloud session; for a device's session the command is noted and the device notified. */
import { recordChange } from '../storage/audit.ts'
import { type Session, hasEnded, isLive } from '../../core/sessions/session.ts'
import type { SessionCommand } from '../../protocol/edge/sessions.ts'
import { lockDevice } from '../storage/require-record.ts'
import type { Suspension } from '../storage/device-records.ts'
import { CodedError } from '../../protocol/errors.ts'
import { SessionChanges, type SessionDeps } from './session-life.ts'

/** `DONE`: in effect. `PENDING`: the device applies it with its next sync. */
export interface SessionCommandResult {
  readonly outcome: 'DONE' | 'PENDING'
  readonly session: Session
}

const EVENT = { LOCK: 'LOCKED', UNLOCK: 'UNLOCKED', TERMINATE: 'CLOSED' } as const

export const COMMAND_ACTION = {
  LOCK: 'LOCK_SESSION',
  UNLOCK: 'UNLOCK_SESSION',
  TERMINATE: 'TERMINATE_SESSION',
} as const

export interface CommandSession {
  readonly id: string
  readonly command: SessionCommand['command']
  /** Part of a command for the device, which records it. Applies only as long as no other one has followed. */
  readonly partOf?: { readonly deviceId: string; readonly suspension: Suspension['state'] | null }
}

/** @throws CodedError NOT_FOUND, CONFLICT for a closed session, or if another command for the device has followed */
export async function commandSession(
  deps: SessionDeps,
  { id, command, partOf }: CommandSession,
  now: number,
): Promise<SessionCommandResult> {
  return deps.store.transaction(async (tx): Promise<SessionCommandResult> => {
    if (partOf !== undefined) {
      const { suspension } = await lockDevice(tx, partOf.deviceId)
      const isLast = (suspension?.state ?? null) === partOf.suspension
      // No command follows a termination. An enrollment can lift it, and leaves the earlier sessions to end.
      if (!isLast && command !== 'TERMINATE')
        throw new CodedError('CONFLICT', `Another command for the device ${partOf.deviceId} has followed.`)
    }
    const changes = new SessionChanges(deps, tx, now)
    const session = await known(id, changes.settled(id))
    if (hasEnded(session))
      throw new CodedError('CONFLICT', `The session is ${session.state}: it has ended, and takes no commands.`)
    if (partOf === undefined) {
      const deviceId = session.keptBy ?? session.deviceId
      const { instanceId } = session
      await recordChange(tx, now, { action: COMMAND_ACTION[command], instanceId, deviceId, sessionId: id })
    }
    if (session.keptBy !== null) {
      // A new command replaces the previous one.
      await tx.sessions.setWanted(session.id, command)
      await tx.outbox.append([{ kind: 'device', deviceId: session.keptBy, reason: 'session' }], now)
      return { outcome: 'PENDING', session }
    }
    const isSo = command === 'LOCK' ? session.state === 'LOCKED' : command === 'UNLOCK' && isLive(session)
    if (isSo) return { outcome: 'DONE', session }
    return { outcome: 'DONE', session: await changes.apply(session, { kind: EVENT[command] }) }
  })
}

async function known(id: string, session: Promise<Session>): Promise<Session> {
  return session.catch((error: unknown) => {
    if (!(error instanceof CodedError) || error.code !== 'NOT_FOUND') throw error
    const message = `There is no session ${id} here. The cloud learns of a session that a device keeps from the next sync of the device. To send a command before that, name the device.`
    throw new CodedError('NOT_FOUND', message)
  })
}
