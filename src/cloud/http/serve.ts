/**
 * Serves operations. Checks have the same order everywhere: token, permission, path, instance, query and body. The body
 * is not read before the permission is checked.
 */
import { type Named, namesOf, requireRole, requireScope } from './scope.ts'
import type { Role } from '../../protocol/service/keys.ts'
import { Readable } from 'node:stream'
import type { FastifyInstance, FastifyReply, FastifyRequest, RouteOptions } from 'fastify'
import type { z } from 'zod'
import { CodedError, firstProblem } from '../../protocol/errors.ts'
import { REFUSALS, readJsonBody } from '../../protocol/service/refusals.ts'
import { instanceHeader, openingHeader, openingKey } from '../../protocol/service/sessions.ts'
import { VERSION_HEADER } from '../../protocol/wire.ts'
import { requireNamed } from '../devices/authenticate-device.ts'
import { requireEnrollmentToken } from '../devices/enroll.ts'
import type { Keyring } from '../devices/keyring.ts'
import { type Authenticator, type Principal, bearerToken } from '../service-api/authenticate.ts'
import type { Store } from '../storage/store.ts'
import { answerError, sendJson } from './answer-error.ts'
import { watchArrival } from './arrival.ts'
import { decompressUpTo, notGzip } from './gzip.ts'
import {
  type Answer,
  type Caller,
  type CallerKind,
  type Operation,
  addressesOf,
  at,
  declaredAnswers,
  inDevice,
  instanceId,
  roleOf,
} from './operation.ts'
import type { Slots } from './slots.ts'

export interface ServeDeps {
  readonly store: Pick<Store, 'read'>
  readonly keys: Keyring
  readonly authenticator: Authenticator
  readonly slots: Slots
  /** Maximum time for a complete request to arrive, ms. */
  readonly requestTimeoutMs: number
  /** POSIX ms. */
  readonly now: () => number
  /** Software version. */
  readonly version: string
}

export function serveOperations(
  http: FastifyInstance,
  prefix: string,
  deps: ServeDeps,
  operations: readonly Operation[],
): void {
  for (const operation of operations) {
    for (const version of operation.versions) {
      for (const address of addressesOf(operation, version)) {
        http.route({ url: `${prefix}${address}`, ...routeOf(operation, version, deps) })
      }
    }
  }
}

/** Of administrators. */
interface Limits {
  readonly role: Role | null
  readonly named: Named
}

function routeOf(operation: Operation, version: string, deps: ServeDeps): Omit<RouteOptions, 'url'> {
  const { method, bodyMax, gzip = false, sendsTimeAndVersion } = operation
  const answers = declaredAnswers(method, at(version, operation.answers), operation.errors)
  const limits: Limits = { role: roleOf(operation), named: namesOf(operation, version) }
  const callers = new WeakMap<FastifyRequest, Caller>()
  const arrivals = new WeakMap<FastifyRequest, () => void>()
  return {
    method,
    config: { answers },
    ...(bodyMax === undefined ? {} : { bodyLimit: bodyMax }),
    ...(gzip && bodyMax !== undefined ? { preParsing: decompressUpTo(bodyMax), errorHandler: answerGzipError } : {}),
    ...(sendsTimeAndVersion
      ? { onSend: async (_, reply) => void reply.header('date', new Date(deps.now()).toUTCString()) }
      : {}),
    // Before the body is read: unauthorized callers must not cause reads.
    onRequest: async (request, reply) => {
      const caller = await deps.slots.authenticate(async () => authorize(operation, limits.role, request, deps))
      if (!gzip) refuseCompressed(request)
      const arrives = hasBody(request)
      deps.slots.take(caller, reply, arrives)
      operation.admit?.(caller, reply.raw)
      if (arrives) arrivals.set(request, watchArrival(request, caller.kind, deps.requestTimeoutMs))
      reply.raw.once('close', () => arrivals.get(request)?.())
      callers.set(request, caller)
      if (sendsTimeAndVersion && 'keyId' in caller) void reply.header(VERSION_HEADER, deps.version)
    },
    preValidation: async (request, reply) => {
      arrivals.get(request)?.()
      deps.slots.begin(reply)
      if (request.body !== undefined) request.body = readJsonBody(request.body as Buffer).value
    },
    handler: async (request, reply) => {
      const caller = callers.get(request)
      if (caller === undefined) throw new Error('invariant: a request that is handled was authenticated')
      const { status, headers, body, text, stream } = await answer(operation, request, {
        version,
        principal: caller,
        now: deps.now(),
        requireScope: async (parts) => {
          if (caller.kind === 'ADMINISTRATOR') await requireScope(deps.store, caller, limits.named, parts)
        },
      })
      if (headers !== undefined) void reply.headers(headers)
      if (stream !== undefined) {
        await reply.code(status).type(stream.type).send(Readable.from(stream.pieces))
      } else if (text !== undefined) {
        void reply
          .code(status)
          .type(answers.get(status)?.mediaType ?? 'text/plain')
          .send(text)
      } else sendJson(reply, status, body)
      return reply
    },
  }
}

