/**
 * The keys of the twin. One of them signs whatever leaves; devices pin them by thumbprint at enrollment and learn of later
 * ones from signed policies. Several nodes and rotation are the business of whoever makes the ring.
 */
import type { CryptoKey } from 'jose'
import type { PublicJwk, Signer } from '../../protocol/signing.ts'

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
  /** By which a device goes from a key that it trusts to the one that signs: oldest first. */
  readonly introductions?: readonly string[]
}

/** A ring that can be replaced while it is used: whoever reads it reads the newest. */
export class LiveKeyRing implements KeyRing {
  #ring: KeyRing

  constructor(ring: KeyRing) {
    this.#ring = ring
  }

  get signer(): Signer {
    return this.#ring.signer
  }

  get trusted(): KeyRing['trusted'] {
    return this.#ring.trusted
  }

  get introductions(): readonly string[] {
    return this.#ring.introductions ?? []
  }

  /** Returns whether devices shall trust other keys than before. */
  replace(ring: KeyRing): boolean {
    const named = ({ trusted }: KeyRing): string => trusted.map(({ keyId }) => keyId).join(' ')
    const isOther = named(this.#ring) !== named(ring)
    this.#ring = ring
    return isOther
  }
}
