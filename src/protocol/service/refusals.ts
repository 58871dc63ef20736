/** Refusals that the cloud and a device give in the same words, before any operation is reached. */
import { CodedError, type ErrorCode } from '../errors.ts'
import { JSON_DEPTH_MAX, isTooDeep, jsonText } from '../parse-json.ts'

/** Longest segment of a path, characters: longer than any id or name. */
export const PATH_SEGMENT_MAX = 1_024

/** Of the request line and headers together. Node's default, which the cloud has. */
export const HEADERS_BYTES_MAX = 16 * 1024

export const REFUSALS = {
  bodyTooLarge: 'The body is larger than the limit.',
  mediaType: 'The Content-Type is not application/json.',
  compressed: 'The body is compressed. Send it uncompressed.',
  pathMalformed: 'The path is malformed.',
  segmentTooLong: 'A path segment is longer than any id or name.',
  instanceOfPath: 'The header x-instance-id does not match the instance in the path.',
  instanceOfSession: 'The header x-instance-id does not match the instance of the session.',
} as const

interface RequestHead {
  readonly httpVersion: string
  readonly headers: Readonly<Record<string, string | readonly string[] | undefined>>
  /** Names and values in turn, as they arrived. */
  readonly rawHeaders: readonly string[]
}

/**
 * Checks that Node's parser leaves out. Such a request is the last one of its connection. Null: the request can be served.
 * Sources: RFC 9112, sections 3.2 and 6.1; RFC 9110, section 10.1.1.
 */
export function brokenHead({ httpVersion, headers, rawHeaders }: RequestHead): CodedError | null {
  const { host, expect, 'transfer-encoding': coding } = headers
  const hosts = rawHeaders.filter((name, index) => index % 2 === 0 && isHostName(name)).length
  if (hosts === 0 && httpVersion !== '1.0') {
    return new CodedError(
      'BAD_REQUEST',
      'The Host header is missing, and HTTP/1.1 requires it. Any value works, such as localhost.',
    )
  }
  if (hosts > 1 || (host !== undefined && !isHost(String(host)))) {
    const problem = hosts > 1 ? 'occurs more than once' : 'is not a host name or address with an optional port'
    return new CodedError('BAD_REQUEST', `The Host header ${problem}. Send one, such as localhost.`)
  }
  if (coding !== undefined && String(coding).toLowerCase() !== 'chunked') {
    return new CodedError('TRANSFER_CODING_UNKNOWN', `${unsupported('Transfer-Encoding', coding)}; only chunked is.`)
  }
  if (expect === undefined || httpVersion === '1.0' || String(expect).toLowerCase() === '100-continue') return null
  return new CodedError('EXPECTATION_UNKNOWN', `${unsupported('Expect', expect)}; only 100-continue is.`)
}

const VALUE_SHOWN_MAX = 100

function unsupported(header: string, value: string | readonly string[]): string {
  return `${header}: ${JSON.stringify(String(value).slice(0, VALUE_SHOWN_MAX))} is not supported`
}

function isHostName(name: string): boolean {
  return name.length === 'host'.length && name.toLowerCase() === 'host'
}

const HOST = /^(?:\[[\da-f:.v]+\]|(?:[\w.~!$&'()*+,;=-]|%[\da-f]{2})*)(?::\d*)?$/i

/** Whether a Host header has a valid value. Source: RFC 3986, section 3.2. */
export function isHost(value: string): boolean {
  return HOST.test(value)
}

/** Causes without a code of Node. */
export const TOO_MANY_AHEAD = 'TOO_MANY_AHEAD'
export const NO_TUNNEL = 'NO_TUNNEL'

const BROKEN: Readonly<Record<string, [ErrorCode, string]>> = {
  HPE_HEADER_OVERFLOW: [
    'HEADERS_TOO_LARGE',
    `The request line and headers together exceed ${HEADERS_BYTES_MAX / 1024} KiB.`,
  ],
  ERR_HTTP_REQUEST_TIMEOUT: ['REQUEST_TOO_SLOW', 'The request did not arrive in time.'],
  [TOO_MANY_AHEAD]: ['BAD_REQUEST', 'Too many requests arrived at once. Wait for responses before sending more.'],
  [NO_TUNNEL]: ['OPERATION_UNKNOWN', 'CONNECT is not supported: this is not a proxy. Send the request to a path.'],
}

/** For a connection without a valid HTTP request. @param cause code of Node's error */
export function brokenRequest(cause = ''): CodedError {
  return new CodedError(...(BROKEN[cause] ?? ['BAD_REQUEST', 'The connection sent no valid HTTP request.']))
}

export function noOperation(method: string, advice = ''): CodedError {
  return new CodedError('OPERATION_UNKNOWN', `No operation ${method} at this path.${advice}`)
}

export function wrongMethod(method: string): CodedError {
  return new CodedError('METHOD_NOT_ALLOWED', `This path does not support ${method}.`)
}

export function bodyIncomplete(): CodedError {
  return new CodedError('BODY_INCOMPLETE', 'The connection ended, or sent bytes that are not HTTP, within the body.')
}

/** Origin in the absolute form that clients send to proxies. */
const ORIGIN = /^https?:\/\/[^/?#]*(?=\/)/i

/** The target of a request as clients send it to servers. */
export function withoutOrigin(target: string): string {
  return target.startsWith('/') ? target : target.replace(ORIGIN, '')
}

export function allowedMethods(methods: readonly string[]): string {
  return [...methods.toSorted(), 'OPTIONS'].join(', ')
}

/** A body as JSON, with its text. @throws CodedError BAD_JSON; BAD_REQUEST if nested too deeply */
export function readJsonBody(bytes: Uint8Array): { readonly text: string; readonly value: unknown } {
  if (bytes.length === 0) return { text: '', value: undefined }
  const text = jsonText(bytes)
  if (text === undefined) throw new CodedError('BAD_JSON', 'The body is not valid UTF-8.')
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch (cause) {
    throw new CodedError('BAD_JSON', 'The body is not well-formed JSON.', { cause })
  }
  if (isTooDeep(text, value)) {
    throw new CodedError('BAD_REQUEST', `body: is nested deeper than ${JSON_DEPTH_MAX} levels`)
  }
  return { text, value }
}
