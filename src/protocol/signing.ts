/**
 * Signed documents: compact JWS with an explicit type, so that one kind never passes as another. The key determines the
 * algorithm.
 */
import { type KeyObject, createPublicKey, generateKeyPairSync, hash, sign, verify } from 'node:crypto'
import { type JWK, calculateJwkThumbprint, decodeProtectedHeader } from 'jose'
import { z } from 'zod'
import { FRAME_HEADER_BYTES, compress, declaredLength, decompress } from './zstd.ts'

/** Stored in the JWS header `typ`. */
export type DocumentKind =
  | 'policy'
  | 'segment'
  | 'sync-answer'
  | 'attach-answer'
  | 'time'
  | 'key'
  | 'device-key'
  | 'device-key-possession'
  | 'device-key-answer'

export const SIGNING_ALGORITHMS = ['EdDSA', 'ES256'] as const

/** Public JWK: Ed25519 or P-256. Private members are refused. */
export const publicJwk = z
  .discriminatedUnion('kty', [
    z.strictObject({ kty: z.literal('OKP'), crv: z.literal('Ed25519'), x: z.string().max(64) }),
    z.strictObject({ kty: z.literal('EC'), crv: z.literal('P-256'), x: z.string().max(64), y: z.string().max(64) }),
  ])
  .meta({ id: 'PublicJwk' })
export type PublicJwk = z.infer<typeof publicJwk>

export interface Signer {
  readonly keyId: string
  /** Ed25519 or P-256. */
  readonly privateKey: KeyObject
}

/** P-256: signatures take three quarters of the time of Ed25519, their verification two thirds, and hardware modules have it. */
export function generateKey(): KeyObject {
  return generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey
}

export function isP256({ asymmetricKeyType, asymmetricKeyDetails }: KeyObject): boolean {
  return asymmetricKeyType === 'ec' && asymmetricKeyDetails?.namedCurve === 'prime256v1'
}

/** @param key Ed25519 or P-256 */
export function algorithmOf({ asymmetricKeyType }: KeyObject): (typeof SIGNING_ALGORITHMS)[number] {
  return asymmetricKeyType === 'ed25519' ? 'EdDSA' : 'ES256'
}

export function publicJwkOf(privateKey: KeyObject): PublicJwk {
  return publicJwk.parse(createPublicKey(privateKey).export({ format: 'jwk' }))
}

const typeHeader = (kind: DocumentKind): string => `tallygate-${kind}+jws`

/** Their entries are alike: compressed, a thousand of them take a seventeenth of the bytes to sign, send and verify. */
const COMPRESSED_TYPES: ReadonlySet<unknown> = new Set([typeHeader('segment')])

/** Bounds the memory that a malicious document can take, bytes. */
const DECOMPRESSED_BYTES_MAX = 8 * 1024 * 1024

/** Signs the exact text; that of a segment is compressed with Zstandard first. */
export async function signDocument(kind: DocumentKind, text: string, signer: Signer): Promise<string> {
  return signed(signedInput(kind, text, signer), signer)
}

/** The same document, signed by this key instead. */
export async function signAgain(document: string, signer: Signer): Promise<string> {
  return signed(`${headerPart(headerOf(document)?.typ, signer)}.${document.split('.')[1] ?? ''}`, signer)
}

function signed(input: string, { privateKey }: Signer): string {
  const signature = sign(digestOf(privateKey), Buffer.from(input), withFormat(privateKey))
  return `${input}.${signature.toString('base64url')}`
}

/** As {@link signDocument}, on another thread: the event loop continues, and no transaction waits for it. */
export async function signDocumentAside(kind: DocumentKind, text: string, signer: Signer): Promise<string> {
  const input = signedInput(kind, text, signer)
  const { privateKey } = signer
  const signature = await new Promise<Buffer>((resolve, reject) => {
    sign(digestOf(privateKey), Buffer.from(input), withFormat(privateKey), (error, signed) => {
      if (error === null) resolve(signed)
      else reject(error)
    })
  })
  return `${input}.${signature.toString('base64url')}`
}

function signedInput(kind: DocumentKind, text: string, signer: Signer): string {
  const typ = typeHeader(kind)
  const payload = COMPRESSED_TYPES.has(typ) ? compress(text) : Buffer.from(text)
  return `${headerPart(typ, signer)}.${payload.toString('base64url')}`
}

function headerPart(typ: unknown, { privateKey, keyId }: Signer): string {
  return Buffer.from(JSON.stringify({ alg: algorithmOf(privateKey), typ, kid: keyId })).toString('base64url')
}

/** Ed25519 includes its hash. */
function digestOf({ asymmetricKeyType }: KeyObject): 'sha256' | null {
  return asymmetricKeyType === 'ed25519' ? null : 'sha256'
}

