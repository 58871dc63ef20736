/** The twin's signing key, made at its first start and kept in a file of its own. */
import { createPublicKey } from 'node:crypto'
import { publicJwk, thumbprint } from '../../../protocol/signing.ts'
import type { KeyRing } from '../../app/edge/key-ring.ts'
import { openKeyFile } from './key-file.ts'

/** @throws CodedError KEY_UNUSABLE, STATE_UNWRITABLE */
export async function openKeyRing(path: string): Promise<KeyRing> {
  const { privateKey } = openKeyFile(path, 'Ed25519')
  const publicKey = createPublicKey(privateKey)
  const jwk = publicJwk.parse(publicKey.export({ format: 'jwk' }))
  const keyId = await thumbprint(jwk)
  return {
    signer: { keyId, algorithm: 'EdDSA', privateKey: privateKey.toCryptoKey('Ed25519', false, ['sign']) },
    trusted: [{ keyId, jwk, publicKey: publicKey.toCryptoKey('Ed25519', true, ['verify']) }],
  }
}
