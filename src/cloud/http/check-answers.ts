/**
 * Validates every response against its operation's declaration. For tests and trials: a violation is reported and sent
 * as an internal error.
 */
import { Readable } from 'node:stream'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { CodedError, ERRORS, errorBody, isErrorCode } from '../../protocol/errors.ts'
import type { DeclaredAnswers } from './operation.ts'

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
    const problem = problemOf(request, reply, payload)
    if (problem === undefined) return payload
    reported.add(request)
    const where = `${request.method} ${request.routeOptions.url ?? request.url}`
    const error = new Error(`invariant: ${where} answered ${reply.statusCode} ${String(payload)}: ${problem}`)
    onWrong(error)
    // Set for the original response.
    void reply.removeHeader('content-length')
    throw new CodedError('INTERNAL', 'The response does not match the declaration of this operation.', { cause: error })
  })
}

/** Undefined if the response is valid. */
function problemOf(request: FastifyRequest, reply: FastifyReply, payload: unknown): string | undefined {
  const declared = request.routeOptions.config.answers
  if (declared === undefined) {
    if (request.method === 'OPTIONS' && reply.statusCode === 204) return undefined
    return errorProblem(reply.statusCode, payload)
  }
  const form = declared.get(reply.statusCode)
  if (form === undefined) return 'the status is not declared'
  const mediaType = bare(String(reply.getHeader('content-type')))
  if (payload instanceof Readable) {
    return form.streams.some((type) => bare(type) === mediaType)
      ? undefined
      : `a stream of ${mediaType} is not declared`
  }
  const empty = payload === undefined || payload === null || payload === ''
  if (form.bodies.length === 0) return empty ? undefined : 'it has a body'
  if (mediaType !== form.mediaType && reply.statusCode < 400) return `the media type is ${mediaType}`
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
function errorProblem(status: number, payload: unknown): string | undefined {
  const parsed = errorBody.safeParse(typeof payload === 'string' && payload !== '' ? JSON.parse(payload) : undefined)
  if (!parsed.success) return 'neither an operation nor an error'
  const { code } = parsed.data
  return isErrorCode(code) && ERRORS[code].http === status ? undefined : 'the code has another status'
}
