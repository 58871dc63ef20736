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

/** The broker ended the connection before it was usable, and sent no reason. */
export function brokerClosed(url: string): CodedError {
  const advice = /^(mqtt|ws):/.test(url)
    ? `; the port may be one for TLS, as in ${placeOf(url).replace(':', 's:')}`
    : ''
  return brokerFailure(url, new Error(`the broker closed the connection without a reason${advice}`))
}

/** MQTT 3.1.1, then 5. */
const VERSION_REFUSALS: ReadonlySet<unknown> = new Set([0x01, 0x84])

/** Whether the broker does not know the version of the protocol. */
export function refusesVersion(error: unknown): boolean {
  return VERSION_REFUSALS.has((error as { readonly code?: unknown }).code)
}

/** Response codes from here on are refusals. */
const REFUSED = 0x80

/** Whether the broker refuses a message. Only MQTT 5 reports it. */
export function refusesMessage(error: unknown): boolean {
  const { code } = error as { readonly code?: unknown }
  return typeof code === 'number' && code >= REFUSED
}

/** @param granted response to the subscription of the topics */
export function refusedTopics(topics: readonly string[], granted: readonly unknown[]): readonly string[] {
  return topics.filter((_topic, index) => Number(granted[index] ?? REFUSED) >= REFUSED)
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
