/** Reads and validates a JSON request body: content type, size, UTF-8 and nesting depth. */
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import { CodedError } from '../../../protocol/errors.ts'
import { JSON_DEPTH_MAX, isTooDeep, jsonText } from '../../../protocol/parse-json.ts'

export interface JsonBody {
  readonly text: string
  readonly value: unknown
}

/**
 * Calls back once with the body or a CodedError (MEDIA_TYPE_NOT_SUPPORTED, BODY_TOO_LARGE, BAD_JSON). Does not call back
 * if the connection breaks first.
 */
export function readJson(
  request: IncomingMessage,
  bytesMax: number,
  done: (result: JsonBody | CodedError) => void,
): void {
  const refusal = headerRefusal(request.headers, bytesMax)
  if (refusal !== null) {
    done(refusal)
    return
  }
  let first: Buffer | undefined
  let rest: Buffer[] | undefined
  let length = 0
  let isDone = false
  request.on('data', (chunk: Buffer) => {
    if (isDone) return
    length += chunk.length
    if (length > bytesMax) {
      isDone = true
      done(tooLarge(bytesMax))
    } else if (first === undefined) first = chunk
    else (rest ??= [first]).push(chunk)
  })
  request.on('end', () => {
    if (isDone) return
    isDone = true
    done(parseBody(rest === undefined ? (first ?? EMPTY) : Buffer.concat(rest, length)))
  })
}

const EMPTY = Buffer.alloc(0)

/** Checks that need only the headers: MEDIA_TYPE_NOT_SUPPORTED or BODY_TOO_LARGE. */
export function headerRefusal(
  headers: Pick<IncomingHttpHeaders, 'content-type' | 'content-encoding' | 'content-length'>,
  bytesMax: number,
): CodedError | null {
  const { 'content-type': type, 'content-encoding': encoding, 'content-length': length } = headers
  if (type === undefined || !isJsonType(type)) {
    return new CodedError('MEDIA_TYPE_NOT_SUPPORTED', 'send the body with Content-Type: application/json')
  }
  if (encoding !== undefined && encoding.toLowerCase() !== 'identity') {
    return new CodedError('MEDIA_TYPE_NOT_SUPPORTED', 'send the body uncompressed, without Content-Encoding')
  }
  return length !== undefined && Number(length) > bytesMax ? tooLarge(bytesMax) : null
}

function isJsonType(type: string): boolean {
  return type === 'application/json' || /^application\/json\s*(;\s*charset\s*=\s*"?utf-8"?\s*)?;?\s*$/i.test(type)
}

/** Returns BAD_JSON, or BAD_REQUEST for too deep nesting. */
export function parseBody(bytes: Buffer): JsonBody | CodedError {
  const text = jsonText(bytes)
  if (text === undefined) return new CodedError('BAD_JSON', 'the body is not valid UTF-8')
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch (cause) {
    return new CodedError('BAD_JSON', 'the body is not valid JSON', { cause })
  }
  if (isTooDeep(text, value))
    return new CodedError('BAD_REQUEST', `the body is nested deeper than ${JSON_DEPTH_MAX} levels`)
  return { text, value }
}

function tooLarge(bytesMax: number): CodedError {
  return new CodedError('BODY_TOO_LARGE', `the body is larger than ${bytesMax} bytes`)
}
