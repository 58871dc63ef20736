/** A response of the socket, before the fast path or Node's server writes it. */
import { CodedError, ERRORS } from '../../../protocol/errors.ts'
import { CORRELATION_HEADER } from '../../../protocol/local/decision.ts'
import type { AccessAnswer } from '../../access/access.ts'

export interface Reply {
  readonly status: number
  /** Alternating names and values, without Content-Type and Content-Length. */
  readonly headers: readonly string[]
  readonly body: string
  /** Content type. Default: application/json. */
  readonly type?: string
}

const RETRY_AFTER_S = 1
const NONE: readonly string[] = []

export function plain(body: string, type = 'application/json'): Reply {
  return { status: 200, headers: NONE, body, type }
}

export function granted({ body, policyRevision, warnings, durability }: AccessAnswer): Reply {
  const revision = String(policyRevision)
  const headers = ['x-tallygate-durability', durability, 'x-tallygate-policy-revision', revision]
  if (warnings.length > 0) headers.push('x-tallygate-warnings', warnings.join(', '))
  return { status: 200, headers, body }
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