/** @throws CodedError for a caller that is not one of the operation's principals */
async function authorize(
  { principals }: Operation,
  role: Role | null,
  request: FastifyRequest,
  deps: ServeDeps,
): Promise<Caller> {
  if (principals.includes('ENROLLMENT')) {
    const token = bearerToken(request.headers.authorization)
    await requireEnrollmentToken(deps, token)
    return { kind: 'ENROLLMENT', token }
  }
  if (principals.includes('INTRODUCED_DEVICE')) {
    const token = bearerToken(request.headers.authorization)
    await requireNamed(deps.store, token, parse(inDevice, request.params, 'path').deviceId)
    return { kind: 'INTRODUCED_DEVICE', token }
  }
  const principal = await deps.authenticator.authenticate(request.headers.authorization, deps.now())
  if (!principals.includes(principal.kind)) {
    const limits =
      principal.kind === 'DEVICE'
        ? ' A device key permits only the edge API and the sessions that its device opened.'
        : ''
    throw new CodedError('ACCESS_KIND_WRONG', `This operation requires ${tokenFor(principals)}.${limits}`)
  }
  if (principal.kind === 'ADMINISTRATOR' && role !== null) requireRole(principal, role)
  const { deviceId } = inDevice.partial().safeParse(request.params).data ?? {}
  if (principal.deviceId !== null && deviceId !== undefined && deviceId !== principal.deviceId) {
    throw new CodedError('ACCESS_KIND_WRONG', 'This operation requires the token of the device in the path.')
  }
  return principal
}

function tokenFor(principals: readonly CallerKind[]): string {
  if (!principals.includes('ADMINISTRATOR')) return 'a device token'
  return principals.includes('CLIENT')
    ? 'a ClientAccess or AdministrationAccess token'
    : 'an AdministrationAccess token'
}

interface Authorized {
  readonly version: string
  readonly principal: Caller
  readonly now: number
  /** @throws CodedError INSTANCE_NOT_IN_SCOPE */
  readonly requireScope: (request: Parameters<typeof requireScope>[3]) => Promise<void>
}

async function answer(
  operation: Operation,
  request: FastifyRequest,
  { version, principal, now, requireScope: requireNamedScope }: Authorized,
): Promise<Answer> {
  const { headers, log } = request
  const params = operation.params === undefined ? {} : parse(operation.params, request.params, 'path')
  const header = operation.readsInstanceHeader ? read(headers[instanceHeader], instanceId, instanceHeader) : null
  const inPath = (params as { readonly instanceId?: string }).instanceId
  if (inPath !== undefined) {
    if (header !== null && header !== inPath) {
      throw new CodedError('INSTANCE_NOT_IN_TOKEN', REFUSALS.instanceOfPath)
    }
    if ('instances' in principal && principal.kind !== 'ADMINISTRATOR') requireInstanceOf(principal, inPath)
  }
  const query = parse(operation.query, request.query, 'query')
  const body = operation.body === undefined ? undefined : parse(at(version, operation.body), request.body, 'body')
  await requireNamedScope({ params, query, body })
  const idempotencyKey =
    operation.idempotent === undefined ? null : read(headers[openingHeader], openingKey, openingHeader)
  return operation.handle({
    version,
    params,
    query,
    body,
    principal,
    instanceHeader: header,
    idempotencyKey,
    headers,
    now,
    log,
  })
}

/** @throws CodedError BAD_REQUEST */
function parse<T>(schema: z.ZodType<T>, value: unknown, root: string): T {
  const parsed = schema.safeParse(value)
  if (parsed.success) return parsed.data
  throw new CodedError('BAD_REQUEST', firstProblem(parsed.error, root))
}

/** Null for an absent header. @throws CodedError BAD_REQUEST */
function read(value: string | string[] | undefined, schema: z.ZodType<string>, name: string): string | null {
  return value === undefined ? null : parse(schema, value, name)
}

/** @throws CodedError INSTANCE_NOT_IN_TOKEN */
export function requireInstanceOf({ instances }: Principal, id: string): void {
  if (instances !== null && !instances.has(id)) {
    throw new CodedError('INSTANCE_NOT_IN_TOKEN', `The token is not valid for instance ${id}.`)
  }
}

/** @throws CodedError MEDIA_TYPE_NOT_SUPPORTED for a compressed body */
function refuseCompressed({ method, headers }: FastifyRequest): void {
  const encoding = headers['content-encoding']?.toLowerCase()
  if (method === 'GET' || encoding === undefined || encoding === 'identity') return
  throw new CodedError('MEDIA_TYPE_NOT_SUPPORTED', REFUSALS.compressed)
}

function hasBody({ method, headers }: FastifyRequest): boolean {
  if (method === 'GET') return false
  return headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0
}

function answerGzipError(error: unknown, request: FastifyRequest, reply: FastifyReply): void {
  answerError(notGzip(error) ?? error, request, reply)
}
