import { type CryptoKey, importJWK } from 'jose'
import type { PublicJwk } from '../../protocol/signing.ts'

export function algorithmOf(jwk: PublicJwk): 'EdDSA' | 'ES256' {
  return jwk.kty === 'OKP' ? 'EdDSA' : 'ES256'
}

const imported = new WeakMap<PublicJwk, Promise<CryptoKey | undefined>>()

/** Once for each object. Undefined when the coordinates are not a point on the curve. */
export async function importPublicKey(jwk: PublicJwk): Promise<CryptoKey | undefined> {
  const known = imported.get(jwk) ?? importJwk(jwk)
  imported.set(jwk, known)
  return known
}

async function importJwk(jwk: PublicJwk): Promise<CryptoKey | undefined> {
  try {
    const key = await importJWK(jwk, algorithmOf(jwk))
    return key instanceof Uint8Array ? undefined : key
  } catch {
    return undefined
  }
}
