/** A command for a session that the cloud does not know yet is sent with the response to the sync that reports it. */
import { recordChange } from '../storage/audit.ts'
import { SESSION_REST_MS } from '../../core/sessions/session.ts'
import type { SessionCommand } from '../../protocol/edge/sessions.ts'
import { CodedError } from '../../protocol/errors.ts'
import { type SessionCommandResult, type CommandSession, COMMAND_ACTION, commandSession } from './command-session.ts'
import type { SessionDeps } from './session-life.ts'
import { lockUnrevoked } from '../storage/require-record.ts'

/** Commands that wait for unreported sessions of one device. */
const SESSION_COMMANDS_MAX = 1_000

/** `NOTED`: unknown session; the command applies when the device reports it. */
export type DeviceSessionCommandResult = SessionCommandResult | { readonly outcome: 'NOTED' }

export interface CommandDeviceSession extends CommandSession {
  readonly deviceId: string
  readonly command: SessionCommand['command']
}

/** @throws CodedError NOT_FOUND, CONFLICT for a closed session, a revoked device, or too many commands */
export async function commandDeviceSession(
  deps: SessionDeps,
  command: CommandDeviceSession,
  now: number,
): Promise<DeviceSessionCommandResult> {
  const { deviceId, id } = command
  for (;;) {
    const session = await deps.store.read((reader) => reader.sessions.get(id))
    if (session !== undefined) {
      if ((session.keptBy ?? session.deviceId) === deviceId) return commandSession(deps, command, now)
      throw new CodedError('NOT_FOUND', `The session ${id} is not of the device ${deviceId}.`)
    }
    if (await note(deps, command, now)) return { outcome: 'NOTED' }
  }
}

async function note(
  { store, trustsClock }: SessionDeps,
  { deviceId, id, command }: CommandDeviceSession,
  now: number,
): Promise<boolean> {
  return store.transaction(async (tx) => {
    await lockUnrevoked(tx, deviceId)
    // New sessions of the device are recorded under this lock.
    if ((await tx.sessions.get(id)) !== undefined) return false
    if (trustsClock()) await tx.edge.sessionCommands.forget(deviceId, now - SESSION_REST_MS)
    await tx.edge.sessionCommands.note(deviceId, id, command, now)
    if ((await tx.edge.sessionCommands.count(deviceId)) > SESSION_COMMANDS_MAX) {
      const most = `the maximum of ${SESSION_COMMANDS_MAX} commands for sessions that it has not reported. Wait for its next sync`
      throw new CodedError('CONFLICT', `The device ${deviceId} already has ${most}.`)
    }
    await recordChange(tx, now, { action: COMMAND_ACTION[command], deviceId, sessionId: id })
    await tx.outbox.append([{ kind: 'device', deviceId, reason: 'session' }], now)
    return true
  })
}
