import { expect, it } from 'vitest'
import { CodedError } from '../../../src/protocol/errors.ts'
import fc from '../../support/fast-check.ts'
import type { UsageRecord } from '../../../src/cloud/storage/records.ts'
import { recordsOf, rowsOfRecords } from '../../../src/cloud/storage/sql/packed-usage.ts'
import { usage } from './suite.ts'

const some = (count: number, change: Partial<UsageRecord> = {}) =>
  Array.from({ length: count }, (_, n) => usage(n, change))
const large = (characters: number) => usage(1, { metaData: 'x'.repeat(characters) })

it.each([
  ['500 records', some(1_001), [500, 500, 1]],
  ['256 Ki characters of metadata', [...some(2), ...Array.from({ length: 5 }, () => large(100_000))], [4, 2, 1]],
  ['one record with more of it', [usage(1), large(300_000), usage(2), large(300_000)], [1, 1, 1, 1]],
])('a row has at most %s', (_, records, expected) => {
  const rows = rowsOfRecords(records)
  expect(rows.map((row) => Number(row.records))).toEqual(expected)
  expect(rows.flatMap((row) => recordsOf({ seq: 1n, ...row }))).toEqual(records)
})

it.each([
  ['text', some(3)],
  ['compressed', some(40, { metaData: '{"a":1}' })],
])('a damaged row, %s, is read as something or refused with a code', (_, records) => {
  const [row] = rowsOfRecords(records)
  if (row === undefined) throw new Error('there is no row')
  let refused = 0
  fc.assert(
    fc.property(fc.nat(row.body.length - 1), fc.integer({ min: 1, max: 255 }), (at, bits) => {
      const body = Buffer.from(row.body)
      body[at] = (body[at] ?? 0) ^ bits
      try {
        recordsOf({ seq: 1n, ...row, body })
      } catch (error) {
        refused += 1
        expect(error instanceof CodedError && error.code, String(error)).toBe('DATABASE_CORRUPT')
      }
    }),
  )
  expect(refused).toBeGreaterThan(0)
})
