/** The cloud's signing keys. Devices pin them at enrollment and learn of later ones from signed policies. */
import type { KeyObject } from 'node:crypto'
import type { PublicJwk, Signer } from '../../protocol/signing.ts'

export interface TrustedKey {
  readonly keyId: string
  readonly jwk: PublicJwk
  readonly publicKey: KeyObject
}

export interface Keyring {
  readonly signer: Signer
  /** Keys that devices accept: the signer first, then later and earlier signers. */
  readonly trusted: readonly [TrustedKey, ...TrustedKey[]]
  /** They lead a device from a key that it trusts to the signer: oldest first. */
  readonly introductions?: readonly string[]
}

export class LiveKeyring implements Keyring {
  #current: Keyring

  constructor(initial: Keyring) {
    this.#current = initial
  }

  get signer(): Signer {
    return this.#current.signer
  }

  get trusted(): Keyring['trusted'] {
    return this.#current.trusted
  }

  get introductions(): readonly string[] {
    return this.#current.introductions ?? []
  }

  replace(next: Keyring): boolean {
    const named = ({ trusted }: Keyring): string => trusted.map(({ keyId }) => keyId).join(' ')
    const isOther = named(this.#current) !== named(next)
    this.#current = next
    return isOther
  }
}
