/** The cloud's signing keys. Devices pin them at enrollment and learn of later ones from signed policies. */
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
  /** Keys that devices accept: the signer first, then later and earlier signers. */
  readonly trusted: readonly [TrustedKey, ...TrustedKey[]]
  /** They lead a device from a key that it trusts to the signer: oldest first. */
  readonly introductions?: readonly string[]
}

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

  /** Returns whether the trusted keys changed. */
  replace(ring: KeyRing): boolean {
    const named = ({ trusted }: KeyRing): string => trusted.map(({ keyId }) => keyId).join(' ')
    const isOther = named(this.#ring) !== named(ring)
    this.#ring = ring
    return isOther
  }
}
