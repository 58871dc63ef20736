// `node padding.ts LEDGER [--remove]`: makes the ledger of a stopped agent as large as that of a device that was offline for long.
import { createRequire } from 'node:module'
import type DatabaseConstructor from 'better-sqlite3'

const [path = '', remove] = process.argv.slice(2)
const require = createRequire('/usr/lib/tallygate/')
const Database = require('better-sqlite3') as typeof DatabaseConstructor
const database = new Database(path)
// The agent sets its own modes again.
database.pragma('journal_mode = DELETE')
database.pragma('synchronous = OFF')
database.exec('DROP TABLE IF EXISTS padding')
if (remove === undefined) {
  database.exec(`
    CREATE TABLE padding (bytes BLOB NOT NULL) STRICT;
    WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500000)
    INSERT INTO padding SELECT zeroblob(100) FROM n;
  `)
}
database.close()
