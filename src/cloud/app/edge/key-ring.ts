/**
 * The keys of the twin. One of them signs whatever leaves; devices pin them by thumbprint at enrollment and learn of later
 * ones from signed policies. Several nodes and rotation are the business of whoever makes the ring.
 */
import type { CryptoKey } from 'jose'
import type { PublicJwk, Signer } from '../../../protocol/signing.ts'

export interface TrustedKey {
  /** RFC 7638 thumbprint. */
  readonly keyId: string
  readonly jwk: PublicJwk
  readonly publicKey: CryptoKey
}

export interface KeyRing {
  readonly signer: Signer
  /** What devices shall accept: the key of the signer first, then keys that sign later or have signed before. */
  readonly trusted: readonly [TrustedKey, ...TrustedKey[]]
}