/** The signature of a JWS is both numbers in sequence. Ed25519 has only this format. */
function withFormat(key: KeyObject): { readonly key: KeyObject; readonly dsaEncoding: 'ieee-p1363' } {
  return { key, dsaEncoding: 'ieee-p1363' }
}

interface OpenedJws {
  readonly header: Readonly<Record<string, unknown>>
  readonly payload: Buffer
}

const BASE64URL = /^[\w-]*$/

/** Undefined if signature or algorithm is wrong, or it is no compact JWS. Never throws on a bad one. */
export async function openJws(text: string, publicKey: KeyObject): Promise<OpenedJws | undefined> {
  const parts = text.split('.')
  const [head = '', body = '', signature = ''] = parts
  if (parts.length !== 3 || !parts.every((part) => BASE64URL.test(part))) return undefined
  const header = parseHeader(head)
  // No extension is supported, so none can be critical.
  if (header?.['alg'] !== algorithmOf(publicKey) || 'crit' in header) return undefined
  const isSigned = await new Promise<boolean>((resolve) => {
    verify(
      digestOf(publicKey),
      Buffer.from(`${head}.${body}`),
      withFormat(publicKey),
      Buffer.from(signature, 'base64url'),
      (error, isValid) => resolve(error === null && isValid),
    )
  })
  return isSigned ? { header, payload: Buffer.from(body, 'base64url') } : undefined
}

function parseHeader(part: string): OpenedJws['header'] | undefined {
  try {
    const header: unknown = JSON.parse(Buffer.from(part, 'base64url').toString('utf8'))
    return typeof header === 'object' && header !== null ? (header as OpenedJws['header']) : undefined
  } catch {
    return undefined
  }
}

/** Unverified key id of a document; undefined if it is not a JWS. */
export function namedKey(document: string): string | undefined {
  const kid = headerOf(document)?.kid
  return typeof kid === 'string' ? kid : undefined
}

function headerOf(document: string): ReturnType<typeof decodeProtectedHeader> | undefined {
  try {
    return decodeProtectedHeader(document)
  } catch {
    return undefined
  }
}

/** Unverified text, for documents that were verified before or are only shown. Undefined if not a JWS. */
export function unverifiedText(document: string): string | undefined {
  const payload = document.split('.')[1]
  if (payload === undefined) return undefined
  try {
    return uncompressed(Buffer.from(payload, 'base64url'), headerOf(document)?.typ).toString('utf8')
  } catch {
    return undefined
  }
}

/** Bytes of the text of a compressed document, which is not verified yet. Infinity: the document does not declare them. */
export function declaredTextLength(document: string): number {
  const begin = document.indexOf('.') + 1
  const head = document.slice(begin, begin + FRAME_HEADER_CHARACTERS)
  return declaredLength(Buffer.from(head, 'base64url')) ?? Infinity
}

/** In base64url. */
const FRAME_HEADER_CHARACTERS = (FRAME_HEADER_BYTES * 4) / 3

/** @throws Error if it is not compressed as documents of this type are, too long, or longer than it declares */
function uncompressed(payload: Buffer, type: unknown): Buffer {
  if (!COMPRESSED_TYPES.has(type)) return payload
  const bytes = decompress(payload, DECOMPRESSED_BYTES_MAX)
  if (bytes.length > (declaredLength(payload) ?? Infinity)) throw new Error('the document is longer than it declares')
  return bytes
}

/** The signed text; undefined if signature, algorithm or kind is wrong. Never throws on a bad document. */
export async function openDocument(
  kind: DocumentKind,
  document: string,
  publicKey: KeyObject,
): Promise<string | undefined> {
  const type = typeHeader(kind)
  // First, because to verify a signature takes far longer.
  if (parseHeader(document.slice(0, document.indexOf('.')))?.['typ'] !== type) return undefined
  const opened = await openJws(document, publicKey)
  if (opened === undefined) return undefined
  try {
    return UTF8.decode(uncompressed(opened.payload, type))
  } catch {
    return undefined
  }
}

const UTF8 = new TextDecoder('utf-8', { fatal: true })

/** RFC 7638 thumbprint, the id of pinned keys. */
export async function thumbprint(key: JWK): Promise<string> {
  return calculateJwkThumbprint(key, 'sha256')
}

/** Lower-case hexadecimal SHA-256 of the UTF-8 bytes. */
export function sha256(text: string): string {
  return hash('sha256', text, 'hex')
}

/** Hash of a ledger entry; covers its body and, through the previous hash, the whole chain. */
export function entryHash(previousHash: string, body: string): string {
  return sha256(`${previousHash}\n${body}`)
}

/** Previous hash of the first entry and segment of an epoch. */
export const CHAIN_START = '0'.repeat(64)

export const hashText = z.string().regex(/^[0-9a-f]{64}$/, 'must be a SHA-256 in lower-case hexadecimal')
