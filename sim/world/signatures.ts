/**
 * Synchronous signatures: real ones complete in a thread pool's unpredictable sequence. They still bind text and key
 * pair, but are not secret.
 */
import crypto, { KeyObject, createHash, createPrivateKey, createPublicKey, hash } from 'node:crypto'
import { syncBuiltinESMExports } from 'node:module'
import type { CryptoKey } from 'jose'
import { type PublicJwk, type Signer, publicJwk } from '../../src/protocol/signing.ts'

type ToCryptoKey = KeyObject & {
  toCryptoKey(algorithm: { name: string }, extractable: boolean, usages: readonly string[]): CryptoKey
}

/** The public half stands for the key in a signature. */
const publicHalf = new WeakMap<CryptoKey | KeyObject, string>()
const imported = new Map<string, CryptoKey>()

export interface KeyPair {
  readonly signer: Signer
  readonly publicJwk: PublicJwk
  readonly publicKey: CryptoKey
}

const pairs = new Map<string, KeyPair>()

/** Deterministic by name. */
export function keyPair(name: string): KeyPair {
  const known = pairs.get(name)
  if (known !== undefined) return known
  const prefix = Buffer.from('302e020100300506032b657004220420', 'hex')
  const der = Buffer.concat([prefix, createHash('sha256').update(name).digest()])
  const secret = createPrivateKey({ key: der, format: 'der', type: 'pkcs8' })
  const { x } = createPublicKey(secret).export({ format: 'jwk' })
  const jwk = publicJwk.parse({ kty: 'OKP', crv: 'Ed25519', x })
  const privateKey = (secret as ToCryptoKey).toCryptoKey({ name: 'Ed25519' }, true, ['sign'])
  publicHalf.set(privateKey, x ?? '')
  const keyId = Buffer.from(hash('sha256', JSON.stringify({ crv: 'Ed25519', kty: 'OKP', x }), 'hex'), 'hex')
  const pair: KeyPair = {
    signer: { keyId: keyId.toString('base64url'), algorithm: 'EdDSA', privateKey },
    publicJwk: jwk,
    publicKey: importPublic(x ?? ''),
  }
  pairs.set(name, pair)
  return pair
}

function importPublic(x: string): CryptoKey {
  const known = imported.get(x)
  if (known !== undefined) return known
  const key = createPublicKey({ key: { kty: 'OKP', crv: 'Ed25519', x }, format: 'jwk' })
  const made = (key as ToCryptoKey).toCryptoKey({ name: 'Ed25519' }, true, ['verify'])
  publicHalf.set(made, x)
  imported.set(x, made)
  return made
}

function signature(key: CryptoKey | KeyObject, data: Uint8Array): Buffer {
  const x = publicHalf.get(key) ?? (key instanceof KeyObject ? xOf(key) : undefined)
  if (x === undefined) throw new Error('the key is one of the simulation')
  return createHash('sha512').update(x).update(data).digest()
}

function xOf(key: KeyObject): string {
  const { x = '' } = key.export({ format: 'jwk' })
  publicHalf.set(key, x)
  return x
}

interface Subtle {
  sign: (algorithm: unknown, key: CryptoKey, data: Uint8Array) => Promise<ArrayBuffer>
  verify: (algorithm: unknown, key: CryptoKey, made: Uint8Array, data: Uint8Array) => Promise<boolean>
  digest: (algorithm: string | { name: string }, data: Uint8Array) => Promise<ArrayBuffer>
  importKey: (format: string, jwk: { x?: string }) => Promise<CryptoKey>
}

interface Given {
  readonly key: KeyObject
}

type Signed = (error: Error | null, made: Buffer) => void

type Verified = (error: Error | null, isValid: boolean) => void

/** Replaces Web Crypto's and Node's in this process. Returns a function that restores them. */
export function signAtOnce(): () => void {
  const restoreNode = replaceNodes({
    sign: (_algorithm: unknown, data: Uint8Array, { key }: Given, done?: Signed) =>
      done === undefined ? signature(key, data) : done(null, signature(key, data)),
    verify: (_algorithm: unknown, data: Uint8Array, { key }: Given, made: Uint8Array, done: Verified) =>
      done(null, signature(key, data).equals(made)),
  })
  const subtle = Object.getPrototypeOf(globalThis.crypto.subtle) as Subtle
  const { sign, verify, digest, importKey } = subtle
  subtle.sign = async (_algorithm, key, data) => bytes(signature(key, data))
  subtle.verify = async (_algorithm, key, made, data) => signature(key, data).equals(Buffer.from(made))
  subtle.digest = async (algorithm, data) => {
    const name = typeof algorithm === 'string' ? algorithm : algorithm.name
    return bytes(createHash(name.replace('-', '')).update(data).digest())
  }
  subtle.importKey = async (format, { x }) => {
    if (format !== 'jwk' || x === undefined) throw new Error('keys come as JWK')
    return importPublic(x)
  }
  return () => {
    restoreNode()
    Object.assign(subtle, { sign, verify, digest, importKey })
  }
}

function replaceNodes(functions: Readonly<Record<'sign' | 'verify', unknown>>): () => void {
  const { sign, verify } = crypto
  const replace = (by: typeof functions): void => {
    Object.assign(crypto, by)
    syncBuiltinESMExports()
  }
  replace(functions)
  return () => replace({ sign, verify })
}

function bytes(buffer: Buffer): ArrayBuffer {
  return new Uint8Array(buffer).buffer
}
