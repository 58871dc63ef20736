/**
 * What an operation of the service API is, as data: where it is, who may call it, what it takes. One function turns it into
 * routes of the server, so that every operation checks the same things in the same order: token, access kind, form of the
 * path, instance, form of query and body.
 */
import { Readable } from 'node:stream'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { z } from 'zod'
import { CodedError, type ErrorCode, firstProblem } from '../../../protocol/errors.ts'
import { instanceHeader, openingHeader, openingKey } from '../../../protocol/service/sessions.ts'
import { API_VERSIONS, type ApiVersion } from '../../../protocol/service/status.ts'
import { uuid } from '../../../protocol/wire.ts'
import type { AccessKind, Authenticator, Principal } from '../../app/authenticate.ts'
import { sendJson } from './answer-error.ts'
import type { Slots } from './slots.ts'
import { type ByVersion, type Declared, type Method, at, declaredAnswers } from './operation.ts'

/** The areas of the API, by their path below the prefix. */
export type Area = 'api' | 'floating/api' | 'provisioning/api' | 'elastic/api'

export interface Call<Params, Query, Body> {
  readonly version: ApiVersion
  readonly params: Params
  readonly query: Query
  readonly body: Body
  readonly principal: Principal
  /** The header x-instance-id, in lower case; null where it is not sent. */
  readonly instanceHeader: string | null
  /** The header idempotency-key; null where it is not sent, or not taken. */
  readonly idempotencyKey: string | null
  /** The header accept; null where it is not sent. */
  readonly accept: string | null
  /** POSIX ms. */
  readonly now: number
}

export interface Answer {
  readonly status: number
  /** Undefined: none. */
  readonly body?: unknown
  /** In the place of a body: what is too long to be held, sent as fast as the reader takes it. */
  readonly stream?: Stream
}

export interface Stream {
  readonly type: string
  readonly headers: Readonly<Record<string, string>>
  readonly pieces: AsyncIterable<string>
}

interface Operation<Params, Query, Body> extends Declared {
  readonly method: Method
  /** Below area and version; `:instanceId` is checked against the token. */
  readonly path: string
  readonly areas: ByVersion<readonly Area[]>
  /** Default: all. */
  readonly versions?: readonly ApiVersion[]
  /** `EITHER`: both kinds. */
  readonly access: 'ADMINISTRATION' | 'EITHER'
  /** What the header idempotency-key does; absent: it is not taken. */
  readonly idempotent?: string
  readonly params?: z.ZodType<Params>
  readonly query?: z.ZodType<Query>
  readonly body?: ByVersion<z.ZodType<Body>>
  /** The form of a body that `handle` looks at by itself. */
  readonly bodyForm?: ByVersion<z.ZodType>
  readonly handle: (call: Call<Params, Query, Body>) => Promise<Answer>
}

/** An operation whose types are settled. */
export type Route = Operation<unknown, unknown, unknown>

/** Settles the types of an operation. */
export function route<Params = unknown, Query = unknown, Body = unknown>(
  operation: Operation<Params, Query, Body>,
): Route {
  return operation as unknown as Route
}

/** Path parameter `instanceId`. */
export const instanceId = uuid.toLowerCase()

export const inInstance = z.object({ instanceId })

const NO_QUERY = z.strictObject({})

export interface RouteParts {
  readonly authenticator: Authenticator
  readonly slots: Slots
  /** POSIX ms. */
  readonly now: () => number
}

