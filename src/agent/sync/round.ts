/** Runs steps, and plans again when one changed the state. Each step commits separately: a failure undoes nothing. */
import { plan, type LinkState, type Step } from '../../core/sync/plan.ts'
import { CodedError, causeText } from '../../protocol/errors.ts'
import { attach } from './attach.ts'
import { enroll } from './enroll.ts'
import { fetchPolicy } from './fetch-policy.ts'
import { openCloudSession, sendHeartbeat } from './cloud-sessions.ts'
import { EARLY_PART, PLANS_PER_ROUND_MAX, ROUND_GAP_MS, SYNC_EVERY_MIN_MS } from './limits.ts'
import type { LinkMemory } from './memory.ts'
import type { EnrollmentToken } from './ports.ts'
import type { RoundResult, WakeReason } from './rounds.ts'
import { sealAndSend, sendSegment } from './send-segment.ts'
import { KEY, announceKey, isUnknownKey, keyState, prepareKey, replaceKey, showLinks } from './rotate-key.ts'
import { ENROLLMENT, PUSH, REFUSED_KEYS, REVOCATION } from '../runtime/health.ts'
import { type StepContext, type StepResult, raiseAndLog } from './step.ts'

const CLEARED_BY_A_ROUND = ['cloud', 'journal', 'attach', 'link', REVOCATION]

/** Subjects whose conditions may only result from a revoked key. */
const CAUSED_BY_REVOCATION = ['cloud', ENROLLMENT, 'attach', 'link', 'sync', PUSH]

/** @throws any error that is not a CodedError: a broken invariant, or a write with unknown outcome */
export async function runRound(context: StepContext, reasons: ReadonlySet<WakeReason>): Promise<RoundResult> {
  const { memory, waiting } = context
  begin(context, reasons.has('notification') || reasons.has('operator'))
  // Another cloud may have refused it, or this one by a wrong clock.
  if (reasons.has('operator') && memory.identity === null) memory.refusedToken = null
  const enrollmentToken = mayEnroll(memory) ? await context.enrollmentToken() : null
  const last: LastStep = {}
  try {
    for (let plans = 0; plans < PLANS_PER_ROUND_MAX; plans += 1) {
      const result = await runPlan(context, enrollmentToken, last)
      if (result === 'CONTINUE') return end(context, enrollmentToken)
    }
    // The round's limit of plans is reached; the next round does the rest.
    waiting.resolveCarried()
    return { ok: true, nextMs: ROUND_GAP_MS }
  } catch (error) {
    if (!(error instanceof CodedError)) throw error
    return fail(context, last.step, error, enrollmentToken)
  }
}

/** The step that was begun last. */
interface LastStep {
  step?: Step
}

/** Plans, and runs the steps until one changed the state. */
async function runPlan(
  context: StepContext,
  enrollmentToken: EnrollmentToken | null,
  last: LastStep,
): Promise<StepResult> {
  for (const step of plan(stateOf(context, enrollmentToken))) {
    last.step = step
    const result = await runStepAsKnownDevice(context, step, enrollmentToken)
    if (result === 'PLAN_AGAIN') return result
  }
  return 'CONTINUE'
}

/** Not enrolled, or its service was terminated and everything is delivered that can be. */
function mayEnroll({ identity, fence, isEnded }: LinkMemory): boolean {
  if (identity === null || isEnded) return true
  return identity.suspension?.state === 'TERMINATED' && fence !== 'NONE' && fence !== 'FENCED'
}

