import fc from '../../../support/fast-check.ts'
import { describe, expect, it } from 'vitest'
import { KnownBodies, parseBody } from '../../../../src/agent/platform/socket/parse-request.ts'

const bytesOf = (text: string): Buffer => Buffer.from(text, 'utf8')

describe('bodies that were read before', () => {
  it('are the same object for the same bytes, and another one for others', () => {
    const bodies = new KnownBodies()
    const first = bodies.parse(bytesOf('{"a":1}'))
    expect(bodies.parse(bytesOf('{"a":1}'))).toBe(first)
    expect(bodies.parse(bytesOf('{"a": 1}'))).not.toBe(first)
    expect(first).toEqual({ text: '{"a":1}', value: { a: 1 } })
  })

  it('are what a parser without a memory makes of them, good or bad', () => {
    const bodies = new KnownBodies()
    const some = fc.oneof(
      fc.json().map(bytesOf),
      fc.string().map(bytesOf),
      fc.uint8Array().map((bytes) => Buffer.from(bytes)),
      fc.constantFrom('[]', '{"__proto__":1}', '['.repeat(70) + ']'.repeat(70), `"${'é'.repeat(2_000)}"`).map(bytesOf),
    )
    fc.assert(
      fc.property(fc.array(some), (list) => {
        for (const bytes of [...list, ...list]) expect(bodies.parse(bytes)).toEqual(parseBody(bytes))
      }),
    )
  })

  it('are forgotten in time, and long ones are not kept', () => {
    const bodies = new KnownBodies()
    const first = bodies.parse(bytesOf('0'))
    for (let number = 1; number <= 300; number += 1) bodies.parse(bytesOf(String(number)))
    expect(bodies.parse(bytesOf('0'))).not.toBe(first)
    const long = bytesOf(JSON.stringify('x'.repeat(3_000)))
    expect(bodies.parse(long)).not.toBe(bodies.parse(long))
  })
})
