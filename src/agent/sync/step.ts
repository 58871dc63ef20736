/**
 * Calls to the cloud: any answer proves contact, but counts only when signed by a trusted key; signed time counts only
 * for the attempt that requested it.
 */
import type { z } from 'zod'
import type { SessionCommand } from '../../protocol/edge/sessions.ts'
import { signedTime } from '../../protocol/edge/sync.ts'
import { type DeviceSuspension, suspendedError } from '../../protocol/edge/device-suspension.ts'
import { placeOf } from '../../protocol/broker-failure.ts'
import { CodedError, type ErrorCode, firstProblem } from '../../protocol/errors.ts'
import { type DocumentKind, sha256 } from '../../protocol/signing.ts'
import { parseJson } from '../../protocol/parse-json.ts'
import { BROKER_CHANGE_GAP_MS } from './limits.ts'
import type { Cloud, SignedAnswer } from './cloud.ts'
import type { DeviceKeys } from '../keys/device-key.ts'
import { learnKeys } from './learn-keys.ts'
import type { Engine } from '../../core/engine.ts'
import type { AgentSettings } from '../settings.ts'
import type { Health } from '../runtime/health.ts'
import { type LinkMemory, saveIdentity } from './memory.ts'
import type { EnrollmentToken, LinkJournal, AgentLog, Randomness } from './ports.ts'
import type { Ledger } from '../ledger/ledger.ts'
import type { ActivePolicies } from '../policy/active-policies.ts'
import type { Clock } from '../runtime/clock.ts'
import type { RotationRequests } from '../keys/rotation-requests.ts'
import type { WaitingRequests } from './waiting-requests.ts'

export interface LinkSettings extends Pick<AgentSettings, 'sync'> {
  readonly grants: Pick<AgentSettings['grants'], 'returnOnStop'>
}

export interface StepContext {
  readonly journal: LinkJournal
  readonly ledger: Ledger
  readonly activePolicies: ActivePolicies
  readonly clock: Clock
  readonly applyCommands: (commands: readonly SessionCommand[]) => void
  readonly randomness: Randomness
  readonly cloud: Cloud
  readonly keys: DeviceKeys
  readonly rotation: RotationRequests
  readonly enrollmentToken: () => Promise<EnrollmentToken>
  readonly log: AgentLog
  /** Reloadable ones are read at each use. */
  readonly settings: LinkSettings
  readonly software: string
  readonly engine: Engine
  readonly memory: LinkMemory
  readonly health: Health
  readonly waiting: WaitingRequests
  readonly signal: AbortSignal
}

/** `PLAN_AGAIN`: the state has changed, so the plan may be outdated. */
export type StepResult = 'CONTINUE' | 'PLAN_AGAIN'

/**
 * No answer, one that an attacker in the network could have sent, or a refusal of every request: the device works
 * offline.
 */
const NO_CONTACT: ReadonlySet<ErrorCode> = new Set([
  'CLOUD_UNREACHABLE',
  'ANSWER_UNEXPECTED',
  'SEGMENT_REJECTED',
  'GRANTS_FORGOTTEN',
])

/** Whether the refusal applies to the whole device or to every call, so that further calls are useless. */
export function endsRound({ code }: CodedError): boolean {
  return code === 'CLOUD_UNREACHABLE' || code === 'DEVICE_REVOKED'
}

/** Logs a condition unless it was logged before. @param fields of the log line, before those of the error */
export function raiseAndLog(
  { health, log }: Pick<StepContext, 'health' | 'log'>,
  subject: string,
  error: CodedError,
  fields: Readonly<Record<string, unknown>> = {},
): void {
  if (health.raise(subject, error)) log.warn({ ...fields, code: error.code, ...error.details }, error.message)
}

export async function call<T>({ memory, clock }: StepContext, exchange: () => Promise<T>): Promise<T> {
  try {
    const answer = await exchange()
    memory.contact = 'UP'
    memory.lastContactAt = clock.reading().now
    return answer
  } catch (error) {
    if (error instanceof CodedError) memory.contact = NO_CONTACT.has(error.code) ? 'DOWN' : 'UP'
    throw error
  }
}

