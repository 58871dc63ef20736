/** Outgoing connections: the authorities that TLS trusts, and the proxy that leads to an address. */
import * as http from 'node:http'
import { type AgentOptions, type ClientRequest, Agent as PlainAgent } from 'node:http'
import { Agent as TlsAgent } from 'node:https'
import { BlockList, isIP } from 'node:net'
import { createSecureContext, getCACertificates, setDefaultCACertificates } from 'node:tls'
import { CodedError } from '../protocol/errors.ts'
import { hostOf } from './host-of.ts'
import { contains, isLoopback } from './is-loopback.ts'

/** Variables such as HTTPS_PROXY, HTTP_PROXY and NO_PROXY, in either case. */
export type ProxyVariables = Readonly<Record<string, string | undefined>>

export interface Outgoing {
  readonly proxy: ProxyVariables
  /** PEM of authorities that are trusted besides those of the system; null: none. */
  readonly extraCa: string | null
}

/** PEM of the system's authorities, or else Node's, of NODE_EXTRA_CA_CERTS, and `extra`. */
export function authorities(extra: string | null): string[] {
  const system = getCACertificates('system')
  const known = system.length > 0 ? system : getCACertificates('bundled')
  return [...new Set([...known, ...getCACertificates('extra')]), ...(extra === null ? [] : [extra])]
}

let trustsSystem = false

/** For all connections of this process that name no authorities: Node would trust its own ones only. */
export function trustSystem(): void {
  if (trustsSystem) return
  trustsSystem = true
  setDefaultCACertificates(authorities(null))
}

/** How the global `fetch` reaches the addresses for which it was prepared. */
const proxies: { http_proxy?: string; https_proxy?: string } = {}
const direct = new Set<string>()

/**
 * Lets the global `fetch` of this process reach an address: sets its authorities and its proxy.
 *
 * @throws CodedError CONFIG_INVALID for a proxy that cannot be used
 */
export function prepareFetch(address: string, variables: ProxyVariables): void {
  if (isSecure(address)) trustSystem()
  const proxy = proxyFor(address, variables)
  if (proxy === null) direct.add(hostOf(new URL(address)))
  else proxies[isSecure(address) ? 'https_proxy' : 'http_proxy'] = proxy.href
  if (Object.keys(proxies).length === 0) return
  // Node 24 may lack it.
  const { setGlobalProxyFromEnv } = http as Partial<Pick<typeof http, 'setGlobalProxyFromEnv'>>
  if (setGlobalProxyFromEnv === undefined) {
    throw new CodedError(
      'CONFIG_INVALID',
      `Node ${process.versions.node} cannot reach ${address} through a proxy. Use Node 26.`,
    )
  }
  setGlobalProxyFromEnv({ ...proxies, no_proxy: [variableOf('NO_PROXY', variables), ...direct].join(',') })
}

/**
 * Agent for requests to an address, over its proxy if there is one.
 *
 * @throws CodedError CONFIG_INVALID for a proxy that cannot be used
 */
export function openAgent(address: string, pool: AgentOptions, { proxy, extraCa }: Outgoing): PlainAgent {
  const found = proxyFor(address, proxy)
  const options = {
    ...pool,
    ...(found === null ? {} : { proxyEnv: { http_proxy: found.href, https_proxy: found.href } }),
  }
  if (!isSecure(address)) return new PlainAgent(options)
  // One context for all connections: it takes time to read the certificates.
  return new TlsAgent({ ...options, secureContext: createSecureContext({ ca: authorities(extraCa) }) })
}

/** Without this, a request whose response switches protocols has neither a response nor an error, and no time limit. */
export function onSwitch(request: ClientRequest, reject: (problem: Error) => void): void {
  request.on('upgrade', (_response, socket) => {
    socket.destroy()
    reject(Object.assign(new Error('the server switches to another protocol'), { code: 'HPE_PAUSED_UPGRADE' }))
  })
}

/**
 * The proxy for an address (http, https, ws, wss), with its credentials; null: the connection is direct.
 *
 * @throws CodedError CONFIG_INVALID
 */
export function proxyFor(address: string, variables: ProxyVariables): URL | null {
  const url = new URL(address)
  const { protocol, port } = url
  if (!/^(https?|wss?):$/.test(protocol)) return null
  const name = isSecure(address) ? 'HTTPS_PROXY' : 'HTTP_PROXY'
  const given = variableOf(name, variables)
  const host = hostOf(url).replace(/\.$/, '')
  const portOrDefault = port === '' ? (isSecure(address) ? '443' : '80') : port
  if (given === '' || isDirect(host, portOrDefault, variableOf('NO_PROXY', variables))) return null
  const proxy = given.includes('://') ? given : `http://${given}`
  if (URL.canParse(proxy) && /^https?:$/.test(new URL(proxy).protocol)) return new URL(proxy)
  throw new CodedError('CONFIG_INVALID', `The proxy in ${name} is not an address such as http://proxy.example:3128.`)
}

function isSecure(address: string): boolean {
  return /^(https|wss):/.test(address)
}

function variableOf(name: string, variables: ProxyVariables): string {
  const given = [variables[name.toLowerCase()], variables[name]].map((value) => value?.trim() ?? '')
  return given.find((value) => value !== '') ?? ''
}

/** @param list of host names (subdomains included), addresses, networks such as 10.0.0.0/8, each with `:port` if wanted; or `*` */
function isDirect(host: string, port: string, list: string): boolean {
  if (isLoopback(host)) return true
  return list.split(/[\s,]+/).some((entry) => {
    const { name = entry, only } = /^(?<name>[^:]+|\[.+\]):(?<only>\d+)$/.exec(entry)?.groups ?? {}
    if (only !== undefined && only !== port) return false
    const bare = name.toLowerCase().replace(/^\*?\.|^\[|\]$/g, '')
    if (bare === '') return false
    return bare === '*' || bare === host || host.endsWith(`.${bare}`) || contains(networkOf(bare), host)
  })
}

function networkOf(text: string): BlockList {
  const network = new BlockList()
  const { address = '', bits = '' } = /^(?<address>[^/]+)\/(?<bits>\d{1,3})$/.exec(text)?.groups ?? {}
  const kind = isIP(address)
  if (kind !== 0 && Number(bits) <= (kind === 4 ? 32 : 128))
    network.addSubnet(address, Number(bits), `ipv${kind}` as 'ipv4')
  return network
}

/** Why a proxy does not lead to an address; null: the error has another cause. */
export function proxyRefusal(cause: unknown): string | null {
  const { code, statusCode } = cause as { readonly code?: unknown; readonly statusCode?: unknown }
  if (code !== 'ERR_PROXY_TUNNEL') return null
  if (statusCode === 407) return 'the proxy requires a user name and password (407)'
  if (typeof statusCode === 'number') return `the proxy refuses the connection (${statusCode})`
  return 'the proxy does not complete the connection'
}
