/**
 * Registered public keys. The stored key decides the algorithms, so a token cannot choose. Source:
 * docs/decisions/access-tokens.md.
 */
import { type KeyObject, createPublicKey } from 'node:crypto'
import { isP256 } from '../../protocol/signing.ts'

export interface VerificationKey {
  readonly key: KeyObject
  readonly algorithms: readonly string[]
}

const RSA_BITS_MIN = 2_048
const RSA_ALGORITHMS = ['RS256', 'RS384', 'RS512', 'PS256']

const PUBLIC_KEY_PEM = /^\s*-----BEGIN PUBLIC KEY-----[A-Za-z0-9+/=\s]+-----END PUBLIC KEY-----\s*$/

/** Undefined unless a PEM SubjectPublicKeyInfo with an RSA key of at least 2048 bits or a P-256 key. */
export function readVerificationKey(pem: string): VerificationKey | undefined {
  // Node would also read other PEMs, such as private keys.
  if (!PUBLIC_KEY_PEM.test(pem)) return undefined
  let key: KeyObject
  try {
    key = createPublicKey(pem)
  } catch {
    return undefined
  }
  const { modulusLength = 0 } = key.asymmetricKeyDetails ?? {}
  if (key.asymmetricKeyType === 'rsa' && modulusLength >= RSA_BITS_MIN) return { key, algorithms: RSA_ALGORITHMS }
  if (isP256(key)) return { key, algorithms: ['ES256'] }
  return undefined
}
