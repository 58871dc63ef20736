/** An answer of the socket before it takes the form of a lane: status, headers besides those of every answer, JSON text. */
import { CodedError, ERRORS } from '../../../protocol/errors.ts'
import { CORRELATION_HEADER } from '../../../protocol/local/decision.ts'
import type { AccessAnswer } from '../../app/access.ts'

export interface Reply {
  readonly status: number
  /** Name, value, name, value. Content-Type and Content-Length are not among them. */
  readonly headers: readonly string[]
  readonly body: string
  /** Of the body; left out: application/json. */
  readonly type?: string
}

const RETRY_AFTER_S = 1
const NONE: readonly string[] = []

export function plain(body: string, type = 'application/json'): Reply {
  return { status: 200, headers: NONE, body, type }
}

export function granted({ body, policyRevision, caveats, durability }: AccessAnswer): Reply {
  const revision = String(policyRevision)
  const headers = ['x-tallygate-durability', durability, 'x-tallygate-policy-revision', revision]
  if (caveats.length > 0) headers.push('x-tallygate-caveats', caveats.join(', '))
  return { status: 200, headers, body }
}

/** The same refusal with the correlation id by which it can be explained. */
export function traced(reply: Reply, correlationId: string): Reply {
  return { ...reply, headers: [...reply.headers, CORRELATION_HEADER, correlationId] }
}

export function refused(error: CodedError): Reply {
  const headers = ERRORS[error.code].retry === 'later' ? ['Retry-After', String(retryAfter(error))] : NONE
  return { status: error.httpStatus, headers, body: refusalBody(error) }
}

function retryAfter({ facts: { retryAfterMs } }: CodedError): number {
  return typeof retryAfterMs === 'number' ? Math.max(RETRY_AFTER_S, Math.ceil(retryAfterMs / 1000)) : RETRY_AFTER_S
}

function refusalBody({ code, message }: Pick<CodedError, 'code' | 'message'>): string {
  return JSON.stringify({ message, code })
}
