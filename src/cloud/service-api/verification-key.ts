/**
 * Registered public keys as they verify tokens. The stored key decides which algorithms it takes part in, so that a token
 * cannot choose. Source: docs/decisions/access-tokens.md.
 */
import { type KeyObject, createPublicKey } from 'node:crypto'

export interface VerificationKey {
  readonly key: KeyObject
  readonly algorithms: readonly string[]
}

const RSA_BITS_MIN = 2_048
const RSA_ALGORITHMS = ['RS256', 'RS384', 'RS512', 'PS256']

const PUBLIC_KEY_PEM = /^\s*-----BEGIN PUBLIC KEY-----[A-Za-z0-9+/=\s]+-----END PUBLIC KEY-----\s*$/

/** Undefined: not a PEM SubjectPublicKeyInfo of an RSA key of 2048 bits or more or of a P-256 key. */
export function readVerificationKey(pem: string): VerificationKey | undefined {
  // A PEM of another kind, such as a private key, would be read as well.
  if (!PUBLIC_KEY_PEM.test(pem)) return undefined
  let key: KeyObject
  try {
    key = createPublicKey(pem)
  } catch {
    return undefined
  }
  const { namedCurve, modulusLength = 0 } = key.asymmetricKeyDetails ?? {}
  if (key.asymmetricKeyType === 'rsa' && modulusLength >= RSA_BITS_MIN) return { key, algorithms: RSA_ALGORITHMS }
  if (key.asymmetricKeyType === 'ec' && namedCurve === 'prime256v1') return { key, algorithms: ['ES256'] }
  return undefined
}
