// What a segment leaves in the database file after the next one: its number and its hash.
import { randomBytes } from 'node:crypto'
import Sqlite from 'better-sqlite3'
import { expect, it } from 'vitest'
import { segmentTransaction } from '../../../src/cloud/storage/sql/edge-segments.ts'
import { migrations } from '../../../src/cloud/storage/sqlite/database.ts'
import { sqlOver } from './sql-over.ts'

const DEVICES = 10

it('an earlier segment takes a small part of the place of the last one', async () => {
  const database = new Sqlite(':memory:')
  database.defaultSafeIntegers()
  for (const { sql } of migrations()) database.exec(sql)
  database.pragma('foreign_keys = off')
  const segments = segmentTransaction(sqlOver(database))
  const bytes = (): number => {
    const read = (pragma: string): number => Number(database.pragma(pragma, { simple: true }))
    return (read('page_count') - read('freelist_count')) * read('page_size')
  }
  const text = (length: number): string => randomBytes(length / 2).toString('hex')
  const append = async (from: number, to: number): Promise<void> => {
    for (let seq = from; seq <= to; seq += 1) {
      for (let device = 0; device < DEVICES; device += 1) {
        const signed = { document: text(2_000), answer: text(1_500) }
        await segments.append({ deviceId: `d${device}`, epoch: 1, seq, hash: text(64), signed })
      }
    }
  }
  await append(1, 20)
  const before = bytes()
  await append(21, 120)
  const each = (bytes() - before) / (100 * DEVICES)
  expect(each).toBeLessThan(2_000 / 8)
  expect(await segments.get('d3', 1, 119)).toMatchObject({ seq: 119, signed: null })
  expect((await segments.get('d3', 1, 120))?.signed?.answer).toHaveLength(1_500)
  database.close()
})
