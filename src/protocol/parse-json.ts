/** Deeper than any API document, and safe for every recursive function: JSON.parse itself accepts any depth. */
export const JSON_DEPTH_MAX = 64

export type JsonObject = Readonly<Record<string, unknown>>

export function isJsonObject(value: unknown): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

const strictUtf8 = new TextDecoder('utf-8', { fatal: true })

/** Text of an HTTP body; undefined if not well-formed UTF-8. Ignores one byte order mark, as RFC 8259 allows. */
export function jsonText(bytes: Uint8Array): string | undefined {
  try {
    return strictUtf8.decode(bytes)
  } catch {
    return undefined
  }
}

/** Undefined if invalid or deeper than {@link JSON_DEPTH_MAX}. */
export function parseJson(text: string): unknown {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    return undefined
  }
  return isTooDeep(text, value) ? undefined : value
}

/** Iterates level by level, so it has no depth limit itself. @param text from which the value was parsed */
export function isTooDeep(text: string, value: unknown): boolean {
  if (!hasManyOpenings(text)) return false
  let level = [value].filter(isContainer)
  for (let depth = 1; level.length > 0; depth += 1) {
    if (depth > JSON_DEPTH_MAX) return true
    level = level.flatMap((container) => Object.values(container).filter(isContainer))
  }
  return false
}

function hasManyOpenings(text: string): boolean {
  let openings = 0
  for (const opening of ['{', '[']) {
    for (let at = text.indexOf(opening); at !== -1; at = text.indexOf(opening, at + 1)) {
      openings += 1
      if (openings > JSON_DEPTH_MAX) return true
    }
  }
  return false
}

function isContainer(value: unknown): value is object {
  return typeof value === 'object' && value !== null
}
