/**
 * What an operation of the edge API is, as data, and how it becomes a route. Every operation checks in the same order:
 * token, who may call, form of path, query and body. Who may not call, may not make us read a body.
 */
import type { FastifyBaseLogger, FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { z } from 'zod'
import { CodedError, type ErrorCode } from '../../../protocol/errors.ts'
import { VERSION_HEADER, uuid } from '../../../protocol/wire.ts'
import type { Authenticator, Principal } from '../../app/authenticate.ts'
import { answerError, sendJson } from './answer-error.ts'
import { decompressUpTo, notGzip } from './edge-gzip.ts'
import { type Answers, type Declared, type Method, declaredAnswers } from './operation.ts'
import { parse, refuseCompressed, requireKind } from './routes.ts'
import type { Slots } from './slots.ts'

/**
 * A device's own token, an administrator's, the one-time token of a device to be, or a device's own token by a key that only
 * the body introduces.
 */
export type EdgeAccess = 'DEVICE' | 'ADMINISTRATION' | 'ENROLLMENT' | 'INTRODUCED'

export interface EdgeCall<Params, Query, Body> {
  readonly params: Params
  readonly query: Query
  readonly body: Body
  /** Null with an enrollment token, or one by a key that is yet to be introduced. */
  readonly principal: Principal | null
  /** The bearer token as it was sent. */
  readonly token: string
  readonly ifNoneMatch: string | undefined
  readonly log: Pick<FastifyBaseLogger, 'warn'>
}

export interface EdgeAnswer {
  readonly status: number
  readonly headers?: Readonly<Record<string, string>>
  /** Undefined: none. */
  readonly body?: unknown
  /** In the place of `body`: text of the declared media type. */
  readonly text?: string
}

interface EdgeOperation<Params, Query, Body> extends Omit<Declared, 'answers'> {
  readonly method: Method
  /** Below the area; `:deviceId` is compared with the token of a device. */
  readonly path: string
  readonly access: EdgeAccess
  readonly answers: Answers
  readonly params?: z.ZodType<Params>
  readonly query?: z.ZodType<Query>
  readonly body?: z.ZodType<Body>
  /** Largest body, bytes after decompression; of an operation that takes one. */
  readonly bodyMax?: number
  /** The body may be compressed. */
  readonly gzip?: boolean
  /** Takes If-None-Match. */
  readonly conditional?: boolean
  readonly handle: (call: EdgeCall<Params, Query, Body>) => Promise<EdgeAnswer>
}

/** An operation whose types are settled. */
export type EdgeRoute = EdgeOperation<unknown, unknown, unknown>

/** Settles the types of an operation. */
export function edgeRoute<Params = unknown, Query = unknown, Body = unknown>(
  operation: EdgeOperation<Params, Query, Body>,
): EdgeRoute {
  return operation as unknown as EdgeRoute
}

export const inDevice = z.object({ deviceId: uuid.toLowerCase() })

/** Below the prefix. */
export const EDGE_AREA = '/edge/api/v1'

export interface EdgeAreaParts {
  readonly authenticator: Authenticator
  readonly slots: Slots
  /** Rejects for a token with which nobody is enrolled. */
  readonly requireEnrollmentToken: (token: string) => Promise<void>
  /** Rejects for a token that is not even said to be of this device, or when there is no such device. */
  readonly requireDeviceNamed: (token: string, deviceId: string) => Promise<void>
  /** POSIX ms. */
  readonly now: () => number
  /** Of this software, told to whoever has signed in. */
  readonly version: string
}

export function registerEdgeRoutes(
  http: FastifyInstance,
  prefix: string,
  { authenticator, slots, requireEnrollmentToken, requireDeviceNamed, now, version }: EdgeAreaParts,
  routes: readonly EdgeRoute[],
): void {
  const principals = new WeakMap<FastifyRequest, Principal>()
  void http.register(
    async (area) => {
      // A device may not know the time at all: it learns it from the refusal of its token.
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

/** Codes that come from what an operation takes, and its own. */
export function edgeErrors({ errors = [], gzip = false }: EdgeRoute): readonly ErrorCode[] {
  return gzip ? ['MEDIA_TYPE_NOT_SUPPORTED', ...errors] : errors
}

/** Id of the administration key that an order came with, for the audit. */
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
  if (deviceId === null) throw new CodedError('ACCESS_KIND_WRONG', 'This operation needs the token of a device.')
  const path = inDevice.partial().safeParse(params)
  if (path.data?.deviceId !== undefined && path.data.deviceId !== deviceId) {
    throw new CodedError('ACCESS_KIND_WRONG', 'This operation needs the token of the device that the path names.')
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