function stateOf(context: StepContext, enrollmentToken: EnrollmentToken | null): LinkState {
  const { memory, ledger, waiting, clock, settings, keys, rotation } = context
  const token = enrollmentToken?.token ?? null
  // Until the next key is in its place, the current one is not the key that the ledger names: it must not enroll.
  const isNextKey = keys.next !== null && keys.next.signer.keyId === memory.identity?.keyId
  const hasToken = token !== null && token !== memory.refusedToken && !isNextKey
  return {
    enrollment: mayEnroll(memory) && hasToken ? 'POSSIBLE' : memory.identity !== null ? 'DONE' : 'IMPOSSIBLE',
    key: keyState(keys, memory, rotation.isRequested),
    epoch: memory.epoch,
    fence: memory.fence,
    unacknowledged: memory.unacknowledged !== null,
    unsealed: Math.max(0, ledger.lastEntry() - memory.lastSealedEntry),
    moreToSend: memory.moreToSend,
    needsTokens: !memory.topUpsCarried && (waiting.hasNew || ledger.demand.topUpRequests().length > 0),
    returnsAll: memory.returnsAll,
    hasSpare: memory.keeps.size > 0 && ledger.demand.hasSpare(memory.keeps, waiting.needed()),
    expectsNews: memory.expectsNews,
    policies: [...memory.policies].map(([instanceId, policy]) => ({ instanceId, ...policy })),
    sessions: [...memory.sessions].map(([instanceId, { session, needsCheck, tried }]) => ({
      instanceId,
      ...session,
      tried,
      needsCheck: needsCheck || session.state === 'LOCKED',
    })),
    connected: memory.contact === 'UP',
    syncedAt: memory.syncedAt,
    now: clock.sinceBoot(),
    // Timer rounds start early: counts as due now what would be due before the next one.
    syncEveryMs: Math.min(settings.sync.interval, memory.nextSyncMs ?? Infinity) * (1 - EARLY_PART),
    heartbeatEveryMs: settings.sync.heartbeat * (1 - EARLY_PART),
    checkEveryMs: settings.sync.sessionCheck * (1 - EARLY_PART),
    batchEntries: settings.sync.batch,
  }
}

function begin({ memory }: StepContext, mayHaveNews: boolean): void {
  memory.expectsNews ||= mayHaveNews || memory.syncsAgain
  memory.syncsAgain = false
  memory.topUpsCarried = false
  memory.key.isTried = false
  memory.key.isShown = false
  for (const policy of memory.policies.values()) policy.tried = false
  for (const session of memory.sessions.values()) {
    session.tried = false
    session.needsCheck ||= mayHaveNews
  }
}

/** If the cloud does not know the device's key, sends the key links once per round and tries again. */
async function runStepAsKnownDevice(
  context: StepContext,
  step: Step,
  enrollmentToken: EnrollmentToken | null,
): Promise<StepResult> {
  try {
    return await runStep(context, step, enrollmentToken)
  } catch (error) {
    if (!isUnknownKey(context, error)) throw error
    context.memory.key.isUnknown = true
    return 'PLAN_AGAIN'
  }
}

async function runStep(context: StepContext, step: Step, enrollmentToken: EnrollmentToken | null): Promise<StepResult> {
  switch (step.kind) {
    case 'enroll':
      return enroll(context, enrollmentToken)
    case 'prepare-key':
      return prepareKey(context)
    case 'announce-key':
      return announceKey(context)
    case 'replace-key':
      return replaceKey(context)
    case 'show-links':
      return showLinks(context)
    case 'attach':
      return attach(context)
    case 'send-segment':
      return sendSegment(context)
    case 'seal-and-send':
      return sealAndSend(context, step)
    case 'fetch-policy':
      return fetchPolicy(context, step.instanceId)
    case 'open-session':
      return openCloudSession(context, step.instanceId)
    case 'heartbeat':
      return sendHeartbeat(context, step.instanceId, step.sessionId)
  }
}

function end(context: StepContext, enrollmentToken: EnrollmentToken | null): RoundResult {
  const { activePolicies, memory, health, waiting } = context
  waiting.resolveCarried()
  if (memory.contact === 'UP') {
    activePolicies.isDeviceRefused = false
    for (const subject of CLEARED_BY_A_ROUND) health.clear(subject)
  }
  if (memory.identity !== null) health.clear(ENROLLMENT)
  else if (enrollmentToken?.token === null)
    raiseAndLog(context, ENROLLMENT, new CodedError('NOT_ENROLLED', enrollmentToken.reason))
  return { ok: true, nextMs: memory.syncsAgain ? ROUND_GAP_MS : Math.max(SYNC_EVERY_MIN_MS, untilDue(context)) }
}

