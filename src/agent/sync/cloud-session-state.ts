/** The agent's own session in the cloud shows that the agent is alive. It decides nothing, and survives restarts. */
import { CodedError } from '../../protocol/errors.ts'
import type { Heartbeat } from './cloud.ts'

export interface CloudSessionState {
  /** `KEPT`: from the previous process, not yet checked with the cloud. */
  readonly state: 'CLOSED' | 'KEPT' | 'OPEN' | 'LOCKED'
  /** Null exactly when closed. */
  readonly sessionId: string | null
  /** Readings of the boot clock, ms. */
  readonly aliveAt: number
  readonly checkedAt: number
}

export type CloudSessionEvent =
  | { readonly kind: 'OPENED'; readonly sessionId: string }
  /** A segment was merged, which counts as a heartbeat. */
  | { readonly kind: 'SYNCED' }
  | { readonly kind: 'CLOSED' }
  | Heartbeat

export const NO_CLOUD_SESSION: CloudSessionState = { state: 'CLOSED', sessionId: null, aliveAt: 0, checkedAt: 0 }

export function keptCloudSession(sessionId: string): CloudSessionState {
  return { state: 'KEPT', sessionId, aliveAt: 0, checkedAt: 0 }
}

/** A health condition to raise, `CLEAR`, or no change. */
export type CloudSessionNotice = CodedError | 'CLEAR' | undefined

/**
 * | state              | event  | next   | notice         |
 * |--------------------|--------|--------|----------------|
 * | any                | OPENED | OPEN   | CLEAR          |
 * | KEPT, OPEN, LOCKED | ALIVE  | OPEN   | CLEAR          |
 * | KEPT, OPEN, LOCKED | LOCKED | LOCKED | SESSION_LOCKED |
 * | KEPT               | ENDED  | CLOSED |                |
 * | OPEN, LOCKED       | ENDED  | CLOSED | SESSION_ENDED  |
 * | KEPT, OPEN, LOCKED | SYNCED | same   |                |
 * | any                | CLOSED | CLOSED | CLEAR          |
 * | CLOSED             | others | CLOSED |                |
 *
 * SESSION_ENDED stays visible until the next session is open. A KEPT session may have expired meanwhile.
 */
export function nextCloudSession(
  session: CloudSessionState,
  event: CloudSessionEvent,
  now: number,
): { readonly session: CloudSessionState; readonly notice: CloudSessionNotice } {
  if (event.kind === 'OPENED') {
    const { sessionId } = event
    return { session: { state: 'OPEN', sessionId, aliveAt: now, checkedAt: now }, notice: 'CLEAR' }
  }
  if (event.kind === 'CLOSED') return { session: NO_CLOUD_SESSION, notice: 'CLEAR' }
  const { sessionId } = session
  if (sessionId === null) return { session, notice: undefined }
  switch (event.kind) {
    case 'SYNCED':
      return { session: { ...session, aliveAt: now }, notice: undefined }
    case 'ALIVE':
      return { session: { state: 'OPEN', sessionId, aliveAt: now, checkedAt: now }, notice: 'CLEAR' }
    case 'LOCKED':
      return {
        session: { ...session, state: 'LOCKED', checkedAt: now },
        notice: new CodedError('SESSION_LOCKED', 'An administrator has locked the session of this device.', {
          details: { sessionId },
        }),
      }
    case 'ENDED': {
      if (session.state === 'KEPT') return { session: NO_CLOUD_SESSION, notice: undefined }
      const { state } = event
      const message =
        state === 'UNKNOWN'
          ? 'The cloud does not know the session of this device.'
          : `The cloud has ended the session of this device: ${state}.`
      return {
        session: NO_CLOUD_SESSION,
        notice: new CodedError('SESSION_ENDED', message, { details: { sessionId, state } }),
      }
    }
  }
}
