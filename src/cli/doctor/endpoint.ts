/** Probes an address from this machine, over its proxy if it has one: name, port and certificate. */
import { lookup } from 'node:dns/promises'
import { request } from 'node:http'
import { request as overTls } from 'node:https'
import { type Socket, connect as connectPlain, isIP } from 'node:net'
import { type PeerCertificate, type TLSSocket, connect as connectTls } from 'node:tls'
import { type Outgoing, authorities, proxyFor, proxyRefusal } from '../../platform/outgoing.ts'
import { hostOf } from '../../platform/host-of.ts'
import type { EndpointObservation, Problem } from './observations.ts'
import { messageOf } from '../../protocol/errors.ts'
import { certificateReason, tlsReason } from '../../protocol/tls-reason.ts'

const PATIENCE_MS = 5_000

const DEFAULT_PORTS: Readonly<Record<string, number>> = {
  'https:': 443,
  'http:': 80,
  'mqtts:': 8883,
  'mqtt:': 1883,
  'wss:': 443,
  'ws:': 80,
}
const SECURE = new Set(['https:', 'mqtts:', 'wss:'])

/** Never rejects. */
export async function lookAtEndpoint(address: string, outgoing: Outgoing): Promise<EndpointObservation> {
  const parsed = new URL(address)
  const { protocol, hostname, port: given, origin } = parsed
  const host = hostOf(parsed)
  const port = given === '' ? (DEFAULT_PORTS[protocol] ?? 443) : Number(given)
  const secure = SECURE.has(protocol)
  const url = origin === 'null' ? `${protocol}//${hostname}:${port}` : origin
  const about = { url, host, port, secure, proxy: null }
  let proxy
  try {
    proxy = proxyFor(address, outgoing.proxy)
  } catch (error) {
    return { ...about, addresses: [], connected: { code: 'PROXY', message: messageOf(error) }, certificate: null }
  }
  const authority = hostname.includes(':') ? `${hostname}:${port}` : `${host}:${port}`
  if (proxy !== null) {
    const probed = await probe(() => tunnelTo(authority, proxy, outgoing), about, outgoing)
    return { ...about, proxy: proxy.host, addresses: [], ...probed }
  }
  const addresses = await addressesOf(host)
  if (!Array.isArray(addresses)) {
    const connected = { code: 'NO_ADDRESS', message: 'the host has no address' }
    return { ...about, addresses, connected, certificate: null }
  }
  const probed = await probe(() => settled(connectPlain({ host, port }), 'connect'), about, outgoing)
  return { ...about, addresses: addresses as readonly string[], ...probed }
}

async function addressesOf(host: string): Promise<readonly string[] | Problem> {
  if (isIP(host) !== 0) return [host]
  try {
    return (await lookup(host, { all: true })).map(({ address }) => address)
  } catch (error) {
    const { code = 'UNKNOWN' } = error as NodeJS.ErrnoException
    return { code, message: code === 'ENOTFOUND' ? 'host not found' : `name resolution failed (${code})` }
  }
}

async function probe(
  reach: () => Promise<Socket>,
  { host, secure }: Pick<EndpointObservation, 'host' | 'secure'>,
  { extraCa }: Outgoing,
): Promise<Pick<EndpointObservation, 'connected' | 'certificate'>> {
  const begun = performance.now()
  const sockets: Socket[] = []
  try {
    const socket = await reach()
    sockets.push(socket)
    const tls = secure ? await handshake(socket, host, extraCa) : null
    if (tls !== null) sockets.push(tls)
    return { connected: Math.round(performance.now() - begun), certificate: tls === null ? null : certificateOf(tls) }
  } catch (error) {
    const { code = 'UNKNOWN', message } = error as NodeJS.ErrnoException
    const reason = proxyRefusal(error) ?? tlsReason(error) ?? (code === 'ECONNREFUSED' ? 'connection refused' : message)
    return { connected: { code, message: reason }, certificate: null }
  } finally {
    // The outer one first: it uses the other.
    for (const socket of sockets.reverse()) socket.destroy()
  }
}

async function tunnelTo(authority: string, proxy: URL, { extraCa }: Outgoing): Promise<Socket> {
  const user = `${decodeURIComponent(proxy.username)}:${decodeURIComponent(proxy.password)}`
  const headers = {
    host: authority,
    ...(user === ':' ? {} : { 'proxy-authorization': `Basic ${Buffer.from(user).toString('base64')}` }),
  }
  const { protocol, port } = proxy
  const options = {
    hostname: hostOf(proxy),
    port: port === '' ? null : Number(port),
    method: 'CONNECT',
    path: authority,
    headers,
    agent: false as const,
    timeout: PATIENCE_MS,
  }
  return new Promise((resolve, reject) => {
    const sending = protocol === 'https:' ? overTls({ ...options, ca: authorities(extraCa) }) : request(options)
    sending.on('connect', ({ statusCode }, socket) => {
      if (statusCode === 200) resolve(socket)
      else reject(Object.assign(new Error('refused'), { code: 'ERR_PROXY_TUNNEL', statusCode }))
      if (statusCode !== 200) socket.destroy()
    })
    sending.on('timeout', () => sending.destroy(timedOut()))
    sending.on('error', reject)
    sending.end()
  })
}

async function handshake(socket: Socket, host: string, extraCa: string | null): Promise<TLSSocket> {
  const servername = isIP(host) === 0 ? { servername: host } : { host }
  // The certificate is only examined and reported; no data is sent over this connection.
  const tls = connectTls({ socket, ...servername, ca: authorities(extraCa), rejectUnauthorized: false })
  return settled(tls, 'secureConnect')
}

function settled<T extends Socket>(socket: T, event: 'connect' | 'secureConnect'): Promise<T> {
  return new Promise((resolve, reject) => {
    const fail = (error: Error): void => {
      socket.destroy()
      reject(error)
    }
    socket.setTimeout(PATIENCE_MS, () => fail(timedOut()))
    socket.on('error', fail)
    socket.on(event, () => resolve(socket))
  })
}

function timedOut(): Error {
  return Object.assign(new Error(`no response within ${PATIENCE_MS} ms`), { code: 'ETIMEDOUT' })
}

function certificateOf(socket: TLSSocket): EndpointObservation['certificate'] {
  const shown: Partial<PeerCertificate> = socket.getPeerCertificate()
  // A code, although its type is an error.
  const error: unknown = socket.authorizationError
  const validTo = Date.parse(shown.valid_to ?? '')
  return {
    distrust: socket.authorized ? null : (certificateReason({ code: error }) ?? messageOf(error)),
    subject: nameOf(shown.subject),
    issuer: nameOf(shown.issuer),
    validTo: Number.isNaN(validTo) ? null : validTo,
  }
}

function nameOf(name: { readonly CN?: string | string[]; readonly O?: string | string[] } | undefined): string {
  return [name?.CN ?? name?.O ?? 'unnamed'].flat().join(', ')
}
