// The OpenAPI document of the agent's socket, from the schemas that the socket validates with.
import { z } from 'zod'
import { openApiDocument, type DescribedOperation, type HeaderForm } from '../src/cloud/http/openapi/document.ts'
import { REQUEST_EXAMPLE, responseExample } from '../src/cloud/http/service/examples.ts'
import type { ErrorCode } from '../src/protocol/errors.ts'
import { AGENT_DECISIONS_PATH, CORRELATION_HEADER, keptDecision } from '../src/protocol/local/decision.ts'
import { LOCAL_HEADERS } from '../src/protocol/local/headers.ts'
import { AGENT_LOG_PATH } from '../src/protocol/local/log.ts'
import { AGENT_OFFERS_PATH, offers } from '../src/protocol/local/offers.ts'
import { AGENT_ROTATE_KEY_PATH, keyRotation } from '../src/protocol/local/rotate-key.ts'
import { AGENT_STATUS_PATH, agentStatus } from '../src/protocol/local/status.ts'
import { accessRequestBody, accessResponses, sessionAccessRequestBody } from '../src/protocol/service/access-request.ts'
import {
  instanceHeader,
  liveSessions,
  session,
  sessionBody,
  sessionCreated,
  sessionsQuery,
} from '../src/protocol/service/sessions.ts'
import { idempotencyHeader, idempotencyKeyText, uuid } from '../src/protocol/wire.ts'

const VERSION = 'v1.1'
const SERVICE = '/dynamicmonetization'

type Headers = Readonly<Record<string, HeaderForm>>

const numbered: Headers = {
  [LOCAL_HEADERS.session]: {
    description:
      'A UUID that the program makes at its start, so that no other program of the same user has it. Requests under one UUID are sent one at a time.',
    schema: uuid,
  },
  [LOCAL_HEADERS.request]: {
    description:
      'The number of the request under this UUID, counted up from 1. The same number with the same body gets the same response and changes nothing, also after a restart of the agent.',
    schema: z.int().min(1),
  },
  [idempotencyHeader]: {
    description:
      'Instead of UUID and number: a key for a single request. All programs of one user share these keys, so use a UUID.',
    schema: idempotencyKeyText,
  },
}

const ofInstance: Headers = {
  [instanceHeader]: { description: 'If present, it must be the instance of the path or session.', schema: uuid },
}

const decided: Headers = {
  [LOCAL_HEADERS.durability]: {
    description:
      '`durable`: the decision survives a power cut. `write-behind`: it survives a crash of the agent. `later`: a denial, which charges nothing; its record follows with the next commit.',
    schema: z.enum(['durable', 'write-behind', 'later']),
  },
  [LOCAL_HEADERS.policyRevision]: { description: 'Revision of the rules that decided.', schema: z.int().min(0) },
  [LOCAL_HEADERS.warnings]: {
    description: 'Warnings about a grant, separated by commas.',
    schema: z.enum(['CLOCK_UNDECIDED_ALLOWED', 'ESSENTIAL_OFFLINE']),
  },
}

const advised: Headers = {
  [LOCAL_HEADERS.advice]: {
    description:
      'After a request for an unknown item: what exists, such as `LaserCut exists as version 1.0`. Other characters than printable ASCII are escaped as in JSON.',
    schema: z.string(),
  },
}

const beating: Headers = {
  [LOCAL_HEADERS.heartbeat]: {
    description:
      'Longest time between two heartbeats, in milliseconds: half a charge interval, by default 1800000 (30 minutes). Missing if the session needs none.',
    schema: z.int().min(0),
  },
}

/** Errors of every call that identifies its caller. */
const EVERYWHERE: readonly ErrorCode[] = [
  'BAD_REQUEST',
  'HEADERS_TOO_LARGE',
  'EXPECTATION_UNKNOWN',
  'TRANSFER_CODING_UNKNOWN',
  'METHOD_NOT_ALLOWED',
  'CALLER_NOT_ALLOWED',
  'CALLER_UNMAPPED',
  'OVERLOADED',
  'AGENT_STARTING',
  'STOPPING',
  'INTERNAL',
]
const OF_BODIES: readonly ErrorCode[] = [
  'BAD_JSON',
  'BODY_INCOMPLETE',
  'BODY_TOO_LARGE',
  'MEDIA_TYPE_NOT_SUPPORTED',
  'REQUEST_TOO_SLOW',
]
const OF_RULES: readonly ErrorCode[] = [
  'DEVICE_LOCKED',
  'DEVICE_TERMINATED',
  'NOT_ENROLLED',
  'NOT_FOUND',
  'POLICY_MISSING',
  'POLICY_STALE',
]
const OF_RECORDS: readonly ErrorCode[] = ['NOT_ATTACHED', 'NOT_RECORDED', 'DISK_FAILED']
const OF_CHANGES: readonly ErrorCode[] = ['CONFLICT', 'IDEMPOTENCY_CONFLICT', ...OF_RECORDS]
const OF_SESSIONS: readonly ErrorCode[] = ['NOT_FOUND', 'INSTANCE_NOT_IN_TOKEN', 'SESSION_NOT_OPERABLE']

