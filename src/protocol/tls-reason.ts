/** Why TLS failed, as the end of a sentence without a period. Messages of OpenSSL name its functions and files. */

const UNKNOWN_AUTHORITY = 'this machine does not know the authority of its certificate'

/** Of certificates that are not trusted. */
const CERTIFICATE: Readonly<Record<string, string>> = {
  CERT_HAS_EXPIRED: 'its certificate has expired',
  CERT_NOT_YET_VALID: 'its certificate is not valid yet',
  CERT_REVOKED: 'its certificate was revoked',
  ERR_TLS_CERT_ALTNAME_INVALID: 'its certificate is for another host name',
  HOSTNAME_MISMATCH: 'its certificate is for another host name',
  CERT_UNTRUSTED: UNKNOWN_AUTHORITY,
  DEPTH_ZERO_SELF_SIGNED_CERT: UNKNOWN_AUTHORITY,
  SELF_SIGNED_CERT_IN_CHAIN: UNKNOWN_AUTHORITY,
  UNABLE_TO_GET_ISSUER_CERT: UNKNOWN_AUTHORITY,
  UNABLE_TO_GET_ISSUER_CERT_LOCALLY: UNKNOWN_AUTHORITY,
  UNABLE_TO_VERIFY_LEAF_SIGNATURE: UNKNOWN_AUTHORITY,
  CERT_CHAIN_TOO_LONG: 'the chain of its certificate is too long',
  CERT_REJECTED: 'its certificate is rejected',
  CERT_SIGNATURE_FAILURE: 'the signature of its certificate is wrong',
  INVALID_CA: 'the authority of its certificate is not one',
  INVALID_PURPOSE: 'its certificate is not for a server',
  PATH_LENGTH_EXCEEDED: 'the chain of its certificate is too long',
}

const HANDSHAKE: readonly (readonly [RegExp, string])[] = [
  [
    /wrong version number|packet length too long|record layer failure|not support SSL connections/i,
    'it does not use TLS on this port',
  ],
  [/before secure TLS connection/i, 'it closed the connection before TLS was set up: it may not use TLS on this port'],
  [/certificate[ _]required/i, 'it requires a certificate of the client'],
  [
    /handshake[ _]failure|bad[ _]certificate/i,
    'it refuses the TLS handshake: it may require a certificate of the client',
  ],
  [/alert[ _]protocol[ _]version|unsupported protocol/i, 'it uses another version of TLS'],
]

/** Null: the certificate is not the reason. */
export function certificateReason(error: unknown): string | null {
  const { code } = error as { readonly code?: unknown }
  return typeof code === 'string' && Object.hasOwn(CERTIFICATE, code) ? (CERTIFICATE[code] ?? null) : null
}

/** Null: TLS is not the reason. */
export function tlsReason(error: unknown): string | null {
  const certificate = certificateReason(error)
  if (certificate !== null || !(error instanceof Error)) return certificate
  const { code } = error as { readonly code?: unknown }
  const text = `${String(code)} ${error.message}`
  const known = HANDSHAKE.find(([pattern]) => pattern.test(text))?.[1]
  if (known !== undefined) return known
  return code === 'EPROTO' || String(code).startsWith('ERR_SSL_') ? `TLS failed (${String(code)})` : null
}
