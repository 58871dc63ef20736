/**
 * The edge area over HTTP: who may call, the form of path, query and body, and the answers of the use cases. Devices are
 * known by their own tokens, administrators by theirs, and a device to be by its enrollment token.
 */
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { z } from 'zod'
import type { HeldSessionWire } from '../../../protocol/edge/administration.ts'
import { attachRequest } from '../../../protocol/edge/attach.ts'
import { enrollmentRequest, enrollmentTokenRequest } from '../../../protocol/edge/enrollment.ts'
import { POLICY_MEDIA_TYPE, policyTag } from '../../../protocol/edge/policy-document.ts'
import { type signedAnswer, syncRequest } from '../../../protocol/edge/sync.ts'
import { CodedError } from '../../../protocol/errors.ts'
import { uuid } from '../../../protocol/wire.ts'
import type { Authenticator, Principal } from '../../app/authenticate.ts'
import { accountLedger } from '../../app/edge/account-ledger.ts'
import { type Attach, attach } from '../../app/edge/attach.ts'
import { type DeviceOrders, listDevices, releaseDevice, revokeDevice, showEvidence } from '../../app/edge/devices.ts'
import { type Enroll, enroll } from '../../app/edge/enroll.ts'
import { type IssueEnrollmentToken, issueEnrollmentToken } from '../../app/edge/issue-enrollment-token.ts'
import { DEVICES_PAGE, DEVICES_PAGE_MAX, EDGE_BODY_BYTES_MAX, SYNC_BODY_BYTES_MAX } from '../../app/edge/limits.ts'
import { type PolicyDocuments, signedPolicy } from '../../app/edge/policy-document.ts'
import { signTime } from '../../app/edge/sign-time.ts'
import { sync } from '../../app/edge/sync.ts'
import type { Sync } from '../../app/edge/taking.ts'
import { holdSession } from '../../app/hold-session.ts'
import type { SessionParts } from '../../app/session-life.ts'
import type { Store } from '../../app/store.ts'
import { answerError, sendJson } from './answer-error.ts'
import { decompressUpTo, notGzip } from './edge-gzip.ts'
import { inInstance, instanceId, parse, requireInstanceOf, requireKind } from './routes.ts'

/** What the use cases of the edge need, all together. */
export type EdgeParts = IssueEnrollmentToken &
  Enroll &
  Attach &
  Sync &
  PolicyDocuments &
  DeviceOrders & {
    readonly store: Store
    readonly authenticator: Authenticator
    /** A device was revoked: whatever connection it still has should end. */
    readonly onRevoked: (deviceId: string) => void
    readonly sessions: SessionParts
  }

const inDevice = z.object({ deviceId: uuid.toLowerCase() })

const inSession = z.object({ sessionId: uuid.toLowerCase() })

const wholeNumber = (max: number) =>
  z
    .string()
    .regex(/^\d{1,15}$/, 'must be a whole number')
    .transform(Number)
    .pipe(z.int().max(max))

const devicesQuery = z.strictObject({
  instanceId: instanceId.optional(),
  next: wholeNumber(Number.MAX_SAFE_INTEGER).optional(),
  size: wholeNumber(DEVICES_PAGE_MAX).optional(),
})

