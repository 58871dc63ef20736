/** The edge protocol over HTTP. Idempotent calls are retried a few times after a broken connection. */
import pRetry from 'p-retry'
import { z } from 'zod'
import { enrollmentResponse } from '../../../protocol/edge/enrollment.ts'
import { policyRequest } from '../../../protocol/edge/policy-document.ts'
import { signingKeys } from '../../../protocol/edge/signing-keys.ts'
import { signedAnswer } from '../../../protocol/edge/sync.ts'
import { CodedError, type ErrorCode, errorBody, firstProblem, isErrorCode } from '../../../protocol/errors.ts'
import { uuid, idempotencyHeader } from '../../../protocol/wire.ts'
import { parseJson } from '../../../protocol/parse-json.ts'
import { retryAfterMs } from '../../../protocol/retry-after.ts'
import { printable } from '../../../protocol/sign-in.ts'
import type { CalledDevice, Cloud, Heartbeat } from '../../sync/cloud.ts'
import type { DeviceTokens } from '../../keys/device-token.ts'
import type { Identity } from '../../ledger/journal.ts'
import type { HttpAnswer, HttpExchange, HttpRequest } from './exchange.ts'

export interface CloudHttpDeps {
  readonly exchange: HttpExchange
  readonly tokens: Pick<DeviceTokens, 'token' | 'followCloudClock'>
  readonly pause: (ms: number) => Promise<void>
  readonly fraction: () => number
}

const REPEATS_MAX = 2

/** Longest pause before the first retry, ms; doubles each time. */
const REPEAT_PAUSE_MS = 200

/** Broken or briefly refused connections, as opposed to an unreachable network. */
const BROKEN_CONNECTION: ReadonlySet<unknown> = new Set(['ECONNRESET', 'ECONNREFUSED', 'ECONNABORTED', 'EPIPE'])

/** Error codes for refusals that have a message but no code, as in the service API. */
const BY_STATUS: Readonly<Record<number, ErrorCode>> = {
  400: 'BAD_REQUEST',
  401: 'TOKEN_INVALID',
  403: 'ACCESS_KIND_WRONG',
  404: 'NOT_FOUND',
  409: 'CONFLICT',
}

const openedSession = z.object({ sessionId: uuid })

interface Call {
  readonly method: HttpRequest['method']
  readonly url: string
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: unknown
  readonly compress?: boolean
  /** False: a second send may count twice. */
  readonly repeatable: boolean
  readonly signal: AbortSignal
}

export function createCloudHttp(deps: CloudHttpDeps): Cloud {
  const { tokens } = deps

  /** Signs in as the device; retries once by the cloud's clock if the cloud rejects the token's time. */
  const callAs = async (device: CalledDevice, call: Call): Promise<HttpAnswer> => {
    const first = await send(deps, call, await tokens.token(device))
    const cloudNow = Date.parse(first.headers['date'] ?? '')
    if (first.status !== 401 || codeOf(first) !== 'TOKEN_NOT_IN_TIME' || Number.isNaN(cloudNow)) return first
    tokens.followCloudClock(cloudNow)
    return send(deps, call, await tokens.token(device))
  }

  const edge = ({ edgeUrl }: CalledDevice, ...path: readonly string[]): string => join(edgeUrl, path)
  const sessions = ({ serviceUrl }: Identity, ...path: readonly string[]): string =>
    join(serviceUrl, ['v1.1', 'sessions', ...path])
  const post = async (
    device: CalledDevice,
    path: readonly string[],
    call: Pick<Call, 'body' | 'signal' | 'compress'>,
  ): Promise<z.infer<typeof signedAnswer>> => {
    const url = edge(device, 'devices', device.deviceId, ...path)
    return parse(accepted(await callAs(device, { method: 'POST', url, repeatable: true, ...call })), signedAnswer)
  }
  const ofInstance = (instanceId: string): Record<string, string> => ({ 'x-instance-id': instanceId })

  return {
    async enroll(edgeUrl, enrollmentToken, body, signal) {
      const url = join(edgeUrl, ['enrollments'])
      const call: Call = { method: 'POST', url, body, repeatable: true, signal }
      return parse(accepted(await send(deps, call, enrollmentToken)), enrollmentResponse)
    },

    attach: (device, body, signal) => post(device, ['attach'], { body, signal }),
    sync: (device, body, signal) => post(device, ['sync'], { body, signal, compress: true }),
    announceKey: (device, body, signal) => post(device, ['keys'], { body, signal }),
    showKeyLinks: (device, body, signal) => post(device, ['keys', 'links'], { body, signal }),

    async policy(device, known, signal) {
      const request = policyRequest(device.edgeUrl, known)
      const answer = await callAs(device, { method: 'GET', ...request, repeatable: true, signal })
      if (answer.status === 304) return { kind: 'UNCHANGED' }
      return { kind: 'DOCUMENT', document: accepted(answer).body.trim() }
    },

    async signingKeys(device, signal) {
      const answer = await callAs(device, {
        method: 'GET',
        url: edge(device, 'signing-keys'),
        repeatable: true,
        signal,
      })
      return parse(accepted(answer), signingKeys).introductions
    },

    async openSession(device, instanceId, opening, signal) {
      const url = sessions(device)
      const headers = { ...ofInstance(instanceId), [idempotencyHeader]: opening }
      const call: Call = { method: 'POST', url, headers, body: { instanceId }, repeatable: false, signal }
      return parse(accepted(await callAs(device, call)), openedSession).sessionId
    },

    async heartbeat(device, instanceId, sessionId, signal) {
      const url = sessions(device, sessionId, 'heartbeat')
      const headers = ofInstance(instanceId)
      return heartbeatOf(await callAs(device, { method: 'GET', url, headers, repeatable: true, signal }))
    },

    async closeSession(device, instanceId, sessionId, signal) {
      const url = sessions(device, sessionId)
      const headers = ofInstance(instanceId)
      const answer = await callAs(device, { method: 'DELETE', url, headers, repeatable: true, signal })
      // Already gone or ended, as intended.
      if (!isUnknown(answer) && !isNotOperable(answer)) accepted(answer)
    },
  }
}

