/** JSON that is put together by hand, where JSON.stringify costs too much. */

/** Printable ASCII but for the quotation mark and the backslash: what JSON writes as it stands. */
const PLAIN = /^[ !#-[\]-~]*$/

/** The same as JSON.stringify. */
export function quoted(text: string): string {
  return PLAIN.test(text) ? `"${text}"` : JSON.stringify(text)
}
