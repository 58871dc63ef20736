import { describe, expect, it } from 'vitest'
import { JSON_DEPTH_MAX, isTooDeep, jsonText, parseJson } from '../../src/protocol/parse-json.ts'

const nested = (levels: number, inside = ''): string =>
  `${'[{"a":'.repeat(levels / 2)}[${inside}]${'}]'.repeat(levels / 2)}`

describe('the text of a JSON body', () => {
  it('is what stands there without one byte order mark before it, and with every other one', () => {
    expect(jsonText(Buffer.from('\uFEFF{"a":"\uFEFF"}'))).toBe('{"a":"\uFEFF"}')
    expect(jsonText(Buffer.from('\uFEFF\uFEFF{}'))).toBe('\uFEFF{}')
    expect(jsonText(Buffer.from(''))).toBe('')
  })

  it('is undefined for what is not UTF-8, UTF-16 with its mark included', () => {
    expect(jsonText(Buffer.from([0x22, 0xff, 0x22]))).toBeUndefined()
    expect(jsonText(Buffer.from([0xff, 0xfe, 0x7b, 0x00, 0x7d, 0x00]))).toBeUndefined()
  })
})

describe('JSON from outside', () => {
  it('is read as it stands', () => {
    expect(parseJson('{"a":[1,null,"["]}')).toEqual({ a: [1, null, '['] })
    expect(parseJson('null')).toBeNull()
  })

  it('is undefined for text that is not JSON', () => {
    expect(parseJson('')).toBeUndefined()
    expect(parseJson('{"a":')).toBeUndefined()
  })

  it('nests as deep as the limit says, whatever stands in the innermost list, and no deeper', () => {
    for (const inside of ['', '1', '"["']) {
      expect(parseJson(nested(JSON_DEPTH_MAX - 2, `[${inside}]`))).toBeDefined()
      expect(parseJson(nested(JSON_DEPTH_MAX, inside))).toBeUndefined()
    }
    expect(parseJson('['.repeat(200_000) + ']'.repeat(200_000))).toBeUndefined()
  })

  it('may have any number of brackets beside each other, and in its texts', () => {
    const wide = JSON.stringify(Array.from({ length: 1_000 }, () => ({ text: '[[[[{{{{' })))
    expect(isTooDeep(wide, JSON.parse(wide))).toBe(false)
  })
})
