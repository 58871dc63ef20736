/**
 * Signed documents: compact JWS with an explicit type, so that one kind never passes as another. Fingerprints: SHA-256
 * of exact bytes. Only EdDSA (Ed25519) and ES256; the key determines the algorithm.
 */
import { hash } from 'node:crypto'
import {
  CompactSign,
  type CryptoKey,
  type JWK,
  calculateJwkThumbprint,
  compactVerify,
  decodeProtectedHeader,
} from 'jose'
import { z } from 'zod'
import { compress, decompress } from './zstd.ts'

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
  readonly algorithm: (typeof SIGNING_ALGORITHMS)[number]
  readonly privateKey: CryptoKey
}

const typeHeader = (kind: DocumentKind): string => `tallygate-${kind}+jws`

/** Their entries are alike: compressed, a thousand of them take a seventeenth of the bytes to sign, send and verify. */
const COMPRESSED_TYPES: ReadonlySet<unknown> = new Set([typeHeader('segment')])

/** Bounds the memory that a malicious document can take, bytes. */
const DECOMPRESSED_BYTES_MAX = 8 * 1024 * 1024

/** Signs the exact text; that of a segment is compressed with Zstandard first. */
export async function signDocument(kind: DocumentKind, text: string, signer: Signer): Promise<string> {
  const isCompressed = COMPRESSED_TYPES.has(typeHeader(kind))
  return new CompactSign(isCompressed ? compress(text) : new TextEncoder().encode(text))
    .setProtectedHeader({ alg: signer.algorithm, typ: typeHeader(kind), kid: signer.keyId })
    .sign(signer.privateKey)
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
    return textOf(Buffer.from(payload, 'base64url'), headerOf(document)?.typ).toString('utf8')
  } catch {
    return undefined
  }
}

/** @throws Error if it is not compressed as documents of this type are, or too long */
function textOf(payload: Buffer, type: unknown): Buffer {
  if (!COMPRESSED_TYPES.has(type)) return payload
  return decompress(payload, DECOMPRESSED_BYTES_MAX)
}

/** The signed text; undefined if signature, algorithm or kind is wrong. Never throws on a bad document. */
export async function openDocument(
  kind: DocumentKind,
  document: string,
  publicKey: CryptoKey,
): Promise<string | undefined> {
  try {
    const { payload, protectedHeader } = await compactVerify(document, publicKey, {
      algorithms: [...SIGNING_ALGORITHMS],
    })
    if (protectedHeader.typ !== typeHeader(kind)) return undefined
    return new TextDecoder('utf-8', { fatal: true }).decode(
      textOf(Buffer.from(payload.buffer, payload.byteOffset, payload.length), protectedHeader.typ),
    )
  } catch {
    return undefined
  }
}

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
