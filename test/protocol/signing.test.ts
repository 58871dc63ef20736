import { type KeyObject, generateKeyPairSync, randomBytes, sign } from 'node:crypto'
import { zstdCompressSync } from 'node:zlib'
import { CompactSign, compactVerify } from 'jose'
import { beforeAll, describe, expect, it } from 'vitest'
import { compress } from '../../src/protocol/zstd.ts'
import {
  type Signer,
  declaredTextLength,
  generateKey,
  namedKey,
  openDocument,
  signDocument,
  signDocumentAside,
  unverifiedText,
} from '../../src/protocol/signing.ts'
import { newSigner } from '../support/new-signer.ts'

let signer: Signer
let publicKey: KeyObject

beforeAll(async () => {
  const made = await newSigner(generateKeyPairSync('ed25519').privateKey)
  signer = made.signer
  publicKey = made.publicKey
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
    const other = generateKeyPairSync('ed25519')
    expect(await openDocument(kind, document, other.publicKey)).toBeUndefined()
  })
})

describe('a document', () => {
  it('of another kind is refused without a look at its signature', async () => {
    const unused = new Proxy(publicKey, { get: () => expect.fail('the key is used') })
    expect(await openDocument('time', await signDocument('policy', '{}', signer), unused)).toBeUndefined()
  })

  it('is opened with a key of its algorithm, of either kind', async () => {
    const other = await newSigner(generateKey())
    const document = await signDocument('policy', '{}', other.signer)
    expect(await openDocument('policy', document, other.publicKey)).toBe('{}')
    expect(await openDocument('policy', document, publicKey)).toBeUndefined()
    const { payload } = await compactVerify(document, other.publicKey)
    expect(Buffer.from(payload).toString()).toBe('{}')
  })

  it('is signed alike on another thread', async () => {
    expect(await signDocumentAside('time', '{"a":1}', signer)).toBe(await signDocument('time', '{"a":1}', signer))
    const other = await newSigner(generateKey())
    const document = await signDocumentAside('time', '{}', other.signer)
    expect(await openDocument('time', document, other.publicKey)).toBe('{}')
  })

  it.each([
    ['names another algorithm', { alg: 'ES256' }],
    ['names no algorithm', { alg: undefined }],
    ['has an extension that must be understood', { crit: ['b64'], b64: true }],
  ])('is not opened if it %s', async (_what, header) => {
    const typ = 'tallygate-policy+jws'
    const signed = (part: object) => signedText(`${text({ alg: 'EdDSA', typ, ...part })}.${text({})}`)
    expect(await openDocument('policy', signed({}), publicKey)).toBe('{}')
    expect(await openDocument('policy', signed(header), publicKey)).toBeUndefined()
  })

  it('is not opened if it is no compact JWS, or changed', async () => {
    const document = await signDocument('policy', '{}', signer)
    const [header = '', payload = '', signature = ''] = document.split('.')
    for (const bad of [
      ...[
        '',
        'x',
        `${header}.${payload}`,
        `${document}.`,
        `${document}.x`,
        `${header}.${payload}.`,
        `.${payload}.${signature}`,
      ],
      ...[
        `${header}.${payload}.!${signature}`,
        `${header}.${payload}.${signature}AAAA`,
        `${header}.${text([])}.${signature}`,
      ],
      ...[`${text(null)}.${payload}.${signature}`, `${text('x')}.${payload}.${signature}`],
    ]) {
      expect(await openDocument('policy', bad, publicKey)).toBeUndefined()
    }
  })

  const text = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString('base64url')
  const signedText = (input: string): string =>
    `${input}.${sign(null, Buffer.from(input), signer.privateKey).toString('base64url')}`
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
    ['is longer than its first frame declares', () => Buffer.concat([compress('{'), compress('}')])],
    ['would take 16 MiB of memory', () => zstdCompressSync(Buffer.alloc(16 * 1024 * 1024, ' '))],
  ])('is not read if it %s', async (_what, payload) => {
    const document = await signBytes('segment', payload())
    expect(await openDocument('segment', document, publicKey)).toBeUndefined()
  })

  it('declares its length before it is verified, however short the document is', async () => {
    const text = JSON.stringify({ topUpRequests: Array<string>(100_000).fill('x') })
    const document = await signDocument('segment', text, signer)
    expect(document.length).toBeLessThan(1_000)
    expect(declaredTextLength(document)).toBe(text.length)
    expect(declaredTextLength(await signBytes('segment', Buffer.from('{}')))).toBe(Infinity)
    expect(declaredTextLength('no document')).toBe(Infinity)
  })

  it('has no unverified text if it cannot be read', async () => {
    expect(unverifiedText(await signBytes('segment', Buffer.from('{}')))).toBeUndefined()
    expect(unverifiedText('no document')).toBeUndefined()
  })
})