export function registerEdge(http: FastifyInstance, prefix: string, parts: EdgeParts): void {
  const { authenticator, keys, now } = parts
  const principals = new WeakMap<FastifyRequest, Principal>()

  const principalOf = (request: FastifyRequest): Principal => {
    const principal = principals.get(request)
    if (principal === undefined) throw new Error('invariant: a request that is handled was authenticated')
    return principal
  }
  /** Before the body is read: who may not call, may not make us read it. */
  const authenticate = async (request: FastifyRequest): Promise<Principal> => {
    const principal = await authenticator.authenticate(request.headers.authorization, now())
    principals.set(request, principal)
    return principal
  }
  const byAdministrator = async (request: FastifyRequest): Promise<void> => {
    requireKind(await authenticate(request), 'ADMINISTRATION')
  }
  const byDevice = async (request: FastifyRequest): Promise<void> => {
    const { deviceId } = await authenticate(request)
    if (deviceId === null) throw new CodedError('ACCESS_KIND_WRONG', 'This operation needs the token of a device.')
    const path = inDevice.partial().safeParse(request.params)
    if (path.data?.deviceId !== undefined && path.data.deviceId !== deviceId) {
      throw new CodedError('ACCESS_KIND_WRONG', 'This operation needs the token of the device that the path names.')
    }
  }
  const deviceOf = async (request: FastifyRequest) => {
    const { deviceId } = parse(inDevice, request.params, 'path')
    const device = await parts.store.read((reader) => reader.edge.devices.get(deviceId))
    if (device === undefined) throw new Error('invariant: a device that has signed its token is known')
    return device
  }

  void http.register(
    async (area) => {
      // A device may not know the time at all: it learns it from the refusal of its token.
      area.addHook('onSend', async (_request, reply) => void reply.header('date', new Date(now()).toUTCString()))
      area.setErrorHandler((error, request, reply) => answerError(notGzip(error) ?? error, request, reply))

      const small = { bodyLimit: EDGE_BODY_BYTES_MAX }

      area.post('/enrollment-tokens', { ...small, onRequest: byAdministrator }, async (request, reply) => {
        const body = parse(enrollmentTokenRequest, request.body, 'body')
        return answer(reply, 201, await issueEnrollmentToken(parts, body))
      })

      area.post('/enrollments', small, async (request, reply) => {
        const token = bearer(request)
        const body = parse(enrollmentRequest, request.body, 'body')
        return answer(reply, 200, await enroll(parts, token, body))
      })

      area.get('/instances/:instanceId/policy', { onRequest: byDevice }, async (request, reply) => {
        const path = parse(inInstance, request.params, 'path')
        requireInstanceOf(principalOf(request), path.instanceId)
        const found = await signedPolicy(parts, path.instanceId, revisionOf(request.headers['if-none-match']))
        if (found === undefined) throw new CodedError('NOT_FOUND', `There is no instance ${path.instanceId}.`)
        void reply.header('cache-control', 'no-cache')
        if (found === null) return reply.code(304).send()
        return reply.header('etag', policyTag(found.revision)).type(POLICY_MEDIA_TYPE).send(found.document)
      })

      area.post('/devices/:deviceId/attach', { ...small, onRequest: byDevice }, async (request, reply) => {
        const { deviceId } = parse(inDevice, request.params, 'path')
        const body = parse(attachRequest, request.body, 'body')
        const document = await attach(parts, deviceId, body)
        const said: SignedAnswer = { answer: document, time: await signTime(keys, body.nonce, document, now()) }
        return answer(reply, 200, said)
      })

      const large = {
        bodyLimit: SYNC_BODY_BYTES_MAX,
        onRequest: byDevice,
        preParsing: decompressUpTo(SYNC_BODY_BYTES_MAX),
      }
      area.post('/devices/:deviceId/sync', large, async (request, reply) => {
        const device = await deviceOf(request)
        const { segment, nonce } = parse(syncRequest, request.body, 'body')
        const taken = await sync(parts, device, segment)
        if (!taken.taken) {
          const facts = { deviceId: device.id, ...taken.facts }
          request.log.warn(facts, 'a segment was refused')
          throw new CodedError('SEGMENT_REJECTED', taken.problem, { facts })
        }
        const said: SignedAnswer = { answer: taken.answer, time: await signTime(keys, nonce, taken.answer, now()) }
        return answer(reply, 200, said)
      })

      area.get('/devices', { onRequest: byAdministrator }, async (request, reply) => {
        const query = parse(devicesQuery, request.query, 'query')
        const size = Math.max(1, query.size ?? DEVICES_PAGE)
        return answer(reply, 200, await listDevices(parts, query.instanceId ?? null, query.next ?? 0, size))
      })

      area.post('/devices/:deviceId/revoke', { ...small, onRequest: byAdministrator }, async (request, reply) => {
        const { deviceId } = parse(inDevice, request.params, 'path')
        const state = await revokeDevice(parts, deviceId)
        parts.onRevoked(deviceId)
        return answer(reply, 200, state)
      })

      area.post('/devices/:deviceId/release', { ...small, onRequest: byAdministrator }, async (request, reply) => {
        const { deviceId } = parse(inDevice, request.params, 'path')
        return answer(reply, 200, await releaseDevice(parts, deviceId))
      })

      for (const order of ['LOCK', 'UNLOCK', 'TERMINATE'] as const) {
        const path = `/sessions/:sessionId/${order.toLowerCase()}`
        area.post(path, { ...small, onRequest: byAdministrator }, async (request, reply) => {
          const { sessionId } = parse(inSession, request.params, 'path')
          const { outcome, session } = await holdSession(parts.sessions, sessionId, order, now())
          const said: HeldSessionWire = { sessionId: session.id, state: session.state, outcome }
          return answer(reply, outcome === 'DONE' ? 200 : 202, said)
        })
      }

      area.get('/devices/:deviceId/evidence', { onRequest: byAdministrator }, async (request, reply) => {
        const { deviceId } = parse(inDevice, request.params, 'path')
        return answer(reply, 200, await showEvidence(parts, deviceId))
      })

      area.get('/instances/:instanceId/accounts', { onRequest: byAdministrator }, async (request, reply) => {
        const path = parse(inInstance, request.params, 'path')
        return answer(reply, 200, await accountLedger(parts, path.instanceId))
      })
    },
    { prefix: `${prefix}/edge/api/v1` },
  )
}

type SignedAnswer = z.input<typeof signedAnswer>

function answer(reply: FastifyReply, status: number, body: unknown): FastifyReply {
  sendJson(reply, status, body)
  return reply
}

/** The revision of an entity tag; null for none, or for one that this service never gave. */
function revisionOf(tag: string | undefined): number | null {
  const digits = /^(?:W\/)?"(\d{1,15})"$/.exec(tag?.trim() ?? '')?.[1]
  return digits === undefined ? null : Number(digits)
}

function bearer({ headers }: FastifyRequest): string {
  const token = /^Bearer +([\w.~+/=-]+) *$/i.exec(headers.authorization ?? '')?.[1]
  if (token === undefined)
    throw new CodedError('TOKEN_MISSING', 'The enrollment token belongs into the Authorization header.')
  return token
}
