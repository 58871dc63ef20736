import { describe, expect, it } from 'vitest'
import { JSON_DEPTH_MAX, isTooDeep, parseJson } from '../../src/protocol/parse-json.ts'

const nested = (levels: number, inside = ''): string =>
  `${'[{"a":'.repeat(levels / 2)}[${inside}]${'}]'.repeat(levels / 2)}`

describe('JSON of somebody else', () => {
  it('is read as it stands', () => {
    expect(parseJson('{"a":[1,null,"["]}')).toEqual({ a: [1, null, '['] })
    expect(parseJson('null')).toBeNull()
  })

  it('is undefined where it is none', () => {
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
