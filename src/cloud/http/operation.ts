/**
 * One operation of an HTTP API as data: who can call it, its input, its responses and the function that does the work.
 * `route.ts` checks requests, `serve.ts` serves the operations, `check-answers.ts` checks their responses, and `openapi`
 * describes them. Response schemas describe the wire side.
 */
import type { Role } from '../../protocol/service/keys.ts'
import type { IncomingHttpHeaders, ServerResponse } from 'node:http'
import type { FastifyBaseLogger } from 'fastify'
import { z } from 'zod'
import type { ErrorCode } from '../../protocol/errors.ts'
import { API_VERSIONS, type ApiVersion } from '../../protocol/service/status.ts'
import { uuidInLowerCase } from '../../protocol/wire.ts'
import { EDGE_BODY_BYTES_MAX } from '../devices/limits.ts'
import type { Principal } from '../service-api/principal.ts'

export type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'

/** Areas below the prefix. The URL of an operation is `<prefix>/<area>/<version><path>`. */
export type Area = 'api' | 'floating/api' | 'provisioning/api' | 'elastic/api' | 'edge/api' | 'data/api'

export type EdgeVersion = 'v1'
export type DataVersion = 'v1'

/** A caller without an accepted key: it has an enrollment token, or a key that only the body introduces. */
export interface TokenHolder {
  readonly kind: 'ENROLLMENT' | 'INTRODUCED_DEVICE'
  /** Bearer token. */
  readonly token: string
}

export type Caller = Principal | TokenHolder

export type CallerKind = Caller['kind']

type CallerOf<Kind extends CallerKind> = Kind extends TokenHolder['kind']
  ? TokenHolder
  : Extract<Principal, { readonly kind: Kind }>

export const ADMINISTRATORS = ['ADMINISTRATOR'] as const

export const CLIENTS = ['ADMINISTRATOR', 'CLIENT'] as const

/** What an agent calls of the service API, for the sessions that its device opened. */
export const CLIENTS_AND_DEVICES = [...CLIENTS, 'DEVICE'] as const

/** One value for all versions, or a function of the version. */
export type ByVersion<T, Version extends string = string> = T | ((version: Version) => T)

export interface AnswerForm {
  readonly description: string
  readonly body?: z.ZodType
  /** Default: application/json. */
  readonly mediaType?: string
  /** Instead of a body: long text is streamed in one of these media types. */
  readonly streams?: readonly string[]
  readonly example?: unknown
}

/** By HTTP status. */
export type Answers = Readonly<Record<number, AnswerForm>>

export interface Call<Params, Query, Body, Kind extends CallerKind = CallerKind, Version extends string = string> {
  readonly version: Version
  readonly params: Params
  readonly query: Query
  readonly body: Body
  readonly principal: CallerOf<Kind>
  /** Header x-instance-id in lower case; null if absent or not supported. */
  readonly instanceHeader: string | null
  /** Header idempotency-key; null if absent or not supported. */
  readonly idempotencyKey: string | null
  readonly headers: IncomingHttpHeaders
  /** POSIX ms. */
  readonly now: number
  readonly log: Pick<FastifyBaseLogger, 'warn'>
}

export interface Answer {
  readonly status: number
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: unknown
  /** Instead of a body: text of the declared media type. */
  readonly text?: string
  /** Instead of a body: long content, streamed with backpressure. */
  readonly stream?: { readonly type: string; readonly pieces: AsyncIterable<string> }
}

/** A response that was sent. */
export interface Answered {
  readonly method: string
  /** Pattern of the path; undefined: there is no such operation. */
  readonly route: string | undefined
  readonly status: number
  readonly ms: number
}

/** @param ask each cell in turn, with a query of the operation */
export type MergeCells = (ask: readonly ((query: unknown) => Promise<Answer>)[], query: unknown) => Promise<Answer>

/** Part of a call that is known before its body is read. */
type CallHead<Params, Kind extends CallerKind> = Pick<
  Call<Params, unknown, unknown, Kind>,
  'params' | 'principal' | 'instanceHeader'
>

