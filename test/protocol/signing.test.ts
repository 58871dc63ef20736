import { randomBytes } from 'node:crypto'
import { zstdCompressSync } from 'node:zlib'
import { CompactSign, exportJWK, generateKeyPair } from 'jose'
import { beforeAll, describe, expect, it } from 'vitest'
import {
  type Signer,
  namedKey,
  openDocument,
  publicJwk,
  signDocument,
  thumbprint,
  unverifiedText,
} from '../../src/protocol/signing.ts'

let signer: Signer
let publicKey: CryptoKey

beforeAll(async () => {
  const { publicKey: verifies, privateKey } = await generateKeyPair('EdDSA')
  const { kty, crv, x } = await exportJWK(verifies)
  signer = { keyId: await thumbprint(publicJwk.parse({ kty, crv, x })), algorithm: 'EdDSA', privateKey }
  publicKey = verifies
})

const signBytes = (kind: string, payload: Uint8Array) =>
  new CompactSign(payload)
    .setProtectedHeader({ alg: 'EdDSA', typ: `tallygate-${kind}+jws`, kid: signer.keyId })
    .sign(signer.privateKey)

const payloadOf = (document: string) => Buffer.from(document.split('.')[1] ?? '', 'base64url')

describe.each(['segment', 'policy'] as const)('a signed document of kind %s', (kind) => {
  it('has exactly the text that was signed, and names its key', async () => {
    const text = `{"zählt":"${'ü'.repeat(1_000)}"}`
    const document = await signDocument(kind, text, signer)
    expect(await openDocument(kind, document, publicKey)).toBe(text)
    expect(unverifiedText(document)).toBe(text)
    expect(namedKey(document)).toBe(signer.keyId)
  })

  it('is not of another kind, nor of another key', async () => {
    const document = await signDocument(kind, '{}', signer)
    expect(await openDocument('time', document, publicKey)).toBeUndefined()
    const other = await generateKeyPair('EdDSA')
    expect(await openDocument(kind, document, other.publicKey)).toBeUndefined()
  })
})

describe('the payload of a segment', () => {
  it('is compressed: entries are alike', async () => {
    const entries = Array.from({ length: 1_000 }, (_, n) => JSON.stringify({ n, id: randomBytes(4).toString('hex') }))
    const text = JSON.stringify(entries)
    const [segment, policy] = [await signDocument('segment', text, signer), await signDocument('policy', text, signer)]
    expect(payloadOf(segment).length).toBeLessThan(text.length / 3)
    expect(payloadOf(policy).toString()).toBe(text)
  })

  it.each([
    ['is not compressed', () => Buffer.from('{}')],
    ['is cut off', () => zstdCompressSync('x'.repeat(1_000)).subarray(0, 10)],
    ['is empty', () => Buffer.alloc(0)],
    ['is no UTF-8', () => zstdCompressSync(Buffer.from([0xff, 0xfe]))],
    ['would take 16 MiB of memory', () => zstdCompressSync(Buffer.alloc(16 * 1024 * 1024, ' '))],
  ])('is not read if it %s', async (_what, payload) => {
    const document = await signBytes('segment', payload())
    expect(await openDocument('segment', document, publicKey)).toBeUndefined()
  })

  it('has no unverified text if it cannot be read', async () => {
    expect(unverifiedText(await signBytes('segment', Buffer.from('{}')))).toBeUndefined()
    expect(unverifiedText('no document')).toBeUndefined()
  })
})
