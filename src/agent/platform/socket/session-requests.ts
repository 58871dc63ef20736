/** Session requests on the socket, with the service's paths, bodies and responses. */
import type { IncomingHttpHeaders } from 'node:http'
import type { Session } from '../../../core/sessions/session.ts'
import { CodedError, parseInput } from '../../../protocol/errors.ts'
import { REFUSALS } from '../../../protocol/service/refusals.ts'
import { requestOf, sessionAccessRequestBody } from '../../../protocol/service/access-request.ts'
import {
  SESSIONS_SHOWN_MAX,
  instanceHeader,
  listedToWire,
  notOperable,
  sessionBody,
  sessionToWire,
  sessionsQuery,
} from '../../../protocol/service/sessions.ts'
import { LOCAL_HEADERS } from '../../../protocol/local/headers.ts'
import { uuidInLowerCase } from '../../../protocol/wire.ts'
import { sha256 } from '../../../protocol/signing.ts'
import type { CallerQuota } from '../../access/callers/callers.ts'
import type { NumberedRequest } from '../../access/idempotency-cache.ts'
import type { KeptSession } from '../../sessions/kept-session.ts'
import type { SessionAnswer, Sessions } from '../../sessions/sessions.ts'
import { idempotencyKeyOf, type JsonBody, type Route } from './parse-request.ts'
import type { Reply } from '../../../platform/fast-path.ts'
import { answered, plain } from './reply.ts'

export type SessionService = Pick<
  Sessions,
  'open' | 'list' | 'get' | 'isOpen' | 'request' | 'heartbeat' | 'heartbeatMs' | 'close' | 'connectionClosed'
>

export type SessionTarget = Extract<Route, { to: 'session' }>

export interface SessionRequest {
  readonly target: SessionTarget
  readonly url: string
  readonly headers: IncomingHttpHeaders
  /** Or why it cannot be read. Null for operations without a body. */
  readonly body: JsonBody | CodedError | null
  readonly owner: string | null
  readonly administers: boolean
  readonly quota?: CallerQuota | undefined
  /** Ends the session when the request's connection closes, immediately if it is closed already. */
  readonly bind: (sessionId: string) => void
}

export const takesBody = ({ operation }: SessionTarget): boolean =>
  operation === 'open' || operation === 'request' || operation === 'close'

/** Whether the role `administer` is enough. */
export const isForAdministrators = ({ operation }: SessionTarget): boolean =>
  operation === 'list' || operation === 'show' || operation === 'close'

/** @throws CodedError */
export async function answerSession(service: SessionService, request: SessionRequest): Promise<Reply> {
  const { target, headers } = request
  const belongs = belongsTo(request)
  switch (target.operation) {
    case 'open': {
      const { instanceId } = parseInput(sessionBody, bodyOf(request)?.value)
      requireInstance(request, instanceId)
      const bound = isBound(headers)
      const idempotencyKey = numberedRequestOf(request)
      const { owner, quota } = request
      const answer = await service.open({ instanceId, owner, bound, idempotencyKey, quota })
      if (!answer.operable) return replyTo(target, answer)
      const { sessionId } = JSON.parse(answer.body) as { readonly sessionId: string }
      if (bound) request.bind(sessionId)
      return withHeartbeat(replyTo(target, answer), service.heartbeatMs(sessionId))
    }
    case 'list': {
      const query = parseInput(sessionsQuery, queryOf(request.url), 'query')
      if (query.instanceId !== undefined) requireInstance(request, query.instanceId)
      const instanceId = query.instanceId ?? instanceHeaderOf(headers)
      const isListed = (kept: KeptSession): boolean =>
        (instanceId === null || kept.session.instanceId === instanceId) && isShown(request, kept)
      return plain(JSON.stringify(service.list(isListed).slice(0, SESSIONS_SHOWN_MAX).map(listedToWire)))
    }
    case 'show':
      return plain(JSON.stringify(sessionToWire(service.get(target.sessionId, belongs))))
    case 'request': {
      const { apiVersion, sessionId } = target
      const requested = afterAccess(service, request, belongs, () =>
        parseInput(sessionAccessRequestBody[apiVersion], bodyOf(request)?.value),
      )
      const call = {
        apiVersion,
        sessionId,
        request: requestOf(requested),
        metaData: requested.requestedItems.map(({ metaData }) => metaData),
        rollbackOnDeny: requested.rollbackOnDeny,
        belongs,
        idempotencyKey: numberedRequestOf(request),
        quota: request.quota,
      }
      return withHeartbeat(replyTo(target, await service.request(call)), service.heartbeatMs(sessionId))
    }
    case 'heartbeat':
      return withHeartbeat(
        replyTo(target, await service.heartbeat(target.sessionId, belongs)),
        service.heartbeatMs(target.sessionId),
      )
    case 'close':
      afterAccess(service, request, belongs, () => bodyOf(request))
      return replyTo(
        target,
        await service.close(target.sessionId, belongs, numberedRequestOf(request)),
        // The service answers closing an ended session with the v1.1 form in both versions.
        'v1.1',
      )
  }
}