interface Declared<Params, Query, Body, Kind extends CallerKind, Version extends string> {
  /** The `operationId`, unique in its API. */
  readonly id: string
  readonly tag: string
  readonly summary: string
  readonly description?: string
  readonly method: Method
  /** `:instanceId` must be an instance of the caller, and `:deviceId` the calling device. */
  readonly path: string
  /** Callers that are permitted; all others are refused before the body is read. */
  readonly principals: readonly Kind[]
  /** Role that an administrator needs. Default of GET: any. */
  readonly role?: Role
  /**
   * Decides on access: the results are counted, and plain requests take the fast path. This path calls no `enter`, has the
   * server's own limit of bodies, and sends JSON only.
   */
  readonly decides?: true
  /** Concerns only the caller itself, so limits to instances do not apply. */
  readonly concernsCaller?: true
  /** Effect of the header idempotency-key; absent: not supported. */
  readonly idempotent?: string
  /** Also accepts the token as the password of HTTP Basic authentication, with any user name. */
  readonly basic?: boolean
  /** Supports If-None-Match. */
  readonly conditional?: boolean
  /** Concerns the rules of an instance: see `rulesOperation`. */
  readonly ofRules?: boolean
  /** The body can be compressed. */
  readonly gzip?: boolean
  readonly params?: z.ZodType<Params>
  readonly query?: z.ZodType<Query>
  readonly body?: ByVersion<z.ZodType<Body>, Version>
  /** Documented form of a body that `handle` validates itself. */
  readonly bodyForm?: ByVersion<z.ZodType, Version>
  /** Maximum body after decompression, bytes. Default: that of the server. */
  readonly bodyMax?: number
  readonly example?: unknown
  readonly answers: ByVersion<Answers, Version>
  /** In addition to the codes of every operation. */
  readonly errors?: readonly ErrorCode[]
  /** Called for a permitted caller before the body is read. @throws CodedError */
  readonly enter?: (principal: CallerOf<Kind>, response: ServerResponse) => void
  /** The header x-instance-id limits the request to that instance. */
  readonly limitedByHeader?: true
  /** Access that depends on more than the path, checked before the body is read. @throws CodedError */
  readonly requireAccess?: (head: CallHead<Params, Kind>) => Promise<void>
  /**
   * Which cell answers a request that names no instance, device or session. `CONTROL`: the control cell, which has what it
   * concerns for all cells. `ANY`: each cell can. A function merges the answers of all cells. Absent: the caller names it.
   */
  readonly cells?: 'CONTROL' | 'ANY' | MergeCells
  /** Where a request names the account of the instances that it concerns. */
  readonly account?: { readonly part: 'query' | 'body'; readonly path: readonly string[] }
  readonly handle: (call: Call<Params, Query, Body, Kind, Version>) => Promise<Answer>
}

/** An operation with erased types. */
export interface Operation extends Declared<unknown, unknown, unknown, CallerKind, string> {
  readonly versions: readonly string[]
  readonly areas: ByVersion<readonly Area[]>
  readonly query: z.ZodType
  readonly errors: readonly ErrorCode[]
  /** Reads the header x-instance-id, which must match the instance in the path. */
  readonly readsInstanceHeader: boolean
  /** Responses have the headers date (of this cloud's clock) and, for accepted keys, the software version. */
  readonly sendsTimeAndVersion: boolean
  /** Also served without the path prefix of the cloud. */
  readonly atRoot: boolean
}

const ANY_QUERY = z.looseObject({})

/** An operation of the service API; all versions unless it names some. */
export function serviceOperation<
  Params = unknown,
  Query = unknown,
  Body = unknown,
  Kind extends CallerKind = CallerKind,
>(
  declared: Declared<Params, Query, Body, Kind, ApiVersion> & {
    readonly areas: ByVersion<readonly Area[], ApiVersion>
    readonly versions?: readonly ApiVersion[]
  },
): Operation {
  return {
    versions: API_VERSIONS,
    query: ANY_QUERY,
    readsInstanceHeader: true,
    sendsTimeAndVersion: false,
    atRoot: false,
    ...declared,
    errors: ['INSTANCE_NOT_IN_TOKEN', ...(declared.errors ?? [])],
  } as unknown as Operation
}

/** An operation of the edge API, for devices and their administrators. */
export function edgeOperation<Params = unknown, Query = unknown, Body = unknown, Kind extends CallerKind = CallerKind>(
  declared: Declared<Params, Query, Body, Kind, EdgeVersion>,
): Operation {
  return {
    versions: ['v1'] satisfies readonly EdgeVersion[],
    areas: ['edge/api'] satisfies readonly Area[],
    query: ANY_QUERY,
    bodyMax: EDGE_BODY_BYTES_MAX,
    errors: [],
    readsInstanceHeader: false,
    // A device with a wrong clock reads the time from the refusal of its token.
    sendsTimeAndVersion: true,
    atRoot: false,
    ...declared,
  } as unknown as Operation
}

/** An operation for programs that read usage. The original service serves it beside the service API, not below it. */
export function dataOperation<Query = unknown>(
  declared: Declared<unknown, Query, unknown, 'ADMINISTRATOR', DataVersion>,
): Operation {
  return {
    versions: ['v1'] satisfies readonly DataVersion[],
    areas: ['data/api'] satisfies readonly Area[],
    query: ANY_QUERY,
    errors: [],
    readsInstanceHeader: false,
    sendsTimeAndVersion: false,
    atRoot: true,
    ...declared,
  } as unknown as Operation
}

/** Null: administrators cannot call it. @throws Error if an operation that changes something declares none */
export function roleOf({ id, method, principals, role }: Operation): Role | null {
  if (!principals.includes('ADMINISTRATOR')) return null
  if (role === undefined && method !== 'GET') throw new Error(`invariant: ${id} declares the role of administrators`)
  return role ?? 'read'
}

/** Paths of an operation below the prefix; the first is its main one. */
export function addressesOf({ areas, path }: Operation, version: string): readonly string[] {
  return at(version, areas).map((area) => `/${area}/${version}${path}`)
}

export const instanceId = uuidInLowerCase

export const inInstance = z.object({ instanceId })

export const inDevice = z.object({ deviceId: uuidInLowerCase })

export const inSession = z.object({ sessionId: uuidInLowerCase })

export function at<T>(version: string, value: ByVersion<T>): T {
  return typeof value === 'function' ? (value as (version: string) => T)(version) : value
}
