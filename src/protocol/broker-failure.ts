/** Broker connection failures. Informative only: both sides continue without change notifications. */
import { CodedError, type ErrorCode } from './errors.ts'
import { certificateReason, tlsReason } from './tls-reason.ts'

/** MQTT 3.1.1, then 5: identity, user name, password, permissions. */
const REFUSALS: ReadonlySet<unknown> = new Set([2, 4, 5, 0x85, 0x86, 0x87, 0x8a, 0x8c])

/** @param url of the broker; credentials in it are not repeated */
export function brokerFailure(url: string, cause: unknown): CodedError {
  const { code, message } = cause as { readonly code?: unknown; readonly message?: unknown }
  const reason = tlsReason(cause) ?? (typeof message === 'string' && message !== '' ? message : String(code))
  const broker = placeOf(url)
  const failure = (found: ErrorCode, text: string): CodedError =>
    new CodedError(found, `${text}: ${reason}.`, { details: { broker, reason }, cause })
  if (REFUSALS.has(code)) return failure('BROKER_REFUSED', `The broker ${broker} refused the connection`)
  if (certificateReason(cause) !== null) return failure('BROKER_NOT_TRUSTED', `The broker ${broker} is not trusted`)
  return failure('BROKER_UNREACHABLE', `The broker ${broker} cannot be reached`)
}

/** The broker ended the connection before it was usable, and sent nothing that says why. */
export function brokerClosed(url: string): CodedError {
  const advice = /^(mqtt|ws):/.test(url)
    ? `; the port may be one for TLS, as in ${placeOf(url).replace(':', 's:')}`
    : ''
  return brokerFailure(url, new Error(`the broker closed the connection without a reason${advice}`))
}

/** The broker accepted the connection but denied these topics. */
export function topicsRefused(url: string, topics: readonly string[]): CodedError {
  const details = { broker: placeOf(url), topics }
  return new CodedError('BROKER_REFUSED', `The broker ${details.broker} denies the topics ${topics.join(', ')}.`, {
    details,
  })
}

/** Without credentials. */
export function placeOf(url: string): string {
  if (!URL.canParse(url)) return url
  const { protocol, host } = new URL(url)
  return `${protocol}//${host}`
}
