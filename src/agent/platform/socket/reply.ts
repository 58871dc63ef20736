/** The responses of the socket, and how Node's server sends them. */
import type { ServerResponse } from 'node:http'
import type { Reply } from '../../../platform/fast-path.ts'
import { CodedError, ERRORS } from '../../../protocol/errors.ts'
import { CORRELATION_HEADER } from '../../../protocol/local/decision.ts'
import { LOCAL_HEADERS } from '../../../protocol/local/headers.ts'
import { TOO_MANY_AHEAD, brokenRequest } from '../../../protocol/service/refusals.ts'
import type { AccessAnswer } from '../../access/access.ts'

const RETRY_AFTER_S = 1
const NONE: readonly string[] = []

export function plain(body: string, type = 'application/json'): Reply {
  return { status: 200, headers: NONE, body, type }
}

export function answered({ status, body, policyRevision, warnings, advice, durability }: AccessAnswer): Reply {
  const revision = String(policyRevision)
  const headers: string[] = [LOCAL_HEADERS.durability, durability, LOCAL_HEADERS.policyRevision, revision]
  if (warnings.length > 0) headers.push(LOCAL_HEADERS.warnings, warnings.join(', '))
  if (advice !== undefined) headers.push(LOCAL_HEADERS.advice, advice)
  return { status, headers, body }
}

/** Adds the correlation id that `tallygate explain` takes. */
export function traced(reply: Reply, correlationId: string): Reply {
  return { ...reply, headers: [...reply.headers, CORRELATION_HEADER, correlationId] }
}

export function refused(error: CodedError): Reply {
  const headers = ERRORS[error.code].retry === 'later' ? ['Retry-After', String(retryAfter(error))] : NONE
  return { status: error.httpStatus, headers, body: refusalBody(error) }
}

function retryAfter({ details: { retryAfterMs } }: CodedError): number {
  return typeof retryAfterMs === 'number' ? Math.max(RETRY_AFTER_S, Math.ceil(retryAfterMs / 1000)) : RETRY_AFTER_S
}

function refusalBody({ code, message }: Pick<CodedError, 'code' | 'message'>): string {
  return JSON.stringify({ message, code })
}

const NO_CONTENT = 204

export function send(response: ServerResponse, reply: Reply): void {
  const { status, headers, body } = reply
  if (status === NO_CONTENT) {
    response.writeHead(status, [...headers])
    response.end()
    return
  }
  const length = String(Buffer.byteLength(body))
  const type = reply.type ?? 'application/json'
  response.writeHead(status, ['Content-Type', type, 'Content-Length', length, ...headers])
  response.end(body)
}

export const STOPPING = refused(new CodedError('STOPPING', 'the agent is shutting down'))

export const TOO_MANY = refused(brokenRequest(TOO_MANY_AHEAD))
