/**
 * Validates every response against its operation's declaration. For tests and trials: a violation is reported and sent
 * as an internal error.
 */
import { Readable } from 'node:stream'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { CodedError, ERRORS, errorBody, isErrorCode } from '../../protocol/errors.ts'
import type { DeclaredAnswers } from './declared-answers.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    answers?: DeclaredAnswers
  }
}

/** @param onWrong called for each undeclared response */
export function checkAnswers(http: FastifyInstance, onWrong: (error: Error) => void): void {
  const reported = new WeakSet<FastifyRequest>()
  http.addHook('onSend', async (request, reply, payload) => {
    if (reported.has(request)) return payload
    const { url = request.url, config } = request.routeOptions
    const { statusCode: status } = reply
    const error = wrongAnswer(`${request.method} ${url}`, config.answers, {
      status,
      type: String(reply.getHeader('content-type')),
      payload,
    })
    if (error === undefined) return payload
    reported.add(request)
    onWrong(error)
    // Set for the original response.
    void reply.removeHeader('content-length')
    throw undeclared(error)
  })
}

interface Sent {
  readonly status: number
  /** Media type. */
  readonly type: string
  readonly payload: unknown
}

/** Undefined if the response is valid. */
export function wrongAnswer(request: string, declared: DeclaredAnswers | undefined, sent: Sent): Error | undefined {
  const problem = declared === undefined ? errorProblem(request, sent) : problemOf(declared, sent)
  if (problem === undefined) return undefined
  return new Error(`invariant: ${request} answered ${sent.status} ${String(sent.payload)}: ${problem}`)
}

/** Sent instead of a wrong response. */
export function undeclared(cause: Error): CodedError {
  return new CodedError('INTERNAL', 'The response does not match the declaration of this operation.', { cause })
}

function problemOf(declared: DeclaredAnswers, { status, type, payload }: Sent): string | undefined {
  const form = declared.get(status)
  if (form === undefined) return 'the status is not declared'
  const mediaType = bare(type)
  if (payload instanceof Readable) {
    return form.streams.some((type) => bare(type) === mediaType)
      ? undefined
      : `a stream of ${mediaType} is not declared`
  }
  const empty = payload === undefined || payload === null || payload === ''
  if (form.bodies.length === 0) return empty ? undefined : 'it has a body'
  if (mediaType !== form.mediaType && status < 400) return `the media type is ${mediaType}`
  if (typeof payload !== 'string') return 'the body is not text'
  const body = mediaType === 'application/json' ? (JSON.parse(payload) as unknown) : payload
  const parsed = form.bodies.map((schema) => schema.safeParse(body))
  if (parsed.some(({ success }) => success)) return undefined
  return parsed.map(({ error }) => error?.message).join('; or ')
}

function bare(mediaType: string): string {
  return mediaType.replace(/;.*/, '')
}

/** Without an operation, only errors are valid. */
function errorProblem(request: string, { status, payload }: Sent): string | undefined {
  if (request.startsWith('OPTIONS ') && status === 204) return undefined
  const parsed = errorBody.safeParse(typeof payload === 'string' && payload !== '' ? JSON.parse(payload) : undefined)
  if (!parsed.success) return 'neither an operation nor an error'
  const { code } = parsed.data
  return isErrorCode(code) && ERRORS[code].http === status ? undefined : 'the code has another status'
}