export interface Part {
  readonly subject: string
  readonly instanceId: string
  /** Absent: {@link endsRound}. */
  readonly ends?: (error: CodedError) => boolean
}

/**
 * Runs a part of the round. If it fails, its condition shows why, and the round continues with the contact from before the
 * part: a proxy may not pass on these requests, but tokens come with the syncs. @throws CodedError that ends the round
 */
export async function unlessRefused<T>(
  context: StepContext,
  { subject, instanceId, ends = endsRound }: Part,
  work: () => Promise<T>,
): Promise<T | undefined> {
  const { memory } = context
  const { contact } = memory
  try {
    return await work()
  } catch (error) {
    if (!(error instanceof CodedError) || ends(error)) throw error
    memory.contact = contact
    raiseAndLog(context, subject, error, { instanceId })
    return undefined
  }
}

/** Verifies and parses a signed document. @throws CodedError TRUST_MISMATCH, ANSWER_UNEXPECTED */
export async function verify<S extends z.ZodType>(
  context: StepContext,
  kind: DocumentKind,
  document: string,
  schema: S,
): Promise<z.output<S>> {
  const { memory } = context
  let opened = await memory.trust.open(kind, document)
  if (opened === undefined && (await learnKeys(context))) opened = await memory.trust.open(kind, document)
  if (opened === undefined) {
    memory.contact = 'DOWN'
    throw new CodedError('TRUST_MISMATCH', `The ${kind} is not signed by a key that this device trusts.`)
  }
  const parsed = schema.safeParse(parseJson(opened.text))
  if (parsed.success) return parsed.data
  throw new CodedError('ANSWER_UNEXPECTED', `The ${kind} cannot be understood: ${firstProblem(parsed.error, kind)}.`)
}

/**
 * Applies the suspension and the broker that are signed with the time. Returns the time, POSIX ms.
 * @throws CodedError TRUST_MISMATCH, ANSWER_UNEXPECTED
 */
export async function applySignedTime(
  context: StepContext,
  { answer, time: document }: SignedAnswer,
  nonce: string,
): Promise<number> {
  const { nonce: echoed, time, answer: named, suspension, push } = await verify(context, 'time', document, signedTime)
  if (echoed !== nonce || named !== sha256(answer)) {
    throw new CodedError('ANSWER_UNEXPECTED', 'The signed time belongs to another attempt or another answer.')
  }
  await applySuspension(context, suspension)
  await applyBroker(context, push)
  return time
}

/**
 * The link moves the connection after the round. Changes are limited, because nodes of the cloud with different settings
 * would cause one with each sync: a reconnect, and a write to flash.
 */
async function applyBroker(context: StepContext, pushUrl: string | null): Promise<void> {
  const { clock, log, memory } = context
  const { identity, brokerChangedAt } = memory
  if (identity === null || identity.pushUrl === pushUrl) return
  const now = clock.sinceBoot()
  if (brokerChangedAt !== null && now - brokerChangedAt < BROKER_CHANGE_GAP_MS) return
  await saveIdentity(context, { ...identity, pushUrl })
  memory.brokerChangedAt = now
  log.info({ broker: pushUrl === null ? null : placeOf(pushUrl) }, 'the broker for change notifications has changed')
}

export const SUSPENSION = 'device suspension'

/** Effective at once and after restarts: a locked device stays locked offline. */
async function applySuspension(context: StepContext, suspension: DeviceSuspension | null): Promise<void> {
  const { activePolicies, log, memory } = context
  const { identity } = memory
  if (identity === null || sameSuspension(identity.suspension, suspension)) return
  if (suspension !== null) activePolicies.suspension = suspension
  await saveIdentity(context, { ...identity, suspension })
  showSuspension(context, suspension)
  if (suspension !== null) log.warn({ ...suspension }, 'the device is suspended')
}

export function showSuspension(
  { activePolicies, health }: Pick<StepContext, 'activePolicies' | 'health'>,
  suspension: DeviceSuspension | null,
): void {
  activePolicies.suspension = suspension
  if (suspension === null) health.clear(SUSPENSION)
  else health.raise(SUSPENSION, suspendedError(suspension))
}

function sameSuspension(a: DeviceSuspension | null, b: DeviceSuspension | null): boolean {
  return a?.state === b?.state && a?.since === b?.since
}
