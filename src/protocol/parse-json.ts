/**
 * JSON of somebody else, read for a schema to judge. Parsing has no limit of its own on how deep a value nests, and
 * whatever is recursive after it has: what is too deep never gets that far.
 */

/** Objects and lists in each other: deeper than any document of the APIs; shallow enough for every recursive function. */
export const JSON_DEPTH_MAX = 64

const strictUtf8 = new TextDecoder('utf-8', { fatal: true })

/**
 * The text of a JSON body as it came over HTTP; undefined where it is not well-formed UTF-8. One byte order mark before it is no
 * part of it: RFC 8259 forbids to send one, and allows to ignore one.
 */
export function jsonText(bytes: Uint8Array): string | undefined {
  try {
    return strictUtf8.decode(bytes)
  } catch {
    return undefined
  }
}

/** Undefined for what is no JSON, or nests deeper than {@link JSON_DEPTH_MAX}: no schema of a document accepts it. */
export function parseJson(text: string): unknown {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    return undefined
  }
  return isTooDeep(text, value) ? undefined : value
}

/**
 * Whether a value nests deeper than {@link JSON_DEPTH_MAX}. Looks level by level, so that it has no limit itself.
 *
 * @param text what the value was parsed from
 */
export function isTooDeep(text: string, value: unknown): boolean {
  if (!hasManyOpenings(text)) return false
  let level = [value].filter(isContainer)
  for (let depth = 1; level.length > 0; depth += 1) {
    if (depth > JSON_DEPTH_MAX) return true
    level = level.flatMap((container) => Object.values(container).filter(isContainer))
  }
  return false
}

/** Cheap, and right whenever it says no: a text without so many opening brackets cannot nest so deep. */
function hasManyOpenings(text: string): boolean {
  let openings = 0
  for (let index = 0; index < text.length; index += 1) {
    const unit = text.charCodeAt(index)
    if (unit !== OPENING_BRACE && unit !== OPENING_BRACKET) continue
    openings += 1
    if (openings > JSON_DEPTH_MAX) return true
  }
  return false
}

const OPENING_BRACE = 0x7b
const OPENING_BRACKET = 0x5b

function isContainer(value: unknown): value is object {
  return typeof value === 'object' && value !== null
}
