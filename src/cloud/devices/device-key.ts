import { type KeyObject, createPublicKey } from 'node:crypto'
import type { PublicJwk } from '../../protocol/signing.ts'

const imported = new WeakMap<PublicJwk, KeyObject>()

/** Once for each object. Undefined when the coordinates are not a point on the curve. */
export function importPublicKey(jwk: PublicJwk): KeyObject | undefined {
  const known = imported.get(jwk)
  if (known !== undefined) return known
  try {
    const key = createPublicKey({ key: jwk, format: 'jwk' })
    imported.set(jwk, key)
    return key
  } catch {
    return undefined
  }
}
