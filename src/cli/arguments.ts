import { InvalidArgumentError } from 'commander'
import { parseLabel } from '../protocol/edge/labels.ts'
import { CodedError, type ErrorCode } from '../protocol/errors.ts'
import { isNotUtf8, shownPath, systemFailure, unreadableReason } from '../protocol/file-reasons.ts'
import { digitsProblem, tokenDigitsProblem, typedNumber } from '../protocol/typed-number.ts'
import { API_PREFIX, cellName, uuid } from '../protocol/wire.ts'
import { DURATION } from '../settings/quantity.ts'
import { hasCertificate } from '../platform/has-certificate.ts'
import type { Io } from './io.ts'

function durationArgument(text: string): number {
  const ms = DURATION.parse(text)
  if (ms === undefined || ms === 0) throw new InvalidArgumentError('Use a duration such as 30s, 5m or 24h.')
  return ms
}

export function durationBetween(min: string, max: string): (text: string) => number {
  const [least, most] = [durationArgument(min), durationArgument(max)]
  return (text) => {
    const ms = durationArgument(text)
    if (ms >= least && ms <= most) return ms
    throw new InvalidArgumentError(`Use a duration from ${min} to ${max}.`)
  }
}

export function uuidArgument(text: string): string {
  if (!uuid.safeParse(text).success) throw new InvalidArgumentError('Use a UUID.')
  return text
}

export function urlArgument(text: string): string {
  if (URL.canParse(text) && /^https?:\/\//.test(text)) return text
  // Messages about invalid arguments quote them, and this one can contain a password.
  if (text.includes('@'))
    throw new CodedError('USAGE', 'The address is invalid. Use an http or https URL without a user or a password.')
  throw new InvalidArgumentError('Use an http or https URL, such as http://127.0.0.1:7080.')
}

/** The address of a cloud, with the default path prefix if it has no path. */
export function cloudArgument(text: string): string {
  const url = new URL(urlArgument(text))
  if (url.username !== '' || url.password !== '') {
    // Messages about invalid arguments quote them.
    throw new CodedError(
      'USAGE',
      'The address of the cloud contains a user or a password. Leave them out: commands send tokens.',
    )
  }
  if (url.pathname === '/') url.pathname = API_PREFIX
  return url.href.replace(/\/+$/, '')
}

/** A smaller number is probably a year, a date or seconds. 0 is allowed. */
const MILLISECONDS_MIN = 100_000_000_000

export function timeArgument(text: string): number {
  const ms = /^\d{1,15}$/.test(text) ? Number(text) : instantOf(text)
  if (ms === 0 || ms >= MILLISECONDS_MIN) return ms
  throw new InvalidArgumentError('Use 2026-05-01, 2026-05-01T00:00Z, or POSIX milliseconds.')
}

/** NaN also for days that do not exist, such as 30 February. */
function instantOf(text: string): number {
  const [, day = ''] = /^(\d{4}-\d\d-\d\d)(?:T\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d))?$/.exec(text) ?? []
  const midnight = Date.parse(day)
  if (Number.isNaN(midnight) || !new Date(midnight).toISOString().startsWith(day)) return Number.NaN
  return Date.parse(text)
}

/** @throws CodedError USAGE if no time is in the range */
export function requireRange({ since, until }: { readonly since?: number; readonly until?: number }): void {
  if (since !== undefined && until !== undefined && until <= since)
    throw new CodedError('USAGE', 'Give a --since that is earlier than --until.')
}

export function wholeNumberArgument(min: number, max: number): (text: string) => number {
  return (text) => {
    const number = /^\d{1,15}$/.test(text) ? Number(text) : Number.NaN
    if (number >= min && number <= max) return number
    throw new InvalidArgumentError(`Use a whole number from ${min} to ${max}.`)
  }
}

export function tokensArgument(text: string): number {
  return exact(text, tokenDigitsProblem(text), 'Use a number in digits, such as 1000.')
}

export function rateArgument(text: string): number {
  return exact(text, digitsProblem(text), 'Use a number in digits, such as 0.85.')
}

export function countArgument(text: string): number {
  const advice = 'Use a number greater than 0 in digits, such as 2.5.'
  const count = exact(text, digitsProblem(text), advice)
  if (count > 0) return count
  throw new InvalidArgumentError(advice)
}

function exact(text: string, problem: string | undefined, advice: string): number {
  if (problem !== undefined) throw new InvalidArgumentError(`It ${problem}.`)
  const number = typedNumber(text)
  if (Number.isNaN(number)) throw new InvalidArgumentError(advice)
  return number
}

/** @param min characters of the second text */
export function pairArgument(
  separator: string,
  example: string,
  min: 0 | 1,
): (text: string) => readonly [string, string] {
  return (text) => {
    const at = text.indexOf(separator)
    if (at > 0 && text.length > at + min) return [text.slice(0, at), text.slice(at + 1)]
    throw new InvalidArgumentError(`Use two texts with ${separator} between them, such as ${example}.`)
  }
}

export function labelArgument(text: string): string {
  const { key, value } = parseLabel(text)
  return `${key}=${value}`
}

export function cellArgument(text: string): string {
  if (!cellName.safeParse(text).success) throw new InvalidArgumentError('Use the name of a cell, such as north.')
  return text
}

export function readAuthority(io: Io, path: string): string {
  const pem = readFileArgument(io, path, 'USAGE')
  if (hasCertificate(pem)) return pem
  throw new CodedError('USAGE', `${path} has no PEM certificate.`)
}

export function contextArgument(text: string): string {
  if (/^[\p{L}\p{N}][\p{L}\p{N}._-]{0,99}$/u.test(text)) return text
  throw new InvalidArgumentError('Use up to 100 letters, digits, dots, hyphens and underscores, such as prod.')
}

export const STANDARD_INPUT = '/dev/stdin'

export function readFileArgument(io: Io, path: string, code: ErrorCode): string {
  try {
    return io.readText(path)
  } catch (cause) {
    const isInvalid = code === 'USAGE' && isNotUtf8(cause)
    const shown = path === STANDARD_INPUT ? 'standard input' : shownPath(path)
    const message = `Cannot read ${shown}: ${unreadableReason(cause)}.`
    throw systemFailure(cause, shown) ?? new CodedError(isInvalid ? 'FILE_INVALID' : code, message, { cause })
  }
}