type Local = Omit<DescribedOperation, 'security' | 'headers' | 'codes' | 'description'> & {
  readonly role: 'use' | 'observe' | 'administer'
  readonly description?: string
  readonly headers?: Headers
  readonly errors?: readonly ErrorCode[]
}

function local({ role, description, headers = {}, errors = [], ...rest }: Local): DescribedOperation {
  const words = [...(description === undefined ? [] : [description]), `The caller needs the role \`${role}\`.`]
  const codes = [...new Set([...EVERYWHERE, ...errors])]
  return { ...rest, description: words.join('\n\n'), security: [], headers, codes }
}

const inSession = z.object({ sessionId: uuid })
const sessionsPath = `${SERVICE}/api/${VERSION}/sessions`

export const localOperations: readonly DescribedOperation[] = [
  local({
    id: 'listoffers',
    role: 'use',
    tag: 'Access requests',
    summary: 'List the items that can be requested now, with their rates',
    method: 'GET',
    paths: [AGENT_OFFERS_PATH],
    answers: {
      200: {
        description: 'By instance, the items that usable line items pay for.',
        body: offers,
        example: {
          instances: [
            {
              instanceId: '64d2028c-ae87-4069-a624-66089d957ef9',
              name: 'Workshop',
              policyRevision: 3,
              items: [{ item: 'LaserCut', version: '1.0', lineItems: [{ activationId: 'FIRST-1000', rate: 0.85 }] }],
            },
          ],
        },
      },
    },
    errors: OF_RULES,
  }),
  local({
    id: 'postaccessrequest',
    role: 'use',
    tag: 'Access requests',
    summary: 'Request items once, without a session',
    description: 'Each item is granted or refused independently, in the given order.',
    method: 'POST',
    paths: [`${SERVICE}/elastic/api/${VERSION}/instances/{instanceId}/access-request`],
    params: z.object({ instanceId: uuid }),
    headers: { ...numbered, ...ofInstance },
    body: accessRequestBody[VERSION],
    example: REQUEST_EXAMPLE,
    answers: {
      200: {
        description: 'The result of each item, granted or refused.',
        headers: { ...decided, ...advised },
        body: accessResponses[VERSION],
        example: responseExample(VERSION),
      },
    },
    errors: [
      ...OF_BODIES,
      ...OF_RULES,
      ...OF_CHANGES,
      'CALLER_LIMITED',
      'REQUESTERS_LIMITED',
      'REQUEST_TOO_LARGE',
      'INSTANCE_NOT_IN_TOKEN',
    ],
  }),
  local({
    id: 'createsession',
    role: 'use',
    tag: 'Sessions',
    summary: 'Open a session',
    method: 'POST',
    paths: [sessionsPath],
    headers: {
      ...numbered,
      ...ofInstance,
      [LOCAL_HEADERS.bound]: {
        description: 'The session ends when this connection closes. It needs no heartbeats.',
        schema: z.literal('connection'),
      },
    },
    body: sessionBody,
    answers: {
      200: {
        description: 'The session is IDLE and free of charge.',
        headers: { ...decided, ...beating },
        body: sessionCreated,
      },
    },
    errors: [...OF_BODIES, ...OF_RULES, ...OF_CHANGES, 'CALLER_LIMITED', 'SESSIONS_LIMITED', 'INSTANCE_NOT_IN_TOKEN'],
  }),
  local({
    id: 'getallsessionsforinstance',
    role: 'use',
    tag: 'Sessions',
    summary: "List up to 100 of the caller's live sessions, newest first",
    description: 'The role `administer` is enough, and lists the sessions of all users.',
    method: 'GET',
    paths: [sessionsPath],
    query: sessionsQuery,
    headers: ofInstance,
    answers: { 200: { description: 'IDLE and ACTIVE sessions.', body: liveSessions } },
    errors: ['INSTANCE_NOT_IN_TOKEN'],
  }),
  local({
    id: 'getsession',
    role: 'use',
    tag: 'Sessions',
    summary: 'Show a session',
    description: 'The role `administer` is enough, for the sessions of all users.',
    method: 'GET',
    paths: [`${sessionsPath}/{sessionId}`],
    params: inSession,
    headers: ofInstance,
    answers: { 200: { description: 'The session.', body: session } },
    errors: ['NOT_FOUND', 'INSTANCE_NOT_IN_TOKEN'],
  }),
  local({
    id: 'putsessionaccessrequest',
    role: 'use',
    tag: 'Sessions',
    summary: 'Request items in a session, replacing its current items',
    description: 'All items are granted, or none. An empty list releases the current items; the session stays open.',
    method: 'PUT',
    paths: [`${sessionsPath}/{sessionId}`],
    params: inSession,
    headers: { ...numbered, ...ofInstance },
    body: sessionAccessRequestBody[VERSION],
    example: { ...REQUEST_EXAMPLE, rollbackOnDeny: true },
    answers: {
      200: {
        description: 'All items are granted.',
        headers: { ...decided, ...beating },
        body: accessResponses[VERSION],
        example: responseExample(VERSION),
      },
      403: {
        description: 'The items are denied; `status` of each item gives the reason.',
        headers: { ...decided, ...advised, ...beating },
        body: accessResponses[VERSION],
      },
    },
    errors: [
      ...OF_BODIES,
      ...OF_RULES,
      ...OF_CHANGES,
      ...OF_SESSIONS,
      'CALLER_LIMITED',
      'REQUESTERS_LIMITED',
      'REQUEST_TOO_LARGE',
    ],
  }),
  local({
    id: 'getheartbeat',
    role: 'use',
    tag: 'Sessions',
    summary: 'Send a heartbeat',
    description: 'Stop the work on any response other than 204.',
    method: 'GET',
    paths: [`${sessionsPath}/{sessionId}/heartbeat`],
    params: inSession,
    headers: ofInstance,
    answers: { 204: { description: 'The session continues.', headers: { ...decided, ...beating } } },
    // An overdue charge comes first.
    errors: [...OF_RULES, ...OF_SESSIONS, ...OF_RECORDS],
  }),
  local({
    id: 'closesession',
    role: 'use',
    tag: 'Sessions',
    summary: 'Close a session',
    description:
      'Charges for unused time are refunded. The role `administer` is enough, for the sessions of all users.',
    method: 'DELETE',
    paths: [`${sessionsPath}/{sessionId}`],
    params: inSession,
    headers: { ...numbered, ...ofInstance },
    answers: { 204: { description: 'The session is closed.', headers: decided } },
    errors: [...OF_BODIES, ...OF_SESSIONS, ...OF_CHANGES],
  }),
  local({
    id: 'getstatus',
    role: 'observe',
    tag: 'Agent',
    summary: "Show the agent's status",
    method: 'GET',
    paths: [AGENT_STATUS_PATH],
    answers: { 200: { description: 'The status.', body: agentStatus } },
  }),
  local({
    id: 'getdecision',
    role: 'observe',
    tag: 'Agent',
    summary: 'Show the stored decision or refusal with a correlation id',
    method: 'GET',
    paths: [`${AGENT_DECISIONS_PATH}{correlationId}`],
    params: z.object({ correlationId: uuid }),
    answers: { 200: { description: 'Everything that `tallygate explain` needs.', body: keptDecision } },
    errors: ['DECISION_UNKNOWN'],
  }),
  local({
    id: 'getlog',
    role: 'observe',
    tag: 'Agent',
    summary: "Show the agent's last log lines",
    method: 'GET',
    paths: [AGENT_LOG_PATH],
    answers: { 200: { description: 'One JSON object on each line.', streams: ['application/x-ndjson'] } },
  }),
  local({
    id: 'rotatekey',
    role: 'administer',
    tag: 'Agent',
    summary: 'Change the key of the device',
    method: 'POST',
    paths: [AGENT_ROTATE_KEY_PATH],
    answers: { 200: { description: 'The thumbprints of the current key and of the next one.', body: keyRotation } },
    errors: [
      'NOT_ENROLLED',
      'DEVICE_KEY_PROVIDED',
      'DEVICE_KEY_UNUSABLE',
      'STATE_UNWRITABLE',
      'NOT_RECORDED',
      'DISK_FAILED',
    ],
  }),
  {
    id: 'getlive',
    tag: 'Agent',
    summary: 'Check that the agent responds',
    description: 'Every process that can connect may call this.',
    method: 'GET',
    paths: ['/livez'],
    security: [],
    headers: {},
    answers: { 200: { description: 'It does.', body: z.strictObject({ live: z.literal(true) }) } },
    codes: ['AGENT_STARTING', 'STOPPING'],
  },
]

export function localDocument(errorsUrl: string): unknown {
  return openApiDocument(
    {
      title: "Tallygate: the agent's local API",
      version: VERSION,
      description: `HTTP over the agent's Unix socket, by default \`/run/tallygate/agent.sock\`. The \`Host\` header is required and can have any value. No token is needed: the kernel identifies the user of the calling process. \`${SERVICE}/elastic/api\` and \`${SERVICE}/api\` are optional, and \`v1.0\` is served too.

Refusals without a decision have the header \`${CORRELATION_HEADER}\`, which \`tallygate explain\` takes. Refusals that can be repeated unchanged have the header \`Retry-After\`.`,
      server: '/',
      errorsUrl,
    },
    localOperations,
  )
}
