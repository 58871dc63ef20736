/** Session operations. Source: interface, Sessions and Errors; documentation on states and status codes. */
import { actingFor } from '../../storage/audit.ts'
import { z } from 'zod'
import type { Session } from '../../../core/sessions/session.ts'
import { CodedError } from '../../../protocol/errors.ts'
import {
  accessResponse,
  accessResponses,
  requestOf,
  sessionAccessRequestBody,
} from '../../../protocol/service/access-request.ts'
import { REFUSALS } from '../../../protocol/service/refusals.ts'
import {
  DENIED_STATUS,
  SESSIONS_SHOWN_MAX,
  listedToWire,
  liveSessions,
  notOperable,
  session,
  sessionBody,
  sessionCreated,
  sessionNotOperable,
  sessionToWire,
  sessionsQuery,
} from '../../../protocol/service/sessions.ts'
import type { Principal } from '../../service-api/principal.ts'
import {
  type SessionDeps,
  closeSession,
  heartbeat,
  openSession,
  requestInSession,
} from '../../sessions/session-life.ts'
import { requireSession } from '../../storage/require-record.ts'
import { inTurns } from '../merge-cells.ts'
import { type Call, type Operation, inSession, serviceOperation, CLIENTS, CLIENTS_AND_DEVICES } from '../operation.ts'
import { requireInstanceOf } from '../scope.ts'
import { REQUEST_EXAMPLE, responseExample } from './examples.ts'
import { metaDataTexts } from './access-request.ts'

const place = { areas: ['api', 'floating/api'], principals: CLIENTS, tag: 'Sessions' } as const
const ofDevices = { ...place, principals: CLIENTS_AND_DEVICES } as const

