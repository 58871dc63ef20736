/** JSON in and out. What comes in is well-formed UTF-8 and of bounded depth before anything recursive looks at it. */
import { CodedError } from '../../../protocol/errors.ts'
import { JSON_DEPTH_MAX, isTooDeep } from '../../../protocol/parse-json.ts'

const strictUtf8 = new TextDecoder('utf-8', { fatal: true })

/** @throws CodedError BAD_JSON, or BAD_REQUEST for what nests too deep */
export function parseBody(bytes: Buffer): unknown {
  let text: string
  let value: unknown
  try {
    text = strictUtf8.decode(bytes)
    value = JSON.parse(text)
  } catch (cause) {
    throw new CodedError('BAD_JSON', 'The body is not well-formed JSON in UTF-8.', { cause })
  }
  if (isTooDeep(text, value)) {
    throw new CodedError('BAD_REQUEST', `body: nests deeper than ${JSON_DEPTH_MAX} levels`)
  }
  return value
}
