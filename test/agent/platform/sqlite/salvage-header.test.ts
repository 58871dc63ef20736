// One wrong bit in the first bytes of the ledger file: SQLite reads nothing, but every entry is still there.
import { randomBytes } from 'node:crypto'
import { copyFileSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import { expect, it } from 'vitest'
import { salvaged } from '../../../../src/agent/platform/sqlite/read-damaged.ts'
import { fillDisk, smallDisk } from '../../../support/mounts.ts'
import { STAMP, entry, journalIn, temporaryDirectory } from '../../harness.ts'
import { A, damage, deviceWithBacklog, flipBit, largeBacklog } from './damaged.ts'

it.each([
  ['the name of the format', 0, 3],
  ['the size of a page', 16, 2],
  ['the version for reads', 19, 4],
  ['the reserved bytes of a page', 20, 0],
  ['a fraction', 22, 5],
  ['the number of pages', 28, 6],
  ['the number of pages, slightly', 31, 3],
  ['the format of the schema', 47, 0],
  ['the encoding of texts', 59, 1],
  ['the number of the schema', 60, 0],
  ['the number of the schema, slightly', 63, 1],
  ['the number of the application', 70, 2],
])('salvages every entry of a ledger with a wrong bit in %s', async (_what, at, bit) => {
  const { directory, journal, path } = await deviceWithBacklog()
  await journal.close()
  flipBit(path, at, bit)
  const salvaged = await journalIn(directory)
  const { identity, salvages } = await salvaged.read()
  expect(identity).not.toBeNull()
  expect(salvages).toMatchObject([{ salvagedEntries: 40, lostEntries: 0 }])
})

/** A copy of the ledger without a log, which would have a whole header. */
function withoutLog(path: string): { readonly directory: string; readonly path: string } {
  const directory = temporaryDirectory()
  const copy = join(directory, 'journal.db')
  for (const suffix of ['', '-wal']) copyFileSync(`${path}${suffix}`, `${copy}${suffix}`)
  const database = new Database(copy)
  database.pragma('wal_checkpoint(TRUNCATE)')
  database.close()
  return { directory, path: copy }
}

it('salvages a ledger whose header forbids writes', async () => {
  const { directory, journal, path } = await deviceWithBacklog()
  await journal.close()
  flipBit(path, 18, 3)
  const salvaged = await journalIn(directory)
  expect((await salvaged.read()).salvages).toMatchObject([{ salvagedEntries: 40, lostEntries: 0 }])
})

it.each([
  ['forbids writes', 18, 3],
  ['has the wrong number of free pages', 39, 0],
])('salvages the commits in slots of a ledger whose header %s', async (_what, at, bit) => {
  const { journal, path } = await deviceWithBacklog()
  // Its block needs pages that are new or free.
  const text = randomBytes(2_000).toString('base64')
  await journal.append(
    [{ ...entry(61, []), body: JSON.stringify({ n: 61, kind: 'access', postings: [], text }) }],
    STAMP,
  )
  const copy = withoutLog(path)
  await journal.close()
  flipBit(copy.path, at, bit)
  const salvaged = await journalIn(copy.directory)
  expect((await salvaged.read()).salvages).toMatchObject([{ salvagedEntries: 41, lostEntries: 0 }])
})

it.each([
  ['for writes', 18, 3],
  ['for reads', 19, 4],
])('refuses a ledger of a newer version with a wrong bit in the version %s', async (_what, at, bit) => {
  const { directory, journal, path } = await deviceWithBacklog()
  await journal.close()
  const newer = new Database(path)
  newer.exec('ALTER TABLE policy ADD COLUMN newer TEXT')
  newer.pragma('user_version = 99')
  newer.close()
  flipBit(path, at, bit)
  const before = readFileSync(path)
  await expect(journalIn(directory)).rejects.toMatchObject({ code: 'DATABASE_NEWER' })
  expect(readFileSync(path).equals(before)).toBe(true)
})

it('salvages no response to an entry in slots that it cannot salvage', async () => {
  const { journal, path } = await deviceWithBacklog()
  const idempotencyRecord = { session: 'till', n: 1, requestHash: 'h', answer: '{}', policyRevision: 1 }
  await journal.append([entry(61, [{ account: A, amount: 3n }], { idempotencyRecord })], STAMP)
  const copy = withoutLog(path)
  await journal.close()
  damage(copy.path, 'block')
  const salvaged = await journalIn(copy.directory)
  const { idempotencyCache, salvages } = await salvaged.read()
  expect(salvages).toMatchObject([{ salvagedEntries: 0, lostEntries: null }])
  expect(idempotencyCache).toEqual([])
})

it('reports a used-up quota during a salvage, which its copy may have used', async ({ skip }) => {
  const path = join(smallDisk(skip, '8m'), 'journal.db')
  copyFileSync(await largeBacklog(), path)
  damage(path)
  const work = (): never => {
    fillDisk(join(path, '..'))
    throw new Database.SqliteError('disk I/O error', 'SQLITE_IOERR_WRITE')
  }
  expect(() => salvaged(path, null, work)).toThrow(expect.objectContaining({ code: 'STATE_UNWRITABLE' }))
})
