/** Request bodies: UTF-8 and nesting depth are checked before any recursive code runs. */
import { CodedError } from '../../protocol/errors.ts'
import { JSON_DEPTH_MAX, isTooDeep, jsonText } from '../../protocol/parse-json.ts'

/** @throws CodedError BAD_JSON; BAD_REQUEST if nested too deeply */
export function parseBody(bytes: Buffer): unknown {
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
  return value
}