/** Until the next sync or heartbeat is due, ms. A round of one of them does not delay the other. */
function untilDue({ clock, memory, settings: { sync } }: StepContext): number {
  const now = clock.sinceBoot()
  const left = (since: number | null, everyMs: number): number => {
    const passedMs = since === null ? 0 : now - since
    // What is overdue after a round cannot be done now.
    return passedMs < everyMs ? everyMs - passedMs : everyMs
  }
  const sessions = [...memory.sessions.values()].map(({ session: { aliveAt, checkedAt } }) =>
    left(Math.max(aliveAt, checkedAt), sync.heartbeat),
  )
  const syncEveryMs = Math.min(sync.interval, memory.nextSyncMs ?? Infinity)
  return Math.min(left(memory.syncedAt, syncEveryMs), sync.heartbeat, ...sessions)
}

/** Maps errors to conditions. Everything is retried later; a refused enrollment token only after a reload or a restart. */
function fail(
  { activePolicies, health, log, memory, signal, waiting }: StepContext,
  step: Step | undefined,
  error: CodedError,
  enrollmentToken: EnrollmentToken | null,
): RoundResult {
  waiting.resolveAll()
  if (signal.aborted) return { ok: false, retryAfterMs: 0 }
  const { code, details } = error
  if (step?.kind === 'attach') memory.isEnded = code === 'DEVICE_TERMINATED'
  if (code === 'ENROLLMENT_REFUSED' || code === 'DEVICE_UNKNOWN') memory.refusedToken = enrollmentToken?.token ?? null
  if (Object.hasOwn(REFUSED_KEYS, code)) activePolicies.isDeviceRefused = true
  if (code === 'DEVICE_REVOKED') {
    for (const subject of CAUSED_BY_REVOCATION) health.clear(subject)
  }
  const subject = subjectOf(step, error)
  if (step !== undefined) clearOutdated({ health, memory }, SUBJECTS[step.kind], subject)
  if (health.raise(subject, error)) log.warn({ subject, code, ...details, cause: causeText(error) }, error.message)
  const { retryAfterMs } = details
  return { ok: false, retryAfterMs: typeof retryAfterMs === 'number' ? retryAfterMs : 0 }
}

/** The cloud did not respond before and responds now, or the reverse. @param own subject of the step that failed */
function clearOutdated({ health, memory }: Pick<StepContext, 'health' | 'memory'>, own: string, subject: string): void {
  if (subject === 'cloud') {
    if (health.has(own, 'ANSWER_UNEXPECTED')) health.clear(own)
  } else if (subject === own || memory.contact === 'UP') health.clear('cloud')
}

const SUBJECTS: Readonly<Record<Step['kind'], string>> = {
  enroll: ENROLLMENT,
  attach: 'attach',
  'send-segment': 'sync',
  'seal-and-send': 'sync',
  'prepare-key': KEY,
  'announce-key': KEY,
  'replace-key': KEY,
  'show-links': KEY,
  'fetch-policy': 'link',
  'open-session': 'link',
  heartbeat: 'link',
}

function subjectOf(step: Step | undefined, { code }: CodedError): string {
  if (code === 'NOT_RECORDED') return 'journal'
  if (code === 'DEVICE_REVOKED') return REVOCATION
  // Only the newest reason why the device is not enrolled counts.
  if (step?.kind === 'enroll') return SUBJECTS.enroll
  if (code === 'CLOUD_UNREACHABLE' || code === 'TRUST_MISMATCH') return 'cloud'
  return step === undefined ? 'link' : SUBJECTS[step.kind]
}
