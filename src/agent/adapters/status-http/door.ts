/**
 * Who may read the status of a device over the network. On loopback, programs of the device; beyond it, only over TLS and
 * only who knows the token or holds a certificate of the right authority. Requests that a web page of somebody else makes a browser
 * send are told by the name in their Host.
 */
import { createHash, timingSafeEqual } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import { BlockList, isIP } from 'node:net'
import { CodedError } from '../../../protocol/errors.ts'

export interface DoorOptions {
  readonly host: string
  /** PEM; null: plain HTTP. */
  readonly tls: { readonly certificate: string; readonly key: string; readonly clientCa: string | null } | null
  readonly token: string | null
}

const LOOPBACK = new BlockList()
LOOPBACK.addSubnet('127.0.0.0', 8, 'ipv4')
LOOPBACK.addAddress('::1', 'ipv6')

/** @throws CodedError CONFIG_INVALID when anybody in the network could read */
export function requireSafe({ host, tls, token }: DoorOptions): void {
  if (isLoopback(host)) return
  if (tls === null) {
    throw new CodedError(
      'CONFIG_INVALID',
      `status.host is ${host}, which others can reach: status.certificate_file and status.key_file must be set.`,
    )
  }
  if (token === null && tls.clientCa === null) {
    throw new CodedError(
      'CONFIG_INVALID',
      `status.host is ${host}, which others can reach: status.token_file or status.client_ca_file must be set.`,
    )
  }
}

/**
 * @param certified the client has shown a certificate of `clientCa`
 * @throws CodedError TOKEN_MISSING, TOKEN_INVALID, BAD_REQUEST
 */
export function requireReader(
  { host, token, tls }: DoorOptions,
  headers: IncomingHttpHeaders,
  certified: boolean,
): void {
  if (isLoopback(host) && !isLoopback(nameIn(headers.host))) {
    throw new CodedError('BAD_REQUEST', 'The header Host names another machine than this one.')
  }
  if (certified && tls !== null && tls.clientCa !== null) return
  if (token === null) return
  const given = tokenIn(headers.authorization)
  if (given === null) throw new CodedError('TOKEN_MISSING', 'The status of this device needs its token.')
  if (!timingSafeEqual(digest(given), digest(token))) {
    throw new CodedError('TOKEN_INVALID', 'This is not the token for the status of this device.')
  }
}

/** As a bearer token, or as the password that a browser asks for, with any user name. */
function tokenIn(authorization = ''): string | null {
  const [, scheme = '', value = ''] = /^(\S+) +(\S+)$/.exec(authorization) ?? []
  if (scheme.toLowerCase() === 'bearer') return value
  if (scheme.toLowerCase() !== 'basic') return null
  const pair = Buffer.from(value, 'base64').toString('utf8')
  const colon = pair.indexOf(':')
  return colon < 0 ? null : pair.slice(colon + 1)
}

function isLoopback(host: string): boolean {
  if (host === 'localhost') return true
  const family = isIP(host)
  return family !== 0 && LOOPBACK.check(host, family === 6 ? 'ipv6' : 'ipv4')
}

/** The name or address in a Host header, without port and brackets. */
function nameIn(host = ''): string {
  return host
    .replace(/:\d{1,5}$/, '')
    .replace(/^\[(.*)\]$/, '$1')
    .toLowerCase()
}

function digest(text: string): Buffer {
  return createHash('sha256').update(text).digest()
}
