/** JSON in and out. What comes in is well-formed UTF-8 and of bounded depth before anything recursive looks at it. */
import { CodedError } from '../../../protocol/errors.ts'

/** Deeper than any document of the API; shallow enough for every recursive function. */
const DEPTH_MAX = 64

/** @throws CodedError BAD_JSON */
export function parseJson(bytes: Buffer): unknown {
  let value: unknown
  try {
    value = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes))
  } catch (cause) {
    throw new CodedError('BAD_JSON', 'The body is not well-formed JSON in UTF-8.', { cause })
  }
  if (tooDeep(value)) throw new CodedError('BAD_REQUEST', `body: nests deeper than ${DEPTH_MAX} levels`)
  return value
}

function tooDeep(root: unknown): boolean {
  let level: unknown[] = [root]
  for (let depth = 0; level.length > 0; depth += 1) {
    if (depth > DEPTH_MAX) return true
    level = level.flatMap((value) =>
      typeof value === 'object' && value !== null ? (Object.values(value) as unknown[]) : [],
    )
  }
  return false
}
