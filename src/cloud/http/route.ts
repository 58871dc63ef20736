/**
 * The checks of an operation, apart from the transport. Their order is the same everywhere: token, permission, path, instance,
 * query and body. The body is not read before the access is checked, except to find the instances that only the body names.
 */
import type { ServerResponse } from 'node:http'
import type { FastifyRequest } from 'fastify'
import type { z } from 'zod'
import { CodedError, parseInput } from '../../protocol/errors.ts'
import type { Role } from '../../protocol/service/keys.ts'
import { REFUSALS } from '../../protocol/service/refusals.ts'
import { instanceHeader } from '../../protocol/service/sessions.ts'
import { idempotencyHeader, idempotencyKeyText } from '../../protocol/wire.ts'
import { requireNamed } from '../devices/authenticate-device.ts'
import { requireEnrollmentToken } from '../devices/enroll.ts'
import type { Keyring } from '../devices/keyring.ts'
import { type Authenticator, bearerOf, bearerToken } from '../service-api/authenticate.ts'
import type { Store } from '../storage/store.ts'
import {
  type Answer,
  type Call,
  type Caller,
  type CallerKind,
  type Operation,
  at,
  inDevice,
  instanceId,
  roleOf,
} from './operation.ts'
import { type Named, namesOf, requireInstanceOf, requireRole, requireScope, requireUnlimited } from './scope.ts'

export interface CheckDeps {
  readonly store: Pick<Store, 'read'>
  readonly keys: Keyring
  readonly authenticator: Authenticator
  /** POSIX ms. */
  readonly now: () => number
}

export interface RequestHead extends Pick<FastifyRequest, 'headers' | 'params' | 'query'> {
  /** Of all requests with an equal head. Absent: no other one is expected. */
  readonly kept?: KeptHead
}

/** What is read once for all equal heads. */
export interface KeptHead {
  parts?: HeadParts
}

interface HeadParts {
  readonly params: unknown
  readonly instanceHeader: string | null
}

export type Received = Pick<FastifyRequest, 'headers' | 'body'> & Pick<Call<unknown, unknown, unknown>, 'log'>

export interface Route {
  /** Before the body is read. @throws CodedError if the caller must not call the operation */
  readonly admit: (request: RequestHead) => Promise<Head>
  /** For a permitted caller, before the body is read. @throws CodedError */
  readonly enter: (head: Head, response: ServerResponse) => void
  /** @throws CodedError */
  readonly answer: (head: Head, request: Received) => Promise<Answer>
}

export function routeTo(operation: Operation, version: string, deps: CheckDeps): Route {
  const limits: Limits = { role: roleOf(operation), named: namesOf(operation, version) }
  return {
    admit: (request) => readHead(operation, limits, request, deps),
    enter: ({ principal }, response) => operation.enter?.(principal, response),
    answer: async (head, request) => {
      const input = await readBody(operation, version, head, { limits, request, store: deps.store })
      const { headers, log } = request
      return operation.handle({ version, ...head, ...input, headers, now: deps.now(), log })
    },
  }
}

export const CELL_HEADER = 'x-cell'

/** Refuses the header of a cell: its caller would take the data of the whole cloud for that of the cell. */
export function withoutCells(route: Route): Route {
  const refuse = async (request: RequestHead): Promise<never> => {
    await route.admit(request)
    throw new CodedError('BAD_REQUEST', `This cloud has no cells. Omit the header ${CELL_HEADER} (commands: --cell).`)
  }
  return {
    ...route,
    admit: (request) => (request.headers[CELL_HEADER] === undefined ? route.admit(request) : refuse(request)),
  }
}

/** Of administrators. */
interface Limits {
  readonly role: Role | null
  readonly named: Named
}

/** What is known of a permitted request before its body is read. */
export interface Head {
  readonly principal: Caller
  readonly params: unknown
  readonly query: unknown
  readonly instanceHeader: string | null
  /** Whether a limited administrator has named instances; true for other callers. */
  readonly isNamed: boolean
}

async function readHead(
  operation: Operation,
  { role, named }: Limits,
  request: RequestHead,
  deps: CheckDeps,
): Promise<Head> {
  const principal = await authorize(operation, role, request, deps)
  const { params, instanceHeader: header } = partsOf(operation, request)
  const inPath = (params as { readonly instanceId?: string }).instanceId
  if (inPath !== undefined) {
    if (header !== null && header !== inPath) {
      throw new CodedError('INSTANCE_NOT_IN_TOKEN', REFUSALS.instanceOfPath)
    }
    if ('instances' in principal) requireInstanceOf(principal, inPath)
  }
  const query = parseInput(operation.query, request.query, 'query')
  const parts = { params, query, header: header === null ? {} : { instanceId: header } }
  const isNamed =
    principal.kind !== 'ADMINISTRATOR' ||
    operation.concernsCaller === true ||
    (await requireScope(deps.store, principal, named, parts))
  if (!isNamed && !named.some(([part]) => part === 'body')) requireUnlimited(principal)
  await operation.requireAccess?.({ params, principal, instanceHeader: header })
  return { principal, params, query, instanceHeader: header, isNamed }
}