export function sessionOperations(deps: SessionDeps): readonly Operation[] {
  const requireAccess = async (head: SessionCall & { readonly params: z.infer<typeof inSession> }): Promise<void> => {
    const belongs = belongsTo(head)
    const stored = await deps.store.read((reader) => reader.sessions.get(head.params.sessionId))
    if (stored !== undefined) belongs(stored)
  }
  return [
    serviceOperation({
      ...ofDevices,
      id: 'createsession',
      role: 'operator',
      summary: 'Create a session',
      answers: { 200: { description: 'The session is IDLE and free of charge.', body: sessionCreated } },
      errors: ['NOT_FOUND', 'INSTANCE_HEADER_MISSING', 'DEVICE_LOCKED', 'DEVICE_TERMINATED', 'SESSIONS_LIMITED'],
      method: 'POST',
      path: '/sessions',
      body: sessionBody,
      idempotent:
        'For the session of a device agent: the same value returns the same session; another value ends that session and opens a new one. Optional for other clients.',
      requireAccess: async (head) => requireHeader(head),
      handle: async (call) => {
        const { body, principal, idempotencyKey: opening, now } = call
        const { instanceId } = body
        belongsTo(call)({ instanceId, deviceId: principal.deviceId })
        const session = await openSession(
          actingFor(deps, principal),
          { instanceId, deviceId: principal.deviceId, opening },
          now,
        )
        return { status: 200, body: { sessionId: session.id } }
      },
    }),
    serviceOperation({
      ...place,
      id: 'getallsessionsforinstance',
      summary: 'List up to 100 live sessions, newest first',
      description: 'A client names its instance in the query or in x-instance-id.',
      answers: { 200: { description: 'IDLE and ACTIVE sessions.', body: liveSessions } },
      errors: ['INSTANCE_HEADER_MISSING'],
      method: 'GET',
      path: '/sessions',
      query: sessionsQuery,
      limitedByHeader: true,
      cells: inTurns(SESSIONS_SHOWN_MAX),
      handle: async ({ query, principal, instanceHeader }) => {
        const instanceId = query.instanceId ?? instanceHeader
        // A client can name the instance in the query instead of the header.
        const belongs = belongsTo({ principal, instanceHeader: instanceHeader ?? instanceId })
        if (instanceId !== null) belongs({ instanceId, deviceId: null })
        const sessions = await deps.store.read((reader) => reader.sessions.live(instanceId, SESSIONS_SHOWN_MAX))
        return { status: 200, body: sessions.map(listedToWire) }
      },
    }),
    serviceOperation({
      ...place,
      id: 'getsession',
      summary: 'Show a session',
      answers: { 200: { description: 'The session.', body: session } },
      errors: ['NOT_FOUND', 'INSTANCE_HEADER_MISSING'],
      method: 'GET',
      path: '/sessions/:sessionId',
      params: inSession,
      handle: async (call) => {
        const belongs = belongsTo(call)
        const { sessionId } = call.params
        const session = await deps.store.read((reader) => requireSession(reader, sessionId))
        belongs(session)
        return { status: 200, body: sessionToWire(session) }
      },
    }),
    serviceOperation({
      ...place,
      id: 'putsessionaccessrequest',
      decides: true,
      role: 'operator',
      summary: 'Request items in a session, replacing its current items',
      description: 'All items are granted, or none. An empty list releases the current items; the session stays open.',
      example: { ...REQUEST_EXAMPLE, rollbackOnDeny: true },
      answers: (version) => ({
        200: {
          description: 'All items are granted.',
          body: accessResponses[version],
          example: responseExample(version),
        },
        403: {
          description: 'The items are denied; `status` of each item gives the reason.',
          body: version === 'v1.0' ? z.union([accessResponses[version], sessionNotOperable]) : accessResponses[version],
        },
      }),
      errors: ['NOT_FOUND', 'INSTANCE_HEADER_MISSING', 'SESSION_NOT_OPERABLE', 'SESSION_ON_DEVICE'],
      method: 'PUT',
      path: '/sessions/:sessionId',
      params: inSession,
      requireAccess,
      body: (version) => sessionAccessRequestBody[version],
      handle: async (call) => {
        const { params, body, version, now } = call
        const request = requestOf(body)
        const correlationId = deps.newId()
        const command = {
          sessionId: params.sessionId,
          correlationId,
          request,
          metaData: metaDataTexts(body.requestedItems.map(({ metaData }) => metaData)),
          rollbackOnDeny: body.rollbackOnDeny,
        }
        const answer = await requestInSession(deps, command, belongsTo(call), now)
        if (!answer.operable) return notOperable(version, answer.session)
        const response = accessResponse(version, correlationId, request, answer.decision)
        return { status: answer.granted ? 200 : DENIED_STATUS, body: response }
      },
    }),
    serviceOperation({
      ...ofDevices,
      id: 'closesession',
      role: 'operator',
      summary: 'Close a session',
      description: 'Charges for unused time are refunded.',
      answers: {
        202: { description: 'The device that keeps the session is notified with its next sync.' },
        204: { description: 'The session is closed.' },
      },
      errors: ['NOT_FOUND', 'INSTANCE_HEADER_MISSING', 'SESSION_NOT_OPERABLE', 'SESSION_OF_ANOTHER'],
      method: 'DELETE',
      path: '/sessions/:sessionId',
      params: inSession,
      requireAccess,
      handle: async (call) => {
        const { sessionId } = call.params
        const closed = await closeSession(actingFor(deps, call.principal), sessionId, belongsTo(call), call.now)
        if (!closed.operable) return notOperable('v1.1', closed.session)
        // The device that keeps the session ends it with its next sync.
        return { status: closed.pending === true ? 202 : 204 }
      },
    }),
    serviceOperation({
      ...ofDevices,
      id: 'getheartbeat',
      role: 'operator',
      summary: 'Send a heartbeat',
      description: 'Stop on any response other than 204.',
      answers: (version) => ({
        204: { description: 'The session continues.' },
        ...(version === 'v1.0'
          ? { 403: { description: 'The session was terminated.', body: sessionNotOperable } }
          : {}),
      }),
      errors: ['NOT_FOUND', 'INSTANCE_HEADER_MISSING', 'SESSION_NOT_OPERABLE', 'SESSION_OF_ANOTHER'],
      method: 'GET',
      path: '/sessions/:sessionId/heartbeat',
      params: inSession,
      handle: async (call) => {
        const { operable, session } = await heartbeat(deps, call.params.sessionId, belongsTo(call), call.now)
        return operable ? { status: 204 } : notOperable(call.version, session)
      },
    }),
  ]
}

type SessionCall = Pick<Call<unknown, unknown, unknown, Principal['kind']>, 'principal' | 'instanceHeader'>

/**
 * Checks the session's instance, and that a device opened it itself. A client token requires the header and must list
 * its instance; with an administration token the header is optional.
 */
function belongsTo(call: SessionCall): (session: Pick<Session, 'instanceId' | 'deviceId'>) => void {
  requireHeader(call)
  return ({ instanceId, deviceId }) => {
    if (call.instanceHeader !== null && call.instanceHeader !== instanceId) {
      throw new CodedError('INSTANCE_NOT_IN_TOKEN', REFUSALS.instanceOfSession)
    }
    if (call.principal.kind === 'DEVICE' && call.principal.deviceId !== deviceId) {
      throw new CodedError('SESSION_OF_ANOTHER', `The device ${call.principal.deviceId} did not open this session.`)
    }
  }
}

function requireHeader({ principal, instanceHeader }: SessionCall): void {
  if (instanceHeader !== null) requireInstanceOf(principal, instanceHeader)
  else if (principal.kind !== 'ADMINISTRATOR') {
    throw new CodedError(
      'INSTANCE_HEADER_MISSING',
      'Session operations require the header x-instance-id with a client token.',
    )
  }
}