/** As in the cloud, the instance of the session is checked before the body. @throws CodedError */
function afterAccess<Body>(
  service: SessionService,
  { target }: SessionRequest,
  belongs: (kept: KeptSession) => void,
  read: () => Body,
): Body {
  try {
    return read()
  } catch (problem) {
    try {
      service.get(target.sessionId, belongs)
    } catch (refusal) {
      if (!(refusal instanceof CodedError) || refusal.code !== 'NOT_FOUND') throw refusal
    }
    throw problem
  }
}

function bodyOf({ body }: SessionRequest): JsonBody | null {
  if (body instanceof CodedError) throw body
  return body
}

function queryOf(url: string): Readonly<Record<string, string | readonly string[]>> {
  // Without the rest: the address that a client writes for a proxy may be invalid.
  const { searchParams } = new URL(url.slice(url.search(/[?#]|$/)), 'http://socket')
  return Object.fromEntries(
    [...searchParams.keys()].map((key) => {
      const values = searchParams.getAll(key)
      return [key, values.length === 1 ? (values[0] ?? '') : values]
    }),
  )
}

function replyTo({ apiVersion }: SessionTarget, answer: SessionAnswer, version = apiVersion): Reply {
  if (answer.operable) return answered({ ...answer, durability: 'durable' })
  const { status, body } = notOperable(version, answer.session)
  return { status, headers: [], body: JSON.stringify(body) }
}

/** @param everyMs longest time between two heartbeats; null: none are needed */
function withHeartbeat(reply: Reply, everyMs: number | null): Reply {
  return everyMs === null ? reply : { ...reply, headers: [...reply.headers, LOCAL_HEADERS.heartbeat, String(everyMs)] }
}

/** Sessions of other callers appear not to exist. A charge counts for the quota of the session's owner. */
function belongsTo(request: SessionRequest): (kept: KeptSession) => void {
  return (kept) => {
    const { id, instanceId } = kept.session
    if (!isShown(request, kept)) throw new CodedError('NOT_FOUND', `There is no session ${id}.`)
    if (kept.owner !== request.owner && !isForAdministrators(request.target)) {
      const owner = kept.owner ?? 'another user'
      throw new CodedError('CALLER_NOT_ALLOWED', `Only ${owner} may send requests and heartbeats in the session ${id}.`)
    }
    requireInstance(request, instanceId)
  }
}

function isShown({ owner, administers }: SessionRequest, kept: KeptSession): boolean {
  return administers || kept.owner === owner
}

function requireInstance({ headers }: SessionRequest, instanceId: Session['instanceId']): void {
  const named = instanceHeaderOf(headers)
  if (named !== null && named !== instanceId) {
    throw new CodedError('INSTANCE_NOT_IN_TOKEN', REFUSALS.instanceOfSession)
  }
}

/** @throws CodedError BAD_REQUEST */
export function instanceHeaderOf(
  headers: Readonly<Record<string, string | readonly string[] | undefined>>,
): string | null {
  const value = headers[instanceHeader]
  return value === undefined ? null : parseInput(uuidInLowerCase, value, instanceHeader)
}

function isBound(headers: IncomingHttpHeaders): boolean {
  const value = headers[LOCAL_HEADERS.bound]
  if (value === undefined) return false
  if (value === 'connection') return true
  throw new CodedError('BAD_REQUEST', `${LOCAL_HEADERS.bound} must be "connection"`)
}

function numberedRequestOf(request: SessionRequest): NumberedRequest | null {
  const { target, headers, owner } = request
  const idempotencyKey = idempotencyKeyOf(headers, owner)
  if (idempotencyKey === null) return null
  const { apiVersion, operation, sessionId } = target
  const called = operation === 'open' && isBound(headers) ? 'open bound' : operation
  return {
    ...idempotencyKey,
    requestHash: sha256(`${apiVersion}\n${called}\n${sessionId}\n${bodyOf(request)?.text ?? ''}`),
  }
}
