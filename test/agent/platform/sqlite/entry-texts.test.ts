// Texts of entries as bytes: they come back, the chain over them is that of the texts, and a separator in a text is found.
import { describe, expect, it } from 'vitest'
import { decodeTexts, encodeTexts, firstLines, headAfter } from '../../../../src/agent/platform/sqlite/entry-texts.ts'
import { CHAIN_START, entryHash } from '../../../../src/protocol/signing.ts'
import fc from '../../../support/fast-check.ts'

const entries = fc.array(
  fc.record({
    body: fc.json(),
    inputs: fc.option(
      fc.string().map((text) => JSON.stringify(text)),
      { nil: null },
    ),
  }),
)

describe('the texts of entries', () => {
  it('are returned unchanged, and their chain is that of their bodies', () => {
    fc.assert(
      fc.property(entries, (list) => {
        const texts = encodeTexts(list)
        const { bodies, inputs } = decodeTexts(Buffer.from(texts.bytes), list.length)
        expect(bodies.map((body, index) => ({ body, inputs: inputs[index] }))).toEqual(list)
        expect(headAfter(CHAIN_START, texts)).toBe(bodies.reduce(entryHash, CHAIN_START))
      }),
    )
  })

  it('of more than a buffer have the same chain', () => {
    const body = JSON.stringify('é'.repeat(20_000))
    expect(headAfter(CHAIN_START, encodeTexts([{ body }, { body }]))).toBe(
      entryHash(entryHash(CHAIN_START, body), body),
    )
  })

  it.each([
    [{ body: 'a\nb' }],
    [{ body: 'a\tb' }],
    [{ body: 'a', inputs: 'b\tc' }],
    [{ body: 'a', inputs: 'b\nc' }],
    [{ body: 'a\tb', inputs: 'c' }],
  ])('%j, which contains a separator, is refused', (entry) => {
    expect(() => headAfter(CHAIN_START, encodeTexts([{ body: '1', inputs: '2' }, entry]))).toThrow(
      'no tab or line break',
    )
  })

  it('are refused where their number is another one', () => {
    const { bytes } = encodeTexts([{ body: '1' }, { body: '2' }])
    expect(() => decodeTexts(Buffer.from(bytes), 3)).toThrow('a block has not 3 entries')
    expect(() => decodeTexts(Buffer.from(bytes).subarray(0, 3), 2)).toThrow('a block has not 2 entries')
  })
})

describe('the first lines', () => {
  const bytes = Buffer.from(encodeTexts([{ body: '11' }, { body: '2222' }, { body: '3' }]).bytes)

  it.each([
    [9, 99, { lines: 3, length: 10 }],
    [2, 99, { lines: 2, length: 8 }],
    [9, 8, { lines: 2, length: 8 }],
    [9, 7, { lines: 1, length: 3 }],
    [9, 1, { lines: 1, length: 3 }],
  ])('are at most %i, of at most %i bytes but for the first', (linesMax, bytesMax, expected) => {
    expect(firstLines(bytes, linesMax, bytesMax)).toEqual(expected)
  })
})
