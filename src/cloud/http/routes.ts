/**
 * Service API operations as data. One function registers them all, so checks have the same order everywhere: token,
 * access kind, path, instance, query and body.
 */
import { Readable } from 'node:stream'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { z } from 'zod'
import { CodedError, type ErrorCode, firstProblem } from '../../protocol/errors.ts'
import { instanceHeader, openingHeader, openingKey } from '../../protocol/service/sessions.ts'
import { API_VERSIONS, type ApiVersion } from '../../protocol/service/status.ts'
import { uuid } from '../../protocol/wire.ts'
import type { AccessKind, Authenticator, Principal } from '../service-api/authenticate.ts'
import { sendJson } from './answer-error.ts'
import type { Slots } from './slots.ts'
import { type ByVersion, type Declared, type Method, at, declaredAnswers } from './operation.ts'

/** API areas, relative to the prefix. */
export type Area = 'api' | 'floating/api' | 'provisioning/api' | 'elastic/api'

export interface Call<Params, Query, Body> {
  readonly version: ApiVersion
  readonly params: Params
  readonly query: Query
  readonly body: Body
  readonly principal: Principal
  /** Header x-instance-id in lower case. */
  readonly instanceHeader: string | null
  /** Header idempotency-key; null if absent or not supported. */
  readonly idempotencyKey: string | null
  readonly accept: string | null
  /** POSIX ms. */
  readonly now: number
}

export interface Answer {
  readonly status: number
  readonly body?: unknown
  /** Instead of a body: long content, streamed with backpressure. */
  readonly stream?: Stream
}

export interface Stream {
  readonly type: string
  readonly headers: Readonly<Record<string, string>>
  readonly pieces: AsyncIterable<string>
}

interface Operation<Params, Query, Body> extends Declared {
  readonly method: Method
  /** Relative to area and version; `:instanceId` is checked against the token. */
  readonly path: string
  readonly areas: ByVersion<readonly Area[]>
  /** Default: all. */
  readonly versions?: readonly ApiVersion[]
  /** `EITHER`: both kinds. */
  readonly access: 'ADMINISTRATION' | 'EITHER'
  /** Effect of the header idempotency-key; absent: not supported. */
  readonly idempotent?: string
  readonly params?: z.ZodType<Params>
  readonly query?: z.ZodType<Query>
  readonly body?: ByVersion<z.ZodType<Body>>
  /** Documented form of a body that `handle` validates itself. */
  readonly bodyForm?: ByVersion<z.ZodType>
  readonly handle: (call: Call<Params, Query, Body>) => Promise<Answer>
}

/** An operation with erased types. */
export type Route = Operation<unknown, unknown, unknown>

/** Erases the types of an operation. */
export function route<Params = unknown, Query = unknown, Body = unknown>(
  operation: Operation<Params, Query, Body>,
): Route {
  return operation as unknown as Route
}

export const instanceId = uuid.toLowerCase()

export const inInstance = z.object({ instanceId })

const NO_QUERY = z.strictObject({})

export interface RouteDeps {
  readonly authenticator: Authenticator
  readonly slots: Slots
  /** POSIX ms. */
  readonly now: () => number
}

export function registerRoutes(
  http: FastifyInstance,
  prefix: string,
  { authenticator, slots, now }: RouteDeps,
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
          // Before the body is read: unauthorized callers must not cause reads.
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

/** Codes implied by the operation's input, plus its own. */
export function ownErrors({ errors = [] }: Route): readonly ErrorCode[] {
  // x-instance-id is always checked against the token.
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
      throw new CodedError('INSTANCE_NOT_IN_TOKEN', 'The header x-instance-id does not match the instance in the path.')
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
    throw new CodedError('ACCESS_KIND_WRONG', 'This operation requires an AdministrationAccess token.')
  }
}

/** @throws CodedError INSTANCE_NOT_IN_TOKEN */
export function requireInstanceOf({ instances }: Principal, id: string): void {
  if (instances !== null && !instances.has(id)) {
    throw new CodedError('INSTANCE_NOT_IN_TOKEN', `The token is not valid for instance ${id}.`)
  }
}

/** @throws CodedError MEDIA_TYPE_NOT_SUPPORTED for a compressed body */
export function refuseCompressed({ method, headers }: FastifyRequest): void {
  const encoding = headers['content-encoding']?.toLowerCase()
  if (method === 'GET' || encoding === undefined || encoding === 'identity') return
  throw new CodedError('MEDIA_TYPE_NOT_SUPPORTED', 'The body is compressed. Send it uncompressed.')
}

function readOpening({ headers }: FastifyRequest): string | null {
  const value = headers[openingHeader]
  return value === undefined ? null : parse(openingKey, value, openingHeader)
}

function readInstanceHeader(request: FastifyRequest): string | null {
  const value = request.headers[instanceHeader]
  return value === undefined ? null : parse(instanceId, value, instanceHeader)
}
