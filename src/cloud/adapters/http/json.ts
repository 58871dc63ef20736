/** JSON in and out. What comes in is well-formed UTF-8 and of bounded depth before anything recursive looks at it. */
import { CodedError } from '../../../protocol/errors.ts'
import { JSON_DEPTH_MAX, isDeeperThan } from '../../../protocol/json-depth.ts'

const strictUtf8 = new TextDecoder('utf-8', { fatal: true })

/** @throws CodedError BAD_JSON */
export function parseJson(bytes: Buffer): unknown {
  let value: unknown
  try {
    value = JSON.parse(strictUtf8.decode(bytes))
  } catch (cause) {
    throw new CodedError('BAD_JSON', 'The body is not well-formed JSON in UTF-8.', { cause })
  }
  if (isDeeperThan(value, JSON_DEPTH_MAX)) {
    throw new CodedError('BAD_REQUEST', `body: nests deeper than ${JSON_DEPTH_MAX} levels`)
  }
  return value
}
