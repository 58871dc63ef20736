import { expect, test } from 'vitest'
import { copyOf } from '../../sim/device/copy-of.ts'

test('a copy has all data of the original, and no later changes', () => {
  const original = {
    list: [1n, null, 'text', undefined],
    map: new Map([['a', { n: 1 }]]),
    set: new Set(['x']),
    bytes: new Uint8Array([1, 2]),
    absent: undefined,
  }
  const copy = copyOf(original)
  expect(copy).toStrictEqual(structuredClone(original))
  original.list.push(2n)
  original.map.set('b', { n: 2 })
  original.set.add('y')
  original.bytes[0] = 3
  expect(copy).toStrictEqual({
    list: [1n, null, 'text', undefined],
    map: new Map([['a', { n: 1 }]]),
    set: new Set(['x']),
    bytes: new Uint8Array([1, 2]),
    absent: undefined,
  })
})

test('what is no plain data is not copied', () => {
  expect(() => copyOf({ call: () => 1 })).toThrow('a function is no plain data')
  expect(() => copyOf([new URL('https://twin.example')])).toThrow('an object of a class is no plain data')
})
