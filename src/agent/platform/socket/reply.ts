/** The responses of the socket: contents, how Node's server sends them, and the text of those that bypass it. */
import { STATUS_CODES, type ServerResponse } from 'node:http'
import { CodedError, ERRORS } from '../../../protocol/errors.ts'
import { CORRELATION_HEADER } from '../../../protocol/local/decision.ts'
import { LOCAL_HEADERS } from '../../../protocol/local/headers.ts'
import { TOO_MANY_AHEAD, brokenRequest } from '../../../protocol/service/refusals.ts'
import type { AccessAnswer } from '../../access/access.ts'

export interface Reply {
  readonly status: number
  /** Alternating names and values, without Content-Type and Content-Length. */
  readonly headers: readonly string[]
  readonly body: string
  readonly type?: string
}

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

export interface ReplyText {
  readonly text: string
  readonly encoding: 'latin1' | 'utf8'
}

/** The encoding is that in which ASCII is written faster. @param keepAliveMs idle timeout; null: close after this response */
export function replyText({ status, headers, body }: Reply, keepAliveMs: number | null): ReplyText {
  const length = Buffer.byteLength(body)
  let text = `HTTP/1.1 ${status} ${STATUS_CODES[status] ?? ''}\r\nContent-Type: application/json\r\nContent-Length: ${length}\r\n`
  for (let index = 0; index < headers.length; index += 2)
    text += `${headers[index] ?? ''}: ${headers[index + 1] ?? ''}\r\n`
  text +=
    keepAliveMs === null
      ? 'Connection: close\r\n'
      : `Connection: keep-alive\r\nKeep-Alive: timeout=${Math.floor(keepAliveMs / 1000)}\r\n`
  return { text: `${text}\r\n${body}`, encoding: length === body.length ? 'latin1' : 'utf8' }
}

export const STOPPING = refused(new CodedError('STOPPING', 'the agent is shutting down'))

export const TOO_MANY = refused(brokenRequest(TOO_MANY_AHEAD))
