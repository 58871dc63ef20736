/** Hand-written JSON for places where JSON.stringify is too slow. */

const PLAIN = /^[ !#-[\]-~]*$/

/** Same result as JSON.stringify. */
export function quoted(text: string): string {
  return PLAIN.test(text) ? `"${text}"` : JSON.stringify(text)
}

const BRACE = 0x7b

/** The same text in one piece: reading a character makes V8 join the parts that it keeps in memory otherwise. */
export function flat(json: string): string {
  if (json.charCodeAt(0) !== BRACE) throw new Error('invariant: the text is a JSON object')
  return json
}
