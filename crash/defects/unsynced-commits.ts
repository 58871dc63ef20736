/** A defect, preloaded: SQLite does not flush commits but reports that it does. */
import Database from 'better-sqlite3'

// The method is handed its database again when it is called.
// oxlint-disable-next-line typescript/unbound-method
const { pragma } = Database.prototype

Database.prototype.pragma = function (this: Database.Database, source: string, options?: Database.PragmaOptions) {
  if (!/^\s*synchronous\b/i.test(source)) return pragma.call(this, source, options)
  if (source.includes('=')) return pragma.call(this, 'synchronous = NORMAL', options)
  return 2n
}
