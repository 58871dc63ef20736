/**
 * Keeps the agent's sessions in the service API alive. The request to open is durable before it is sent, and the id
 * once it is known, so a lost answer opens no second session. Only an unreachable cloud ends the round.
 */
import type { CloudSession } from '../ledger/journal.ts'
import { identityOf, type SessionMemory, saveIdentity } from './memory.ts'
import { nextCloudSession, type CloudSessionEvent } from './cloud-session-state.ts'
import { call, type Part, raiseAndLog, type StepContext, type StepResult, unlessRefused } from './step.ts'

export async function openCloudSession(context: StepContext, instanceId: string): Promise<StepResult> {
  const sessionMemory = memoryOf(context, instanceId)
  sessionMemory.tried = true
  const { cloud, memory, randomness, signal } = context
  const before = keptOf(context, instanceId)
  const isRepeated = before?.sessionId === null
  const opening = isRepeated ? before.opening : randomness.token()
  await unlessRefused(context, partOf(instanceId), async () => {
    if (!isRepeated) await keep(context, instanceId, { instanceId, opening, sessionId: null })
    const sessionId = await call(context, () => cloud.openSession(identityOf(memory), instanceId, opening, signal))
    take(context, instanceId, sessionMemory, { kind: 'OPENED', sessionId })
    // The session of a repeated request may have ended in the meantime.
    sessionMemory.needsCheck = isRepeated
    await keep(context, instanceId, { instanceId, opening, sessionId })
  })
  return 'CONTINUE'
}

export async function sendHeartbeat(context: StepContext, instanceId: string, sessionId: string): Promise<StepResult> {
  const sessionMemory = memoryOf(context, instanceId)
  sessionMemory.tried = true
  // Until the cloud accepts one: a merged segment keeps the session alive, and would leave a refusal in the status.
  sessionMemory.needsCheck = true
  const ended = await unlessRefused(context, partOf(instanceId), async () => {
    const { cloud, memory, signal } = context
    const state = await call(context, () => cloud.heartbeat(identityOf(memory), instanceId, sessionId, signal))
    sessionMemory.needsCheck = false
    take(context, instanceId, sessionMemory, state)
    return state.kind === 'ENDED'
  })
  if (ended !== true) return 'CONTINUE'
  sessionMemory.tried = false
  return 'PLAN_AGAIN'
}

/** Called at a clean stop; if the cloud does not answer, the session expires there. */
export async function closeCloudSession(context: StepContext, instanceId: string, sessionId: string): Promise<void> {
  const { cloud, memory, signal } = context
  await call(context, () => cloud.closeSession(identityOf(memory), instanceId, sessionId, signal))
  take(context, instanceId, memoryOf(context, instanceId), { kind: 'CLOSED' })
  await keep(context, instanceId, null)
}

function keptOf({ memory }: StepContext, instanceId: string): CloudSession | undefined {
  return identityOf(memory).sessions?.find((session) => session.instanceId === instanceId)
}

async function keep(context: StepContext, instanceId: string, session: CloudSession | null): Promise<void> {
  const identity = identityOf(context.memory)
  const others = (identity.sessions ?? []).filter((other) => other.instanceId !== instanceId)
  await saveIdentity(context, { ...identity, sessions: session === null ? others : [...others, session] })
}

function sessionSubject(instanceId: string): string {
  return `session ${instanceId}`
}

function partOf(instanceId: string): Part {
  return { subject: sessionSubject(instanceId), instanceId }
}

function take(
  { clock, health, log }: StepContext,
  instanceId: string,
  sessionMemory: SessionMemory,
  event: CloudSessionEvent,
): void {
  const subject = sessionSubject(instanceId)
  const { session, notice } = nextCloudSession(sessionMemory.session, event, clock.sinceBoot())
  sessionMemory.session = session
  if (notice === 'CLEAR') health.clear(subject)
  else if (notice !== undefined) raiseAndLog({ health, log }, subject, notice, { instanceId })
}

function memoryOf({ memory }: StepContext, instanceId: string): SessionMemory {
  const sessionMemory = memory.sessions.get(instanceId)
  if (sessionMemory === undefined) throw new Error('invariant: only a session of an own instance is kept')
  return sessionMemory
}
