/**
 * Opens the agent's sessions in the service API and keeps them alive. What the cloud answers about a session is a notice
 * for the technician; only a cloud that cannot be reached ends the round.
 */
import { CodedError } from '../../../protocol/errors.ts'
import { identityOf, type SessionMemory } from './memory.ts'
import { nextSession, type SessionEvent } from './session.ts'
import { call, endsRound, type StepContext, type StepResult } from './step.ts'

export async function openSession(context: StepContext, instanceId: string): Promise<StepResult> {
  const held = heldOf(context, instanceId)
  held.tried = true
  await unlessRefused(context, instanceId, async () => {
    const { cloud, memory, signal } = context
    const sessionId = await call(context, () => cloud.openSession(identityOf(memory), instanceId, signal))
    take(context, instanceId, held, { kind: 'OPENED', sessionId })
  })
  return 'GO_ON'
}

export async function sendHeartbeat(context: StepContext, instanceId: string, sessionId: string): Promise<StepResult> {
  const held = heldOf(context, instanceId)
  held.tried = true
  const ended = await unlessRefused(context, instanceId, async () => {
    const { cloud, memory, signal } = context
    const state = await call(context, () => cloud.heartbeat(identityOf(memory), instanceId, sessionId, signal))
    held.looking = false
    take(context, instanceId, held, state)
    return state.kind === 'ENDED'
  })
  if (ended !== true) return 'GO_ON'
  held.tried = false
  return 'PLAN_AGAIN'
}

/** At a clean stop; a cloud that does not answer finds out by itself. */
export async function closeSession(context: StepContext, instanceId: string, sessionId: string): Promise<void> {
  const { cloud, memory, signal } = context
  await call(context, () => cloud.closeSession(identityOf(memory), instanceId, sessionId, signal))
  take(context, instanceId, heldOf(context, instanceId), { kind: 'CLOSED' })
}

function sessionSubject(instanceId: string): string {
  return `session ${instanceId}`
}

function take({ clock, health, log }: StepContext, instanceId: string, held: SessionMemory, event: SessionEvent): void {
  const subject = sessionSubject(instanceId)
  const { session, notice } = nextSession(held.session, event, clock.sinceBoot())
  held.session = session
  if (notice === 'CLEAR') health.clear(subject)
  else if (notice !== undefined && health.raise(subject, notice)) {
    log.warn({ instanceId, code: notice.code, ...notice.facts }, notice.message)
  }
}

/** Undefined when the cloud refused. */
async function unlessRefused<T>(
  context: StepContext,
  instanceId: string,
  work: () => Promise<T>,
): Promise<T | undefined> {
  try {
    return await work()
  } catch (error) {
    if (!(error instanceof CodedError) || endsRound(error)) throw error
    const { code, facts, message } = error
    if (context.health.raise(sessionSubject(instanceId), error))
      context.log.warn({ instanceId, code, ...facts }, message)
    return undefined
  }
}

function heldOf({ memory }: StepContext, instanceId: string): SessionMemory {
  const held = memory.sessions.get(instanceId)
  if (held === undefined) throw new Error('invariant: only a session of an own instance is kept')
  return held
}
