/**
 * Edge API operations as data, and their registration as routes. Check order: token, permission, path, query, body.
 * The body is not read before the permission is checked.
 */
import type { FastifyBaseLogger, FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { z } from 'zod'
import { CodedError, type ErrorCode } from '../../protocol/errors.ts'
import { VERSION_HEADER, uuid } from '../../protocol/wire.ts'
import type { Authenticator, Principal } from '../service-api/authenticate.ts'
import { answerError, sendJson } from './answer-error.ts'
import { decompressUpTo, notGzip } from './edge-gzip.ts'
import { type Answers, type Declared, type Method, declaredAnswers } from './operation.ts'
import { parse, refuseCompressed, requireKind } from './routes.ts'
import type { Slots } from './slots.ts'

/**
 * Token of a device, of an administrator, for enrollment, or of a device with a key that only the body introduces.
 */
export type EdgeAccess = 'DEVICE' | 'ADMINISTRATION' | 'ENROLLMENT' | 'INTRODUCED'

export interface EdgeCall<Params, Query, Body> {
  readonly params: Params
  readonly query: Query
  readonly body: Body
  /** Null with an enrollment token, or a key not introduced yet. */
  readonly principal: Principal | null
  /** Bearer token. */
  readonly token: string
  readonly ifNoneMatch: string | undefined
  readonly log: Pick<FastifyBaseLogger, 'warn'>
}

export interface EdgeAnswer {
  readonly status: number
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: unknown
  /** Instead of `body`: text of the declared media type. */
  readonly text?: string
}

interface EdgeOperation<Params, Query, Body> extends Omit<Declared, 'answers'> {
  readonly method: Method
  /** Relative to the area; `:deviceId` must match a device's token. */
  readonly path: string
  readonly access: EdgeAccess
  readonly answers: Answers
  readonly params?: z.ZodType<Params>
  readonly query?: z.ZodType<Query>
  readonly body?: z.ZodType<Body>
  /** Maximum body after decompression, bytes. */
  readonly bodyMax?: number
  readonly gzip?: boolean
  /** Supports If-None-Match. */
  readonly conditional?: boolean
  readonly handle: (call: EdgeCall<Params, Query, Body>) => Promise<EdgeAnswer>
}

/** An operation with erased types. */
export type EdgeRoute = EdgeOperation<unknown, unknown, unknown>

/** Erases the types of an operation. */
export function edgeRoute<Params = unknown, Query = unknown, Body = unknown>(
  operation: EdgeOperation<Params, Query, Body>,
): EdgeRoute {
  return operation as unknown as EdgeRoute
}

export const inDevice = z.object({ deviceId: uuid.toLowerCase() })

export const EDGE_AREA = '/edge/api/v1'

export interface EdgeAreaDeps {
  readonly authenticator: Authenticator
  readonly slots: Slots
  /** Rejects an invalid enrollment token. */
  readonly requireEnrollmentToken: (token: string) => Promise<void>
  /** Rejects a token that does not name this device, or an unknown device. */
  readonly requireDeviceNamed: (token: string, deviceId: string) => Promise<void>
  /** POSIX ms. */
  readonly now: () => number
  /** Software version, sent to authenticated callers. */
  readonly version: string
}

export function registerEdgeRoutes(
  http: FastifyInstance,
  prefix: string,
  { authenticator, slots, requireEnrollmentToken, requireDeviceNamed, now, version }: EdgeAreaDeps,
  routes: readonly EdgeRoute[],
): void {
  const principals = new WeakMap<FastifyRequest, Principal>()
  void http.register(
    async (area) => {
      // A device with a wrong clock reads the time from the refusal of its token.
      area.addHook('onSend', async (_request, reply) => void reply.header('date', new Date(now()).toUTCString()))
      area.setErrorHandler((error, request, reply) => answerError(notGzip(error) ?? error, request, reply))
      for (const operation of routes) {
        const { method, path, access, bodyMax, gzip = false } = operation
        area.route({
          method,
          url: path,
          config: { answers: declaredAnswers(method, operation.answers, edgeErrors(operation)) },
          ...(bodyMax === undefined ? {} : { bodyLimit: bodyMax }),
          ...(gzip && bodyMax !== undefined ? { preParsing: decompressUpTo(bodyMax) } : {}),
          onRequest: async (request, reply) => {
            if (access === 'ENROLLMENT') {
              await requireEnrollmentToken(bearer(request))
              refuseCompressed(request)
              slots.takeForEnrollment(bearer(request), reply)
              return
            }
            if (access === 'INTRODUCED') {
              await requireDeviceNamed(bearer(request), parse(inDevice, request.params, 'path').deviceId)
              refuseCompressed(request)
              slots.takeForIntroduced(reply)
              return
            }
            const principal = await authenticator.authenticate(request.headers.authorization, now())
            requireAccess(access, principal, request.params)
            if (!gzip) refuseCompressed(request)
            slots.takeFor(principal, reply)
            principals.set(request, principal)
            void reply.header(VERSION_HEADER, version)
          },
          handler: async (request, reply) => answer(operation, principals.get(request) ?? null, request, reply),
        })
      }
    },
    { prefix: `${prefix}${EDGE_AREA}` },
  )
}

/** Codes implied by the operation's input, plus its own. */
export function edgeErrors({ errors = [], gzip = false }: EdgeRoute): readonly ErrorCode[] {
  return gzip ? ['MEDIA_TYPE_NOT_SUPPORTED', ...errors] : errors
}

/** Id of the administration key, for the audit. */
export function keyOf({ principal }: Pick<EdgeCall<unknown, unknown, unknown>, 'principal'>): string {
  if (principal === null) throw new Error('invariant: an order comes with the token of an administrator')
  return principal.keyId
}

function requireAccess(access: EdgeAccess, principal: Principal, params: unknown): void {
  if (access === 'ADMINISTRATION') {
    requireKind(principal, 'ADMINISTRATION')
    return
  }
  const { deviceId } = principal
  if (deviceId === null) throw new CodedError('ACCESS_KIND_WRONG', 'This operation requires a device token.')
  const path = inDevice.partial().safeParse(params)
  if (path.data?.deviceId !== undefined && path.data.deviceId !== deviceId) {
    throw new CodedError('ACCESS_KIND_WRONG', 'This operation requires the token of the device in the path.')
  }
}

async function answer(
  operation: EdgeRoute,
  principal: Principal | null,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<FastifyReply> {
  const { status, headers, body, text } = await operation.handle({
    params: operation.params === undefined ? {} : parse(operation.params, request.params, 'path'),
    query: operation.query === undefined ? {} : parse(operation.query, request.query, 'query'),
    body: operation.body === undefined ? undefined : parse(operation.body, request.body, 'body'),
    principal,
    token: bearer(request),
    ifNoneMatch: request.headers['if-none-match'],
    log: request.log,
  })
  if (headers !== undefined) void reply.headers(headers)
  if (text === undefined) sendJson(reply, status, body)
  else
    void reply
      .code(status)
      .type(operation.answers[status]?.mediaType ?? 'text/plain')
      .send(text)
  return reply
}

function bearer({ headers }: FastifyRequest): string {
  const token = /^Bearer +([\w.~+/=-]+) *$/i.exec(headers.authorization ?? '')?.[1]
  if (token === undefined) throw new CodedError('TOKEN_MISSING', 'The Authorization header has no bearer token.')
  return token
}
