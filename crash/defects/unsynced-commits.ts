/** A defect, preloaded: commits are not flushed, neither by SQLite nor by the agent or the cloud, but report that they are. */
import fs from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'
import Database from 'better-sqlite3'

// The method is handed its database again when it is called.
// oxlint-disable-next-line typescript/unbound-method
const { pragma } = Database.prototype

Database.prototype.pragma = function (this: Database.Database, source: string, options?: Database.PragmaOptions) {
  if (!/^\s*synchronous\b/i.test(source)) return pragma.call(this, source, options)
  if (source.includes('=')) return pragma.call(this, 'synchronous = NORMAL', options)
  return 2n
}

const flushNothing = (_file: number, flushed: fs.NoParamCallback): void => void setImmediate(flushed, null)
fs.fdatasyncSync = () => undefined
fs.fdatasync = Object.assign(flushNothing, { __promisify__: () => Promise.resolve() })
syncBuiltinESMExports()
