/** Parses the path, the idempotency key and the JSON body of a request. */
import { isUtf8 } from 'node:buffer'
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import { crc32 } from 'node:zlib'
import { CodedError, parseInput } from '../../../protocol/errors.ts'
import { AGENT_DECISIONS_PATH } from '../../../protocol/local/decision.ts'
import { AGENT_LOG_PATH } from '../../../protocol/local/log.ts'
import { LOCAL_HEADERS } from '../../../protocol/local/headers.ts'
import { AGENT_OFFERS_PATH } from '../../../protocol/local/offers.ts'
import { AGENT_ROTATE_KEY_PATH } from '../../../protocol/local/rotate-key.ts'
import { AGENT_STATUS_PATH } from '../../../protocol/local/status.ts'
import {
  PATH_SEGMENT_MAX,
  REFUSALS,
  noOperation,
  readJsonBody,
  withoutOrigin,
  wrongMethod,
} from '../../../protocol/service/refusals.ts'
import { idempotencyHeader, idempotencyKeyText } from '../../../protocol/wire.ts'
import { sha256 } from '../../../protocol/signing.ts'
import type { ApiVersion } from '../../../protocol/service/status.ts'
import { type IdempotencyKey, applicationSession } from '../../access/idempotency-cache.ts'

/** Access requests use the service's own paths, so applications change only their base URL. */
export type Route =
  | { readonly to: 'access'; readonly apiVersion: ApiVersion; readonly instanceId: string }
  | {
      readonly to: 'session'
      readonly apiVersion: ApiVersion
      readonly operation: 'open' | 'list' | 'show' | 'request' | 'heartbeat' | 'close'
      /** Lower case; empty for operations on no particular session. */
      readonly sessionId: string
    }
  | { readonly to: 'status' }
  | { readonly to: 'offers' }
  | { readonly to: 'log' }
  | { readonly to: 'rotate-key' }
  | { readonly to: 'decision'; readonly correlationId: string }
  | { readonly to: 'live' }
  /** An operation of the service that only the cloud offers. */
  | { readonly to: 'cloud' }
  | { readonly to: 'options'; readonly allowed: readonly string[] }
  | { readonly to: 'refusal'; readonly error: CodedError; readonly allowed?: readonly string[] }

const ACCESS = /^(?:(?:\/dynamicmonetization)?\/elastic\/api)?\/(v1\.[01])\/instances\/([^/]*)\/access-request$/
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i

const SESSION =
  /^(?:(?:\/dynamicmonetization)?(?:\/floating)?\/api)?\/(v1\.[01])\/sessions(?:\/([^/]*)(\/heartbeat)?)?$/

const OF_CLOUD =
  /^(?:\/dynamicmonetization)?\/(?:(?:floating|provisioning)\/)?api\/v1\.[01]\/(?:instances|rate-tables|configuration|administration-keys|client-keys|public-keys|usage)(?:\/|$)/

/** Each has one method; HEAD is read as GET. */
const OWN: ReadonlyMap<string, readonly [method: 'GET' | 'POST', route: Route]> = new Map([
  [AGENT_STATUS_PATH, ['GET', { to: 'status' }]],
  [AGENT_OFFERS_PATH, ['GET', { to: 'offers' }]],
  [AGENT_LOG_PATH, ['GET', { to: 'log' }]],
  [AGENT_ROTATE_KEY_PATH, ['POST', { to: 'rotate-key' }]],
  ['/livez', ['GET', { to: 'live' }]],
])

