/** The socket's paths. Access requests use the service's own paths, so applications change only their base URL. */
import { AGENT_DECISIONS_PATH } from '../../../protocol/local/decision.ts'
import { AGENT_LOG_PATH } from '../../../protocol/local/log.ts'
import { AGENT_ROTATE_KEY_PATH } from '../../../protocol/local/rotate-key.ts'
import { AGENT_STATUS_PATH } from '../../../protocol/local/status.ts'
import type { ApiVersion } from '../../../protocol/service/status.ts'

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
  | { readonly to: 'log' }
  | { readonly to: 'rotate-key' }
  /** The id is in lower case. */
  | { readonly to: 'decision'; readonly correlationId: string }
  | { readonly to: 'live' }
  | { readonly to: 'nowhere' }
  /** A path of an access request or session whose id is not a UUID. */
  | { readonly to: 'malformed' }

const ACCESS =
  /^(?:(?:\/dynamicmonetization)?\/elastic\/api)?\/(v1\.[01])\/instances\/([^/?]+)\/access-request\/?(?:\?.*)?$/
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i

const SESSION =
  /^(?:(?:\/dynamicmonetization)?(?:\/floating)?\/api)?\/(v1\.[01])\/sessions(?:\/([^/?]+)(\/heartbeat)?)?\/?(?:\?.*)?$/

/** Origin in the absolute form that clients send to proxies. */
const ORIGIN = /^https?:\/\/[^/?#]*(?=\/)/i

const STATUS: Route = { to: 'status' }
const LOG: Route = { to: 'log' }
const ROTATE_KEY: Route = { to: 'rotate-key' }
const LIVE: Route = { to: 'live' }
const NOWHERE: Route = { to: 'nowhere' }
const MALFORMED: Route = { to: 'malformed' }

export function route(method: string, target: string): Route {
  const url = target.startsWith('/') ? target : target.replace(ORIGIN, '')
  const session = SESSION.exec(url)
  if (session !== null) return sessionRoute(method, session)
  if (method === 'POST') {
    const match = ACCESS.exec(url)
    if (match === null) return url === AGENT_ROTATE_KEY_PATH ? ROTATE_KEY : NOWHERE
    const [, apiVersion, instanceId = ''] = match
    if (!UUID.test(instanceId)) return MALFORMED
    return { to: 'access', apiVersion: apiVersion as ApiVersion, instanceId: instanceId.toLowerCase() }
  }
  if (method !== 'GET' && method !== 'HEAD') return NOWHERE
  const path = url.split('?', 1)[0]
  if (path === AGENT_STATUS_PATH) return STATUS
  if (path === AGENT_LOG_PATH) return LOG
  if (path?.startsWith(AGENT_DECISIONS_PATH) === true) {
    const correlationId = path.slice(AGENT_DECISIONS_PATH.length).toLowerCase()
    return UUID.test(correlationId) ? { to: 'decision', correlationId } : MALFORMED
  }
  return path === '/livez' ? LIVE : NOWHERE
}

/** The service's session operations, by method and path kind. */
const SESSION_OPERATIONS: Readonly<Record<string, Extract<Route, { to: 'session' }>['operation']>> = {
  'POST sessions': 'open',
  'GET sessions': 'list',
  'GET session': 'show',
  'PUT session': 'request',
  'DELETE session': 'close',
  'GET heartbeat': 'heartbeat',
}

function sessionRoute(method: string, [, apiVersion, sessionId, heartbeat]: RegExpExecArray): Route {
  const what = heartbeat !== undefined ? 'heartbeat' : sessionId === undefined ? 'sessions' : 'session'
  const operation = SESSION_OPERATIONS[`${method} ${what}`]
  if (operation === undefined) return NOWHERE
  if (sessionId !== undefined && !UUID.test(sessionId)) return MALFORMED
  return {
    to: 'session',
    apiVersion: apiVersion as ApiVersion,
    operation,
    sessionId: sessionId?.toLowerCase() ?? '',
  }
}
