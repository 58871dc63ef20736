import fc from '../../../support/fast-check.ts'
import { describe, expect, it } from 'vitest'
import { KnownBodies, parseBody } from '../../../../src/agent/platform/socket/parse-request.ts'

const bytesOf = (text: string): Buffer => Buffer.from(text, 'utf8')

describe('bodies that were read before', () => {
  it('return the same object from the second time on, and a different one for different bytes', () => {
    const bodies = new KnownBodies()
    expect(bodies.parse(bytesOf('{"a":1}'))).toEqual({ text: '{"a":1}', value: { a: 1 } })
    const second = bodies.parse(bytesOf('{"a":1}'))
    expect(second).toEqual({ text: '{"a":1}', value: { a: 1 }, isKept: true })
    expect(bodies.parse(bytesOf('{"a":1}'))).toBe(second)
    for (let times = 0; times < 2; times += 1) expect(bodies.parse(bytesOf('{"a": 1}'))).not.toBe(second)
  })

  it('give the same result as a parser without a cache, valid or not', () => {
    const bodies = new KnownBodies()
    const some = fc.oneof(
      fc.json().map(bytesOf),
      fc.string().map(bytesOf),
      fc.uint8Array().map((bytes) => Buffer.from(bytes)),
      fc.constantFrom('[]', '{"__proto__":1}', '['.repeat(70) + ']'.repeat(70), `"${'é'.repeat(2_000)}"`).map(bytesOf),
    )
    fc.assert(
      fc.property(fc.array(some), (list) => {
        for (const bytes of [...list, ...list, ...list]) {
          const body = bodies.parse(bytes)
          if ('text' in body) expect({ text: body.text, value: body.value }).toEqual(parseBody(bytes))
          else expect(body).toEqual(parseBody(bytes))
        }
      }),
    )
  })

  it('are forgotten in time, and long ones are not kept', () => {
    const bodies = new KnownBodies()
    const twice = (text: string) => [bodies.parse(bytesOf(text)), bodies.parse(bytesOf(text))].at(-1)
    const first = twice('0')
    for (let number = 1; number <= 300; number += 1) twice(String(number))
    expect(bodies.parse(bytesOf('0'))).not.toBe(first)
    const long = bytesOf(JSON.stringify('x'.repeat(3_000)))
    expect(bodies.parse(long)).not.toBe(bodies.parse(long))
  })
})