export function route(method: string, target: string): Route {
  const [raw = ''] = withoutOrigin(target).split(/[?#]/, 1)
  const path = decodedPath(raw)
  if (path === undefined) return refusal(REFUSALS.pathMalformed)
  const bare = path.endsWith('/') ? path.slice(0, -1) : path
  const access = ACCESS.exec(bare)
  if (access !== null) return accessRoute(method, access)
  const session = SESSION.exec(bare)
  if (session !== null) return sessionRoute(method, session)
  if (OF_CLOUD.test(path)) return { to: 'cloud' }
  return ownRoute(method, path) ?? { to: 'refusal', error: noOperation(method) }
}

/** Undefined if a percent is malformed. An encoded slash stays one, so that it does not separate segments. */
function decodedPath(path: string): string | undefined {
  if (!path.includes('%')) return path
  try {
    return path
      .split('/')
      .map((segment) => decodeURIComponent(segment).replaceAll('/', '%2F'))
      .join('/')
  } catch {
    return undefined
  }
}

function refusal(message: string): Route {
  return { to: 'refusal', error: new CodedError('BAD_REQUEST', message) }
}

function wrongMethodRoute(method: string, allowed: readonly string[]): Route {
  return method === 'OPTIONS' ? { to: 'options', allowed } : { to: 'refusal', error: wrongMethod(method), allowed }
}

/** Undefined if the id is a UUID. */
function idRefusal(name: string, id: string): Route | undefined {
  if (id.length > PATH_SEGMENT_MAX) return refusal(REFUSALS.segmentTooLong)
  return UUID.test(id) ? undefined : refusal(`path.${name}: must be a UUID`)
}

function accessRoute(method: string, [, apiVersion, instanceId = '']: RegExpExecArray): Route {
  if (method !== 'POST') {
    if (instanceId === '') return { to: 'refusal', error: noOperation(method) }
    return wrongMethodRoute(method, ['POST'])
  }
  return (
    idRefusal('instanceId', instanceId) ?? {
      to: 'access',
      apiVersion: apiVersion as ApiVersion,
      instanceId: instanceId.toLowerCase(),
    }
  )
}

function ownRoute(method: string, path: string): Route | undefined {
  const [only, own] = path.startsWith(AGENT_DECISIONS_PATH) ? (['GET', undefined] as const) : (OWN.get(path) ?? [])
  if (only === undefined) return undefined
  if (method !== only && !(method === 'HEAD' && only === 'GET')) {
    return wrongMethodRoute(method, only === 'GET' ? ['GET', 'HEAD'] : [only])
  }
  const correlationId = path.slice(AGENT_DECISIONS_PATH.length).toLowerCase()
  return own ?? idRefusal('correlationId', correlationId) ?? { to: 'decision', correlationId }
}

const SESSION_OPERATIONS: Readonly<
  Record<'sessions' | 'session' | 'heartbeat', Readonly<Record<string, Extract<Route, { to: 'session' }>['operation']>>>
> = {
  sessions: { GET: 'list', POST: 'open' },
  session: { DELETE: 'close', GET: 'show', PUT: 'request' },
  heartbeat: { GET: 'heartbeat' },
}

function sessionRoute(method: string, [, apiVersion, sessionId, heartbeat]: RegExpExecArray): Route {
  const operations =
    SESSION_OPERATIONS[heartbeat !== undefined ? 'heartbeat' : sessionId === undefined ? 'sessions' : 'session']
  const operation = Object.hasOwn(operations, method) ? operations[method] : undefined
  if (operation === undefined) {
    if (sessionId === '') return { to: 'refusal', error: noOperation(method) }
    return wrongMethodRoute(method, Object.keys(operations))
  }
  const target = { to: 'session', apiVersion: apiVersion as ApiVersion, operation } as const
  if (sessionId === undefined) return { ...target, sessionId: '' }
  return idRefusal('sessionId', sessionId) ?? { ...target, sessionId: sessionId.toLowerCase() }
}

export interface JsonBody {
  readonly text: string
  readonly value: unknown
  /** The same value comes again with the next equal body. Absent: it does not. */
  readonly isKept?: boolean
}

/** Calls back once with the body or a CodedError, unless the connection breaks first. */
export function readJson(
  request: IncomingMessage,
  bytesMax: number,
  done: (result: JsonBody | CodedError) => void,
): void {
  const refusal = headerRefusal(request.headers, bytesMax)
  if (refusal !== null) {
    done(refusal)
    return
  }
  let first: Buffer | undefined
  let rest: Buffer[] | undefined
  let length = 0
  let isDone = false
  request.on('data', (chunk: Buffer) => {
    if (isDone) return
    length += chunk.length
    if (length > bytesMax) {
      isDone = true
      done(tooLarge())
    } else if (first === undefined) first = chunk
    else (rest ??= [first]).push(chunk)
  })
  request.on('end', () => {
    if (isDone) return
    isDone = true
    done(parseBody(rest === undefined ? (first ?? EMPTY) : Buffer.concat(rest, length)))
  })
}

const EMPTY = Buffer.alloc(0)

/** Checks that need only the headers: MEDIA_TYPE_NOT_SUPPORTED or BODY_TOO_LARGE. */
function headerRefusal(
  headers: Pick<IncomingHttpHeaders, 'content-type' | 'content-encoding' | 'content-length' | 'transfer-encoding'>,
  bytesMax: number,
): CodedError | null {
  const { 'content-type': type, 'content-encoding': encoding, 'content-length': length = '0' } = headers
  if (encoding !== undefined && encoding.toLowerCase() !== 'identity') {
    return new CodedError('MEDIA_TYPE_NOT_SUPPORTED', REFUSALS.compressed)
  }
  const hasBody = Number(length) > 0 || headers['transfer-encoding'] !== undefined
  if (type === undefined ? hasBody : !isJsonType(type)) {
    return new CodedError('MEDIA_TYPE_NOT_SUPPORTED', REFUSALS.mediaType)
  }
  return Number(length) > bytesMax ? tooLarge() : null
}

/** Whatever the charset: the body must be UTF-8 anyway. */
function isJsonType(type: string): boolean {
  return type === 'application/json' || /^application\/json\s*(;|$)/i.test(type)
}

/** Returns BAD_JSON, or BAD_REQUEST for too deep nesting. */
export function parseBody(bytes: Buffer): JsonBody | CodedError {
  try {
    return readJsonBody(bytes)
  } catch (error) {
    if (error instanceof CodedError) return error
    throw error
  }
}

function tooLarge(): CodedError {
  return new CodedError('BODY_TOO_LARGE', REFUSALS.bodyTooLarge)
}

/** Bodies to cache. Longer ones rarely repeat. */
const BODIES_MAX = 256
const BODY_BYTES_MAX = 2_048

/** Checksums of bodies that came once. */
const SEEN_MAX = 1_024

/**
 * Parsed bodies by their bytes. Keeping bodies that never come again would cost more garbage collection than parsing
 * them. Callers share the cached objects, so they must not change them.
 */
export class KnownBodies {
  readonly #known = new Map<string, JsonBody>()
  readonly #seen = new Uint32Array(SEEN_MAX)

  parse(bytes: Buffer): JsonBody | CodedError {
    if (bytes.length > BODY_BYTES_MAX) return parseBody(bytes)
    const sum = crc32(bytes)
    if (this.#seen[sum % SEEN_MAX] !== sum) {
      this.#seen[sum % SEEN_MAX] = sum
      return parseBody(bytes)
    }
    // Invalid UTF-8: different bytes would have the same text.
    if (!isUtf8(bytes)) return parseBody(bytes)
    const text = bytes.toString('utf8')
    const known = this.#known.get(text)
    if (known !== undefined) return known
    const body = parseBody(bytes)
    if (!('text' in body)) return body
    if (this.#known.size >= BODIES_MAX) this.#known.clear()
    const kept = { ...body, isKept: true }
    this.#known.set(text, kept)
    return kept
  }
}

const REQUEST_NUMBER = /^[1-9]\d{0,14}$/

/** The service's own header: each key is an application session with one request. */
function ofKey(key: string | readonly string[], isNumbered: boolean, owner: string | null): IdempotencyKey {
  const text = parseInput(idempotencyKeyText, key, idempotencyHeader)
  if (isNumbered) {
    throw new CodedError(
      'BAD_REQUEST',
      `give either ${idempotencyHeader} or x-tallygate-session and x-tallygate-request`,
    )
  }
  return { session: applicationSession(owner, `${idempotencyHeader}:${sha256(text)}`), n: 1 }
}

/**
 * Keys are scoped to the caller, which is a user. A session name is a UUID, so that programs of one user cannot choose
 * the same one by accident. @param owner null when callers are not identified. @throws CodedError BAD_REQUEST
 */
export function idempotencyKeyOf(
  headers: Readonly<Record<string, string | readonly string[] | undefined>>,
  owner: string | null,
): IdempotencyKey | null {
  const { [LOCAL_HEADERS.session]: session, [LOCAL_HEADERS.request]: number, [idempotencyHeader]: key } = headers
  if (key !== undefined) return ofKey(key, session !== undefined || number !== undefined, owner)
  if (session === undefined && number === undefined) return null
  if (typeof session !== 'string' || !UUID.test(session)) {
    throw new CodedError(
      'BAD_REQUEST',
      'x-tallygate-session must be a UUID that the program made at its start, and x-tallygate-request must be sent with it',
    )
  }
  if (typeof number !== 'string' || !REQUEST_NUMBER.test(number)) {
    throw new CodedError(
      'BAD_REQUEST',
      'x-tallygate-request must be a whole number from 1, and x-tallygate-session must be sent with it',
    )
  }
  return { session: applicationSession(owner, session.toLowerCase()), n: Number(number) }
}
