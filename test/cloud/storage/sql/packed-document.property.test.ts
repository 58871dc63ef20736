import fc from '../../../support/fast-check.ts'
import { expect, it } from 'vitest'
import { packDocument, unpackDocument } from '../../../../src/cloud/storage/sql/packed-document.ts'

const part = fc.uint8Array().map((bytes) => Buffer.from(bytes).toString('base64url'))

it('returns every document unchanged', () => {
  const jws = fc.tuple(part, part, part).map((parts) => parts.join('.'))
  const long = fc
    .tuple(part, fc.uint8Array({ minLength: 3_000, maxLength: 5_000, size: 'max' }), part)
    .map(([head, bytes, tail]) => `${head}.${Buffer.from(bytes).toString('base64url')}.${tail}`)
  const other = fc.oneof(
    fc.string({ unit: 'grapheme' }),
    fc.array(part).map((parts) => parts.join('.')),
    jws.map((text) => `${text}=`),
  )
  fc.assert(
    fc.property(
      fc.oneof(
        jws,
        long,
        long.map((text) => `${text}=`),
        other,
      ),
      (document) => {
        expect(unpackDocument(packDocument(document))).toBe(document)
      },
    ),
  )
})

it('makes a document of repetitions short', () => {
  const payload = Buffer.from('{"entry":1}'.repeat(10_000)).toString('base64url')
  expect(packDocument(`header.${payload}.signature`).byteLength).toBeLessThan(200)
})
