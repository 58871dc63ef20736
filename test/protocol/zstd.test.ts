import { execFileSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { constants, createZstdCompress, zstdCompressSync, zstdDecompressSync } from 'node:zlib'
import { buffer } from 'node:stream/consumers'
import { describe, expect, it } from 'vitest'
import { compress, declaredLength, decompress } from '../../src/protocol/zstd.ts'
import fc from '../support/fast-check.ts'

const PARAMS = { [constants.ZSTD_c_compressionLevel]: 1, [constants.ZSTD_c_checksumFlag]: 1 }

/** A text like those that are compressed, but longer than what the library gets in one call. */
const LONG = Buffer.alloc(3 * 1024 * 1024, '{"account":"line/1"}')

/** Reads data with a prefix and compresses its text again, with Node’s own functions. */
const WITHOUT_KOFFI = `
  import { registerHooks } from 'node:module'
  let blocked = 0
  const resolve = (name, context, next) => {
    if (name !== 'koffi') return next(name, context)
    blocked += 1
    throw new Error('blocked')
  }
  registerHooks({ resolve })
  const { compress, decompress } = await import('${new URL('../../src/protocol/zstd.ts', import.meta.url).href}')
  const [data, prefix] = process.argv.slice(1).map((text) => Buffer.from(text, 'base64'))
  const text = decompress(data, Infinity, prefix)
  const again = compress(text, prefix).toString('base64')
  console.log(JSON.stringify({ blocked, text: text.toString('base64'), data: again }))
`

describe('what is compressed', () => {
  it('comes back exactly, also from Node’s own functions', () => {
    fc.assert(
      fc.property(fc.array(fc.string({ unit: 'grapheme' })), fc.nat(64), (parts, times) => {
        const text = Buffer.from(parts.join('\n').repeat(times))
        const data = compress(text)
        expect(decompress(data).equals(text)).toBe(true)
        expect(zstdDecompressSync(data).equals(text)).toBe(true)
      }),
    )
  })

  it.each([
    ['nothing', Buffer.alloc(0)],
    ['a long text', LONG],
    ['random bytes', randomBytes(300_000)],
  ])('has the same bytes as of Node’s own functions: %s', (_what, bytes) => {
    const data = compress(bytes)
    expect(data.equals(zstdCompressSync(bytes, { params: PARAMS, pledgedSrcSize: bytes.length }))).toBe(true)
    expect(decompress(data).equals(bytes)).toBe(true)
  })

  it('comes back only with the prefix that it was compressed with', () => {
    const prefix = randomBytes(2_000)
    const text = Buffer.concat([prefix.subarray(500), Buffer.from('a text')])
    const data = compress(text, prefix)
    expect(data.length).toBeLessThan(100)
    expect(decompress(data, Infinity, prefix).equals(text)).toBe(true)
    expect(zstdDecompressSync(data, { dictionary: prefix }).equals(text)).toBe(true)
    expect(() => decompress(data)).toThrow()
    expect(() => decompress(data, Infinity, randomBytes(2_000))).toThrow()
    const ofNode = zstdCompressSync(text, { params: PARAMS, dictionary: prefix })
    expect(decompress(ofNode, Infinity, prefix).equals(text)).toBe(true)
    expect(decompress(compress(text)).equals(text)).toBe(true)
  })

  it('comes back with its prefix if it is long, too', () => {
    const prefix = Buffer.from('{"account":"line/1"}')
    const data = compress(LONG, prefix)
    expect(decompress(data, Infinity, prefix).equals(LONG)).toBe(true)
  })

  it('comes back where the library cannot be called, and the reverse', () => {
    const prefix = randomBytes(2_000)
    const text = Buffer.concat([prefix.subarray(500), Buffer.from('a text')])
    const given = [compress(text, prefix), prefix].map((bytes) => bytes.toString('base64'))
    const output = execFileSync(process.execPath, ['--input-type=module', '--eval', WITHOUT_KOFFI, ...given])
    const { blocked, text: read, data } = JSON.parse(output.toString()) as Record<string, string>
    expect(blocked).toBe(1)
    expect(Buffer.from(read!, 'base64').equals(text)).toBe(true)
    expect(decompress(Buffer.from(data!, 'base64'), Infinity, prefix).equals(text)).toBe(true)
  })

  it('is not changed by later calls', () => {
    const first = compress('a text')
    const copy = Buffer.from(first)
    compress('another text')
    expect(first.equals(copy)).toBe(true)
  })
})

describe('the declared length', () => {
  it('is that of the text', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'grapheme' }), fc.constantFrom(0, 1, 2, 20, 300, 9_000, 90_000), (part, times) => {
        const text = Buffer.from(part.repeat(times))
        expect(declaredLength(compress(text))).toBe(text.length)
      }),
    )
    expect(declaredLength(compress(LONG))).toBe(LONG.length)
    expect(declaredLength(compress(LONG, LONG.subarray(0, 100)))).toBe(LONG.length)
  })

  it('can be unknown', async () => {
    const stream = createZstdCompress()
    stream.end('a text')
    expect(declaredLength(await buffer(stream))).toBeUndefined()
    for (const data of ['', 'a text', 'a text that is longer than a header']) {
      expect(declaredLength(Buffer.from(data))).toBeUndefined()
    }
  })
})

describe('data of others', () => {
  it('may lack its length, or have several frames', async () => {
    const stream = createZstdCompress()
    stream.end('a text')
    expect(decompress(await buffer(stream)).toString()).toBe('a text')
    expect(decompress(Buffer.concat([compress('a '), compress('text')])).toString()).toBe('a text')
  })

  it.each([
    ['is no compressed data', Buffer.from('a text')],
    ['is cut off', compress('a text'.repeat(100)).subarray(0, 20)],
    ['has a wrong checksum', Buffer.concat([compress('a text').subarray(0, -1), Buffer.of(0)])],
  ])('that %s is refused', (_why, data) => {
    expect(() => decompress(data)).toThrow()
  })

  it.each([1_000, 3 * 1024 * 1024])('that is too long is refused: %s bytes', (length) => {
    const data = compress(Buffer.alloc(length))
    expect(() => decompress(data, length - 1)).toThrow(/larger than/i)
    expect(decompress(data, length)).toHaveLength(length)
  })
})
