/** Broker connection failures. Informative only: both sides continue without change notifications. */
import { CodedError, type ErrorCode } from './errors.ts'

/** MQTT 3.1.1, then 5: identity, user name, password, permissions. */
const REFUSALS: ReadonlySet<unknown> = new Set([2, 4, 5, 0x85, 0x86, 0x87, 0x8a, 0x8c])

/** Error codes of OpenSSL and Node for untrusted certificates. */
const CERTIFICATE: ReadonlySet<unknown> = new Set([
  'CERT_CHAIN_TOO_LONG',
  'CERT_HAS_EXPIRED',
  'CERT_NOT_YET_VALID',
  'CERT_REJECTED',
  'CERT_REVOKED',
  'CERT_SIGNATURE_FAILURE',
  'CERT_UNTRUSTED',
  'DEPTH_ZERO_SELF_SIGNED_CERT',
  'ERR_TLS_CERT_ALTNAME_INVALID',
  'HOSTNAME_MISMATCH',
  'INVALID_CA',
  'INVALID_PURPOSE',
  'PATH_LENGTH_EXCEEDED',
  'SELF_SIGNED_CERT_IN_CHAIN',
  'UNABLE_TO_GET_ISSUER_CERT',
  'UNABLE_TO_GET_ISSUER_CERT_LOCALLY',
  'UNABLE_TO_VERIFY_LEAF_SIGNATURE',
])

/** @param url of the broker; credentials in it are not repeated */
export function brokerFailure(url: string, cause: unknown): CodedError {
  const { code, message } = cause as { readonly code?: unknown; readonly message?: unknown }
  const reason = typeof message === 'string' && message !== '' ? message : String(code)
  const broker = placeOf(url)
  const failure = (found: ErrorCode, text: string): CodedError =>
    new CodedError(found, `${text}: ${reason}.`, { details: { broker, reason }, cause })
  if (REFUSALS.has(code)) return failure('BROKER_REFUSED', `The broker ${broker} refused the connection`)
  if (CERTIFICATE.has(code)) return failure('BROKER_NOT_TRUSTED', `The certificate of ${broker} is not trusted`)
  return failure('BROKER_UNREACHABLE', `The broker ${broker} cannot be reached`)
}

/** The broker accepted the connection but denied these topics. */
export function topicsRefused(url: string, topics: readonly string[]): CodedError {
  const details = { broker: placeOf(url), topics }
  return new CodedError('BROKER_REFUSED', `The broker ${details.broker} denies the topics ${topics.join(', ')}.`, {
    details,
  })
}

function placeOf(url: string): string {
  if (!URL.canParse(url)) return url
  const { protocol, host } = new URL(url)
  return `${protocol}//${host}`
}
