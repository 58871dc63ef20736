/**
 * On loopback, any local program may read. Beyond it, TLS is required, plus the token or a client certificate. The Host
 * header shows requests that a foreign web page triggers.
 */
import { createHash, timingSafeEqual } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import { isLoopback, isLoopbackName } from '../../../platform/is-loopback.ts'
import type { Certificate } from '../../../platform/read-certificate.ts'
import { CodedError } from '../../../protocol/errors.ts'

export interface StatusAuthOptions {
  readonly host: string
  /** PEM; null: plain HTTP. */
  readonly tls: (Certificate & { readonly clientCa: string | null }) | null
  readonly token: string | null
}

/** @throws CodedError CONFIG_INVALID when the network could read the status without authentication */
export function requireSafe({ host, tls, token }: StatusAuthOptions): void {
  if (isLoopback(host)) return
  if (tls === null) {
    throw new CodedError(
      'CONFIG_INVALID',
      `status.host is ${host}, which other machines can reach. Set status.certificate_file and status.key_file.`,
    )
  }
  if (token === null && tls.clientCa === null) {
    throw new CodedError(
      'CONFIG_INVALID',
      `status.host is ${host}, which other machines can reach. Set status.token_file or status.client_ca_file.`,
    )
  }
}

/** @param certified by `clientCa`. @throws CodedError TOKEN_MISSING, TOKEN_INVALID, BAD_REQUEST */
export function requireReader(
  { host, token, tls }: StatusAuthOptions,
  headers: IncomingHttpHeaders,
  certified: boolean,
): void {
  if (isLoopback(host) && !isLoopbackName(headers.host)) {
    throw new CodedError('BAD_REQUEST', 'The Host header does not name this machine.')
  }
  if (certified && tls !== null && tls.clientCa !== null) return
  if (token === null) return
  const given = tokenIn(headers.authorization)
  if (given === null)
    throw new CodedError(
      'TOKEN_MISSING',
      'The status of this device requires a token. Send the token in status.token_file as a bearer token or password.',
    )
  if (!timingSafeEqual(digest(given), digest(token))) {
    throw new CodedError('TOKEN_INVALID', 'The token is wrong. Use the token in status.token_file.')
  }
}

/** From a bearer token, or the password of basic authentication with any user name. */
function tokenIn(authorization = ''): string | null {
  const [, scheme = '', value = ''] = /^(\S+) +(\S+)$/.exec(authorization) ?? []
  if (scheme.toLowerCase() === 'bearer') return value
  if (scheme.toLowerCase() !== 'basic') return null
  const pair = Buffer.from(value, 'base64').toString('utf8')
  const colon = pair.indexOf(':')
  return colon < 0 ? null : pair.slice(colon + 1)
}

function digest(text: string): Buffer {
  return createHash('sha256').update(text).digest()
}
