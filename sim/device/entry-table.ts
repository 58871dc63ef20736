/** A journal's entries as rows, to look at them and to damage single ones. */
import type Database from 'better-sqlite3'
import { type Entry, entriesBetween, insertEntries } from '../../src/agent/platform/sqlite/entry-blocks.ts'
import { foldAccounts, foldDatabase, readPending } from '../../src/agent/platform/sqlite/pending-batches.ts'

const ID_MAX = 2n ** 63n - 1n

/** Reads a journal as its next fold will leave it, and changes nothing. */
export function folded<T>(database: Database.Database, read: () => T, fold = foldDatabase): T {
  database.exec('SAVEPOINT folded')
  try {
    fold(database)
    return read()
  } finally {
    database.exec('ROLLBACK TO folded; RELEASE folded')
  }
}

/** Cheaper, for a reader of the table `account` alone. */
export function accountsFolded<T>(database: Database.Database, read: () => T): T {
  return folded(database, read, () => {
    const { changes, damage } = readPending(database)
    if (damage !== null) throw new Error(`damaged: ${damage}`)
    foldAccounts(database, changes)
  })
}

export function entriesIn(database: Database.Database): readonly Entry[] {
  return folded(database, () => [...entriesBetween(database, 0n, ID_MAX)])
}

/** Changes a journal while its entries are rows of the table `entry`. */
export function withEntryTable<T>(database: Database.Database, change: () => T): T {
  foldDatabase(database)
  database.exec('CREATE TEMP TABLE entry (id INTEGER PRIMARY KEY, n INTEGER, body TEXT, inputs TEXT)')
  const insert = database.prepare('INSERT INTO entry VALUES (?, ?, ?, ?)')
  for (const { id, n, body, inputs } of entriesBetween(database, 0n, ID_MAX)) insert.run(id, n, body, inputs)
  const result = change()
  database.exec('DELETE FROM block')
  const rows = database.prepare('SELECT * FROM entry ORDER BY id').safeIntegers(true).all() as Entry[]
  for (const run of runsOf(rows)) {
    const [first] = run
    if (first === undefined) continue
    insertEntries(database, first, run)
  }
  database.exec('DROP TABLE entry')
  return result
}

/** Without gaps. */
function runsOf(rows: readonly Entry[]): readonly (readonly Entry[])[] {
  const runs: Entry[][] = []
  for (const row of rows) {
    const last = runs.at(-1)
    const before = last?.at(-1)
    if (last !== undefined && before?.id === row.id - 1n && before.n === row.n - 1n) last.push(row)
    else runs.push([row])
  }
  return runs
}
