/** JSON in and out. What comes in is well-formed UTF-8 and of bounded depth before anything recursive looks at it. */
import { CodedError } from '../../../protocol/errors.ts'
import { JSON_DEPTH_MAX, isTooDeep, jsonText } from '../../../protocol/parse-json.ts'

/** @throws CodedError BAD_JSON, or BAD_REQUEST for what nests too deep */
export function parseBody(bytes: Buffer): unknown {
  const text = jsonText(bytes)
  if (text === undefined) throw new CodedError('BAD_JSON', 'The body is not UTF-8.')
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch (cause) {
    throw new CodedError('BAD_JSON', 'The body is not well-formed JSON.', { cause })
  }
  if (isTooDeep(text, value)) {
    throw new CodedError('BAD_REQUEST', `body: nests deeper than ${JSON_DEPTH_MAX} levels`)
  }
  return value
}
