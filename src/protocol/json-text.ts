/** Hand-written JSON for places where JSON.stringify is too slow. */

/** Printable ASCII that JSON does not escape. */
const PLAIN = /^[ !#-[\]-~]*$/

/** Same result as JSON.stringify. */
export function quoted(text: string): string {
  return PLAIN.test(text) ? `"${text}"` : JSON.stringify(text)
}

const BRACE = 0x7b

/**
 * The same text in one piece. A text that is built from parts keeps all of them in memory, which is expensive for texts that are
 * kept for a while. Reading a character makes V8 copy the parts into one.
 */
export function flat(json: string): string {
  if (json.charCodeAt(0) !== BRACE) throw new Error('invariant: the text is a JSON object')
  return json
}
