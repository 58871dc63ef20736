/**
 * Error responses: `{ message, code }` with the status of the code. Details of unexpected errors are logged, not sent;
 * the caller gets the log line's id.
 */
import type { FastifyBaseLogger, FastifyReply, FastifyRequest } from 'fastify'
import { replyText } from '../../platform/fast-path.ts'
import { CodedError, ERRORS, type ErrorCode } from '../../protocol/errors.ts'
import { REFUSALS, bodyIncomplete, brokenRequest } from '../../protocol/service/refusals.ts'
import type { Rarely } from '../runtime/rarely.ts'
import { linger } from './linger.ts'

declare module 'fastify' {
  interface FastifyInstance {
    readonly rarely: Rarely
  }
}

const RETRY_AFTER_S = 1

/** Media type of each JSON response. */
export const JSON_TYPE = 'application/json; charset=utf-8'

/** Framework errors with their own code. */
const FRAMEWORK: Readonly<Record<string, [ErrorCode, string]>> = {
  FST_ERR_CTP_BODY_TOO_LARGE: ['BODY_TOO_LARGE', REFUSALS.bodyTooLarge],
  FST_ERR_CTP_INVALID_MEDIA_TYPE: ['MEDIA_TYPE_NOT_SUPPORTED', REFUSALS.mediaType],
  FST_ERR_CTP_INVALID_CONTENT_LENGTH: ['BAD_REQUEST', 'The body length differs from Content-Length.'],
  FST_ERR_MAX_PARAM_LENGTH: ['BAD_REQUEST', REFUSALS.segmentTooLong],
  FST_ERR_BAD_URL: ['BAD_REQUEST', REFUSALS.pathMalformed],
}

/** Messages of these codes contain addresses, users and paths: they are logged, and callers get only the meaning. */
const INSIDE: ReadonlySet<ErrorCode> = new Set<ErrorCode>([
  'DATABASE_UNREACHABLE',
  'DATABASE_REFUSED',
  'DATABASE_UNSUITABLE',
  'DATABASE_DIFFERS',
  'DATABASE_CORRUPT',
  'OUTCOME_UNKNOWN',
  'NOT_RECORDED',
  'STATE_UNWRITABLE',
  'DISK_FAILED',
])

/** Logged where they arise, once for many requests: callers without an accepted token must not fill the log. */
const LOGGED: ReadonlySet<ErrorCode> = new Set<ErrorCode>(['SIGN_IN_UNAVAILABLE'])

export function answerError(error: unknown, request: FastifyRequest, reply: FastifyReply): void {
  const { status, headers, message, code } = shownError(error, request)
  void reply.headers(headers)
  // The client may still be sending.
  if (code === 'BODY_TOO_LARGE') closeAfter(request, reply)
  sendJson(reply, status, { message, code })
}

/** Makes the request the last one of its connection. */
export function closeAfter({ raw }: Pick<FastifyRequest, 'raw'>, reply: FastifyReply): void {
  void reply.header('connection', 'close')
  linger(raw.socket)
}

/** A request that failed. */
export interface Failed {
  readonly id: string
  readonly log: Pick<FastifyBaseLogger, 'error'>
  readonly server: { readonly rarely: Rarely }
  readonly raw: { readonly complete: boolean }
}

export interface ShownError {
  readonly status: number
  readonly headers: Readonly<Record<string, string>>
  readonly message: string
  readonly code: ErrorCode
}

/** What a caller may know of an error. Logs the rest. */
export function shownError(error: unknown, request: Failed): ShownError {
  const known = isIncomplete(error, request) ? bodyIncomplete() : coded(error)
  if (known === undefined) request.log.error({ err: error }, 'request failed')
  else if (known.httpStatus >= 500 && !LOGGED.has(known.code)) {
    request.server.rarely.log(known.code, (requests) => request.log.error({ err: error, requests }, 'request failed'))
  }
  const shown =
    known ?? new CodedError('INTERNAL', `The service failed because of an unexpected error. Log id: ${request.id}.`)
  const { retryAfterMs, challenge = 'Bearer' } = shown.details
  const headers: Record<string, string> = {}
  if (shown.httpStatus === 401) headers['www-authenticate'] = String(challenge)
  if (typeof retryAfterMs === 'number') headers['retry-after'] = String(Math.ceil(retryAfterMs / 1000))
  else if (shown.httpStatus === 503) headers['retry-after'] = String(RETRY_AFTER_S)
  const { cell } = shown.details
  const place = typeof cell === 'string' ? `The cell ${cell}: ` : ''
  const message = INSIDE.has(shown.code) ? `${place}${ERRORS[shown.code].meaning}` : shown.message
  return { status: shown.httpStatus, headers, message, code: shown.code }
}

/** Only JSON.stringify writes exact numbers. */
export function sendJson(reply: FastifyReply, status: number, body?: unknown): void {
  void reply.code(status)
  if (body === undefined) void reply.send()
  else void reply.type(JSON_TYPE).send(JSON.stringify(body))
}

/** Complete response for a connection without a valid HTTP request. @param cause code of Node's error */
export function rawRefusal(cause: string | undefined): string {
  const { code, message, httpStatus: status } = brokenRequest(cause)
  return replyText({ status, headers: [], body: JSON.stringify({ message, code }), type: JSON_TYPE }, null).text
}

/** Whether the error means that the client stopped sending the body. */
function isIncomplete(error: unknown, { raw }: Pick<Failed, 'raw'>): boolean {
  if (raw.complete || !(error instanceof Error) || !('code' in error)) return false
  return error.code === 'BODY_INCOMPLETE' || error.code === 'ECONNRESET'
}

function coded(error: unknown): CodedError | undefined {
  if (error instanceof CodedError) return error
  if (!(error instanceof Error) || !('code' in error) || typeof error.code !== 'string') return undefined
  const [code, message] = FRAMEWORK[error.code] ?? []
  return code === undefined || message === undefined ? undefined : new CodedError(code, message, { cause: error })
}
