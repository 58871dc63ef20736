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

/** Signs the exact text. */
export async function signDocument(kind: DocumentKind, text: string, signer: Signer): Promise<string> {
  return new CompactSign(new TextEncoder().encode(text))
    .setProtectedHeader({ alg: signer.algorithm, typ: typeHeader(kind), kid: signer.keyId })
    .sign(signer.privateKey)
}

/** Unverified key id of a document; undefined if it is not a JWS. */
export function namedKey(document: string): string | undefined {
  try {
    const { kid } = decodeProtectedHeader(document)
    return typeof kid === 'string' ? kid : undefined
  } catch {
    return undefined
  }
}

/** Unverified text, for documents that were verified before or are only shown. Undefined if not a JWS. */
export function unverifiedText(document: string): string | undefined {
  const payload = document.split('.')[1]
  return payload === undefined ? undefined : Buffer.from(payload, 'base64url').toString('utf8')
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
    return protectedHeader.typ === typeHeader(kind)
      ? new TextDecoder('utf-8', { fatal: true }).decode(payload)
      : undefined
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