export function registerRoutes(
  http: FastifyInstance,
  prefix: string,
  { authenticator, slots, now }: RouteParts,
  routes: readonly Route[],
): void {
  const principals = new WeakMap<FastifyRequest, Principal>()
  for (const operation of routes) {
    const { method, path, areas, versions = API_VERSIONS } = operation
    for (const version of versions) {
      const answers = declaredAnswers(method, at(version, operation.answers), ownErrors(operation))
      for (const area of at(version, areas)) {
        http.route({
          method,
          url: `${prefix}/${area}/${version}${path}`,
          config: { answers },
          // Before the body is read: who may not call, may not make us read it.
          onRequest: async (request, reply) => {
            const principal = await authenticator.authenticate(request.headers.authorization, now())
            requireKind(principal, operation.access)
            refuseCompressed(request)
            slots.takeFor(principal, reply)
            principals.set(request, principal)
          },
          handler: async (request, reply) => {
            const principal = principals.get(request)
            if (principal === undefined) throw new Error('invariant: a request that is handled was authenticated')
            await answer(operation, version, principal, request, reply, now())
          },
        })
      }
    }
  }
}

/** Codes that come from what an operation takes, and its own. */
export function ownErrors({ errors = [] }: Route): readonly ErrorCode[] {
  // The header x-instance-id is compared with the token wherever it is sent.
  return ['INSTANCE_NOT_IN_TOKEN', ...errors]
}

async function answer(
  operation: Route,
  version: ApiVersion,
  principal: Principal,
  request: FastifyRequest,
  reply: FastifyReply,
  now: number,
): Promise<void> {
  const params = operation.params === undefined ? {} : parse(operation.params, request.params, 'path')
  const header = readInstanceHeader(request)
  const inPath = (params as { readonly instanceId?: string }).instanceId
  if (inPath !== undefined) {
    if (header !== null && header !== inPath) {
      throw new CodedError('INSTANCE_NOT_IN_TOKEN', 'The header x-instance-id names another instance than the path.')
    }
    requireInstanceOf(principal, inPath)
  }
  const query = parse(operation.query ?? NO_QUERY, request.query, 'query')
  const body = operation.body === undefined ? undefined : parse(at(version, operation.body), request.body, 'body')
  const {
    status,
    body: said,
    stream,
  } = await operation.handle({
    version,
    params,
    query,
    body,
    principal,
    instanceHeader: header,
    idempotencyKey: operation.idempotent === undefined ? null : readOpening(request),
    accept: request.headers.accept ?? null,
    now,
  })
  if (stream === undefined) sendJson(reply, status, said)
  else await reply.code(status).headers(stream.headers).type(stream.type).send(Readable.from(stream.pieces))
}

/** @throws CodedError BAD_REQUEST */
export function parse<T>(schema: z.ZodType<T>, value: unknown, root: string): T {
  const parsed = schema.safeParse(value)
  if (parsed.success) return parsed.data
  throw new CodedError('BAD_REQUEST', firstProblem(parsed.error, root))
}

/** @throws CodedError ACCESS_KIND_WRONG */
export function requireKind(principal: Principal, access: AccessKind | 'EITHER'): void {
  if (access !== 'EITHER' && principal.kind !== access) {
    throw new CodedError('ACCESS_KIND_WRONG', 'This operation needs an AdministrationAccess token.')
  }
}

/** @throws CodedError INSTANCE_NOT_IN_TOKEN */
export function requireInstanceOf({ instances }: Principal, id: string): void {
  if (instances !== null && !instances.has(id)) {
    throw new CodedError('INSTANCE_NOT_IN_TOKEN', `The token may not be used for instance ${id}.`)
  }
}

/** @throws CodedError MEDIA_TYPE_NOT_SUPPORTED where there is a body that would have to be unpacked */
export function refuseCompressed({ method, headers }: FastifyRequest): void {
  const encoding = headers['content-encoding']?.toLowerCase()
  if (method === 'GET' || encoding === undefined || encoding === 'identity') return
  throw new CodedError('MEDIA_TYPE_NOT_SUPPORTED', 'The body is compressed; send it as it is.')
}

function readOpening({ headers }: FastifyRequest): string | null {
  const value = headers[openingHeader]
  return value === undefined ? null : parse(openingKey, value, openingHeader)
}

function readInstanceHeader(request: FastifyRequest): string | null {
  const value = request.headers[instanceHeader]
  return value === undefined ? null : parse(instanceId, value, instanceHeader)
}
