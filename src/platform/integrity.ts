/** A connection of SQLite. */
interface Checked {
  pragma(source: string, options: { readonly simple: true }): unknown
}

/** `ok`, or what SQLite finds first, in one line. */
export function integrityOf(database: Checked, check: 'quick_check' | 'integrity_check'): string {
  const found = String(database.pragma(`${check}(1)`, { simple: true }))
  return found.replace('*** in database main ***\n', '').replaceAll('\n', '; ')
}