async function send(
  { exchange, pause, fraction }: CloudHttpDeps,
  { method, url, headers, body, compress = false, repeatable, signal }: Call,
  token: string,
): Promise<HttpAnswer> {
  const request: HttpRequest = {
    method,
    url,
    headers: {
      accept: 'application/json, application/jose',
      authorization: `Bearer ${token}`,
      ...headers,
      ...(body === undefined ? {} : { 'content-type': 'application/json' }),
    },
    body: body === undefined ? null : JSON.stringify(body),
    compress,
    signal,
  }
  return pRetry(() => exchange(request), {
    retries: repeatable ? REPEATS_MAX : 0,
    // shouldRetry pauses, with the injected clock and randomness.
    minTimeout: 0,
    shouldRetry: async ({ error, attemptNumber }) => {
      const broken = error instanceof CodedError && BROKEN_CONNECTION.has(error.details['network'])
      if (!broken || signal.aborted) return false
      await pause(fraction() * REPEAT_PAUSE_MS * 2 ** (attemptNumber - 1))
      return !signal.aborted
    },
  })
}

/** @throws CodedError CLOUD_UNREACHABLE for temporary failures, the cloud's own code, or ANSWER_UNEXPECTED */
function accepted(answer: HttpAnswer): HttpAnswer {
  const { status } = answer
  if (status >= 200 && status < 300) return answer
  const code = refusalOf(answer)
  if ((status === 429 && code === 'ATTACH_TOO_OFTEN') || code === 'GRANTS_FORGOTTEN') {
    throw new CodedError(code, messageOf(answer), { details: { retryAfterMs: retryAfter(answer) } })
  }
  if (status >= 500 || status === 429 || status === 408) {
    const reason = code === undefined ? '.' : ` (${code}): ${messageOf(answer)}`
    throw new CodedError('CLOUD_UNREACHABLE', `The cloud responded with HTTP status ${status}${reason}`, {
      details: { status, retryAfterMs: retryAfter(answer) },
    })
  }
  if (code === undefined) throw unexpected(answer, `HTTP status ${status}`)
  throw new CodedError(code, messageOf(answer), { details: { status } })
}

/** Undefined: not a refusal, or not from the cloud. */
function refusalOf(answer: HttpAnswer): ErrorCode | undefined {
  return codeOf(answer) ?? (messageIn(answer) === undefined ? undefined : BY_STATUS[answer.status])
}

function heartbeatOf(answer: HttpAnswer): Heartbeat {
  if (isUnknown(answer)) return { kind: 'ENDED', state: 'UNKNOWN' }
  if (!isNotOperable(answer)) {
    const { status } = accepted(answer)
    if (status !== 204) throw unexpected(answer, `HTTP status ${status}`)
    return { kind: 'ALIVE' }
  }
  const state = stateNamedIn(answer)
  if (state === 'LOCKED') return { kind: 'LOCKED' }
  return { kind: 'ENDED', state: state === 'FAILED' || state === 'DISCONNECTED' ? state : 'TERMINATED' }
}

/** Also if it is one of another instance: a response to another request may have named it. */
function isUnknown(answer: HttpAnswer): boolean {
  const code = refusalOf(answer)
  return code === 'NOT_FOUND' || code === 'INSTANCE_NOT_IN_TOKEN'
}

/** By the code, or by the state that the message names. Any other 409, such as that of a proxy, is not about the session. */
function isNotOperable(answer: HttpAnswer): boolean {
  const code = codeOf(answer)
  if (code !== undefined) return code === 'SESSION_NOT_OPERABLE'
  return answer.status === 409 && stateNamedIn(answer) !== undefined
}

function stateNamedIn(answer: HttpAnswer): string | undefined {
  return /\b(LOCKED|TERMINATED|FAILED|DISCONNECTED)\b/i.exec(messageIn(answer) ?? '')?.[1]?.toUpperCase()
}

function parse<S extends z.ZodType>(answer: HttpAnswer, schema: S): z.output<S> {
  const parsed = schema.safeParse(parseJson(answer.body))
  if (parsed.success) return parsed.data
  throw unexpected(answer, firstProblem(parsed.error))
}

function unexpected({ status }: HttpAnswer, reason: string): CodedError {
  return new CodedError(
    'ANSWER_UNEXPECTED',
    `The response does not come from the cloud: ${reason}. Check any proxy between this device and the cloud.`,
    {
      details: { status },
    },
  )
}

function codeOf(answer: HttpAnswer): ErrorCode | undefined {
  const body = errorBody.safeParse(parseJson(answer.body))
  return body.success && isErrorCode(body.data.code) ? body.data.code : undefined
}

const withMessage = z.object({ message: z.string() })

function messageIn({ body }: HttpAnswer): string | undefined {
  return withMessage.safeParse(parseJson(body)).data?.message
}

/** Not only commands show it, but also service managers, in one line. */
function messageOf(answer: HttpAnswer): string {
  return printable((messageIn(answer) ?? `status ${answer.status}`).slice(0, 500))
}

/** By the clock of the cloud, ms; 0 for none. */
function retryAfter({ headers }: HttpAnswer): number {
  return retryAfterMs(headers['retry-after'], Date.parse(headers['date'] ?? '')) ?? 0
}

function join(base: string, path: readonly string[]): string {
  return [base.replace(/\/+$/, ''), ...path.map(encodeURIComponent)].join('/')
}