function partsOf(operation: Operation, { params, headers, kept = {} }: RequestHead): HeadParts {
  return (kept.parts ??= {
    params: operation.params === undefined ? {} : parseInput(operation.params, params, 'path'),
    instanceHeader: operation.readsInstanceHeader ? read(headers[instanceHeader], instanceId, instanceHeader) : null,
  })
}

const BASIC_CHALLENGE = 'Bearer, Basic realm="tallygate", charset="UTF-8"'

/** Made once: a schema is compiled at its first use. */
const maybeInDevice = inDevice.partial()

/** @throws CodedError for a caller that is not one of the operation's principals */
async function authorize(
  { principals, basic = false }: Operation,
  role: Role | null,
  request: RequestHead,
  deps: CheckDeps,
): Promise<Caller> {
  if (principals.includes('ENROLLMENT')) {
    const token = bearerToken(request.headers.authorization)
    await requireEnrollmentToken(deps, token)
    return { kind: 'ENROLLMENT', token }
  }
  if (principals.includes('INTRODUCED_DEVICE')) {
    const token = bearerToken(request.headers.authorization)
    await requireNamed(deps.store, token, parseInput(inDevice, request.params, 'path').deviceId)
    return { kind: 'INTRODUCED_DEVICE', token }
  }
  const { authorization } = request.headers
  const authentication = deps.authenticator.authenticate(basic ? bearerOf(authorization) : authorization, deps.now())
  const principal = await (basic ? authentication.catch(challengeBasic) : authentication)
  if (!principals.includes(principal.kind)) {
    const limits =
      principal.kind === 'DEVICE'
        ? ' A device key permits only the edge API and the sessions that its device opened.'
        : ''
    throw new CodedError('ACCESS_KIND_WRONG', `This operation requires ${tokenFor(principals)}.${limits}`)
  }
  if (principal.kind === 'ADMINISTRATOR') return role === null ? principal : requireRole(principal, role)
  if (principal.deviceId === null) return principal
  const { deviceId } = maybeInDevice.safeParse(request.params).data ?? {}
  if (deviceId !== undefined && deviceId !== principal.deviceId) {
    throw new CodedError('ACCESS_KIND_WRONG', 'This operation requires the token of the device in the path.')
  }
  return principal
}

/** Many programs send the password only after such a challenge. */
function challengeBasic(error: unknown): never {
  if (!(error instanceof CodedError) || error.httpStatus !== 401) throw error
  const { code, message, details } = error
  throw new CodedError(code, message, { cause: error, details: { ...details, challenge: BASIC_CHALLENGE } })
}

function tokenFor(principals: readonly CallerKind[]): string {
  if (!principals.includes('ADMINISTRATOR')) return 'a device token'
  return principals.includes('CLIENT')
    ? 'a ClientAccess or AdministrationAccess token'
    : 'an AdministrationAccess token'
}

interface BodySource {
  readonly limits: Limits
  readonly request: Received
  readonly store: Pick<Store, 'read'>
}

/** @throws CodedError BAD_REQUEST, INSTANCE_NOT_IN_SCOPE */
async function readBody(
  operation: Operation,
  version: string,
  { principal, isNamed }: Head,
  { limits, request, store }: BodySource,
): Promise<{ readonly body: unknown; readonly idempotencyKey: string | null }> {
  const limited = principal.kind === 'ADMINISTRATOR' ? principal : null
  const isNamedHere = limited !== null && (await requireScope(store, limited, limits.named, { body: request.body }))
  const body = operation.body === undefined ? undefined : parseInput(at(version, operation.body), request.body)
  if (limited !== null && !isNamed && !isNamedHere) requireUnlimited(limited)
  const idempotencyKey =
    operation.idempotent === undefined
      ? null
      : read(request.headers[idempotencyHeader], idempotencyKeyText, idempotencyHeader)
  return { body, idempotencyKey }
}

/** Null for an absent header. @throws CodedError BAD_REQUEST */
function read(value: string | string[] | undefined, schema: z.ZodType<string>, name: string): string | null {
  return value === undefined ? null : parseInput(schema, value, name)
}
