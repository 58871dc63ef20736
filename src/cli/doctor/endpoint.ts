/** Probes an address from this machine: name, port and certificate. */
import { lookup } from 'node:dns/promises'
import { connect as connectPlain, isIP } from 'node:net'
import { type PeerCertificate, type TLSSocket, connect as connectTls, getCACertificates } from 'node:tls'
import type { EndpointObservation, Problem } from './observations.ts'
import { messageOf } from '../../protocol/errors.ts'

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

/** Never rejects. @param extraCa PEM certificates to trust besides those of the system */
export async function lookAtEndpoint(address: string, extraCa: string | null): Promise<EndpointObservation> {
  const { protocol, hostname, port: given, origin } = new URL(address)
  const host = hostname.replace(/^\[(.*)\]$/, '$1')
  const port = given === '' ? (DEFAULT_PORTS[protocol] ?? 443) : Number(given)
  const secure = SECURE.has(protocol)
  const url = origin === 'null' ? `${protocol}//${hostname}:${port}` : origin
  const about = { url, host, port, secure }
  const addresses = await addressesOf(host)
  if (!Array.isArray(addresses)) {
    return {
      ...about,
      addresses,
      connected: { code: 'NO_ADDRESS', message: 'the host has no address' },
      certificate: null,
    }
  }
  return { ...about, addresses: addresses as readonly string[], ...(await connect(host, port, secure, extraCa)) }
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

function connect(
  host: string,
  port: number,
  secure: boolean,
  extraCa: string | null,
): Promise<Pick<EndpointObservation, 'connected' | 'certificate'>> {
  const begun = performance.now()
  return new Promise((resolve) => {
    const ca = extraCa === null ? {} : { ca: [...getCACertificates('default'), extraCa] }
    // The certificate is only examined and reported; no data is sent over this connection.
    const trust = { ...ca, rejectUnauthorized: false }
    const servername = isIP(host) === 0 ? { servername: host } : {}
    const tls = secure ? connectTls({ host, port, ...servername, ...trust }) : null
    const socket = tls ?? connectPlain({ host, port })
    const end = (connected: number | Problem, certificate: EndpointObservation['certificate']): void => {
      socket.destroy()
      resolve({ connected, certificate })
    }
    socket.setTimeout(PATIENCE_MS, () =>
      end({ code: 'ETIMEDOUT', message: `no response within ${PATIENCE_MS} ms` }, null),
    )
    socket.on('error', (error: NodeJS.ErrnoException) => {
      const { code = 'UNKNOWN', message } = error
      end({ code, message: code === 'ECONNREFUSED' ? 'connection refused' : message }, null)
    })
    socket.on(secure ? 'secureConnect' : 'connect', () => {
      const took = Math.round(performance.now() - begun)
      end(took, tls === null ? null : certificateOf(tls))
    })
  })
}

function certificateOf(socket: TLSSocket): EndpointObservation['certificate'] {
  const shown: Partial<PeerCertificate> = socket.getPeerCertificate()
  const error: unknown = socket.authorizationError
  const validTo = Date.parse(shown.valid_to ?? '')
  return {
    distrust: socket.authorized ? null : messageOf(error),
    subject: nameOf(shown.subject),
    issuer: nameOf(shown.issuer),
    validTo: Number.isNaN(validTo) ? null : validTo,
  }
}

function nameOf(name: { readonly CN?: string | string[]; readonly O?: string | string[] } | undefined): string {
  return [name?.CN ?? name?.O ?? 'unnamed'].flat().join(', ')
}
