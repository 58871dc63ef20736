/**
 * The addresses that the socket answers to. Access requests have those of the service itself, with and without its
 * prefixes, so that an application changes nothing but its base address.
 */
import { AGENT_STATUS_PATH } from '../../../protocol/local/status.ts'
import type { ApiVersion } from '../../../protocol/service/status.ts'

export type Route =
  | { readonly to: 'access'; readonly apiVersion: ApiVersion; readonly instanceId: string }
  | { readonly to: 'status' }
  | { readonly to: 'live' }
  | { readonly to: 'nowhere' }
  /** The address of an access request with something in it that is no UUID. */
  | { readonly to: 'malformed' }

const ACCESS =
  /^(?:(?:\/dynamicmonetization)?\/elastic\/api)?\/(v1\.[01])\/instances\/([^/?]+)\/access-request\/?(?:\?.*)?$/
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i

const STATUS: Route = { to: 'status' }
const LIVE: Route = { to: 'live' }
const NOWHERE: Route = { to: 'nowhere' }
const MALFORMED: Route = { to: 'malformed' }

export function route(method: string, url: string): Route {
  if (method === 'POST') {
    const match = ACCESS.exec(url)
    if (match === null) return NOWHERE
    const [, apiVersion, instanceId = ''] = match
    if (!UUID.test(instanceId)) return MALFORMED
    return { to: 'access', apiVersion: apiVersion as ApiVersion, instanceId: instanceId.toLowerCase() }
  }
  if (method !== 'GET' && method !== 'HEAD') return NOWHERE
  const path = url.split('?', 1)[0]
  if (path === AGENT_STATUS_PATH) return STATUS
  return path === '/livez' ? LIVE : NOWHERE
}
