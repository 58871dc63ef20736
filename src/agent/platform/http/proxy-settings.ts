import type { ProxyVariables } from '../../../platform/outgoing.ts'
import type { AgentSettings } from '../../settings.ts'

/** The settings take precedence over the variables of the environment. */
export function proxyOf({ url, credentials, bypass }: AgentSettings['proxy'], env: ProxyVariables): ProxyVariables {
  const around = bypass === null ? {} : { no_proxy: bypass }
  if (url === null) return { ...env, ...around }
  const proxy = new URL(url)
  const [, user, password] = /^([^:]*):?(.*)$/s.exec(credentials?.reveal() ?? '') ?? []
  if (user) Object.assign(proxy, { username: encodeURIComponent(user), password: encodeURIComponent(password ?? '') })
  return { ...env, https_proxy: proxy.href, http_proxy: proxy.href, ...around }
}
