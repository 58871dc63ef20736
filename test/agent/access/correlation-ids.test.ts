import { randomUUID } from 'node:crypto'
import { expect, test } from 'vitest'
import { correlationIds } from '../../../src/agent/access/correlation-ids.ts'
import { compress } from '../../../src/protocol/zstd.ts'
import { uuid } from '../../../src/protocol/wire.ts'

const COUNT = 2_000

const issued = (newId = correlationIds(randomUUID)) => Array.from({ length: COUNT }, newId)

test('issues UUIDs of version 4, none of them twice in one process or in two', () => {
  const ids = [...issued(), ...issued()]
  expect(new Set(ids).size).toBe(2 * COUNT)
  for (const id of ids)
    expect(uuid.parse(id)).toMatch(/^[\da-f]{8}-[\da-f]{4}-4[\da-f]{3}-[89ab][\da-f]{3}-[\da-f]{12}$/)
})

test('begins a group with a random UUID after 256 ids', () => {
  let groups = 0
  const starts = ['11111111-1111-4111-8111-1111111111ab', '22222222-2222-4222-8222-2222222222cd']
  const ids = Array.from(
    { length: 257 },
    correlationIds(() => starts[groups++] ?? ''),
  )
  expect([ids[0], ids[1], ids[255], ids[256]]).toEqual([
    '11111111-1111-4111-8111-111111111100',
    '11111111-1111-4111-8111-111111111101',
    '11111111-1111-4111-8111-1111111111ff',
    '22222222-2222-4222-8222-222222222200',
  ])
})

test('takes at most 4 bytes of a compressed text for an id, a random UUID more than 16', () => {
  const bytesOfIds = (ids: readonly string[]): number => {
    const text = (id: string, n: number) => `{"n":${n},"kind":"access","at":1700000000000,"correlationId":"${id}"}\n`
    const without = compress(ids.map((_id, n) => text('', n)).join(''))
    return (compress(ids.map(text).join('')).length - without.length) / COUNT
  }
  expect(bytesOfIds(issued())).toBeLessThan(4)
  expect(bytesOfIds(issued(randomUUID))).toBeGreaterThan(16)
})
