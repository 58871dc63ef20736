/**
 * Synchronous signatures: real ones complete in a thread pool's unpredictable sequence. They still bind text and key
 * pair, but are not secret.
 */
import crypto, { KeyObject, createHash, createPrivateKey, createPublicKey, hash } from 'node:crypto'
import { syncBuiltinESMExports } from 'node:module'
import { type PublicJwk, type Signer, publicJwk } from '../../src/protocol/signing.ts'

/** The public half stands for the key in a signature. */
const publicHalf = new WeakMap<KeyObject | CryptoKey, string>()

export interface KeyPair {
  readonly signer: Signer
  readonly publicJwk: PublicJwk
  readonly publicKey: KeyObject
}

const pairs = new Map<string, KeyPair>()

/** Deterministic by name. */
export function keyPair(name: string): KeyPair {
  const known = pairs.get(name)
  if (known !== undefined) return known
  const prefix = Buffer.from('302e020100300506032b657004220420', 'hex')
  const der = Buffer.concat([prefix, createHash('sha256').update(name).digest()])
  const privateKey = createPrivateKey({ key: der, format: 'der', type: 'pkcs8' })
  const publicKey = createPublicKey(privateKey)
  const jwk = publicJwk.parse(publicKey.export({ format: 'jwk' }))
  const { crv, kty, x } = jwk
  const keyId = Buffer.from(hash('sha256', JSON.stringify({ crv, kty, x }), 'hex'), 'hex').toString('base64url')
  const pair: KeyPair = { signer: { keyId, privateKey }, publicJwk: jwk, publicKey }
  pairs.set(name, pair)
  return pair
}

function signature(key: KeyObject | CryptoKey, data: Uint8Array): Buffer {
  const x = publicHalf.get(key) ?? (key instanceof KeyObject ? xOf(key) : undefined)
  if (x === undefined) throw new Error('invariant: the key was made from one of Node')
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
  const toCryptoKey = Reflect.get(KeyObject.prototype, 'toCryptoKey') as (...terms: unknown[]) => CryptoKey
  KeyObject.prototype.toCryptoKey = function (this: KeyObject, ...terms: unknown[]) {
    const made = toCryptoKey.apply(this, terms)
    publicHalf.set(made, xOf(this))
    return made
  }
  const subtle = Object.getPrototypeOf(globalThis.crypto.subtle) as Subtle
  const { sign, verify, digest } = subtle
  subtle.sign = async (_algorithm, key, data) => bytes(signature(key, data))
  subtle.verify = async (_algorithm, key, made, data) => signature(key, data).equals(Buffer.from(made))
  subtle.digest = async (algorithm, data) => {
    const name = typeof algorithm === 'string' ? algorithm : algorithm.name
    return bytes(createHash(name.replace('-', '')).update(data).digest())
  }
  return () => {
    restoreNode()
    KeyObject.prototype.toCryptoKey = toCryptoKey
    Object.assign(subtle, { sign, verify, digest })
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
