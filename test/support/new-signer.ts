import { type KeyObject, createPublicKey } from 'node:crypto'
import { type PublicJwk, type Signer, generateKey, publicJwkOf, thumbprint } from '../../src/protocol/signing.ts'

export interface NewSigner {
  readonly signer: Signer
  readonly jwk: PublicJwk
  readonly publicKey: KeyObject
}

export async function newSigner(privateKey: KeyObject = generateKey()): Promise<NewSigner> {
  const jwk = publicJwkOf(privateKey)
  return { signer: { keyId: await thumbprint(jwk), privateKey }, jwk, publicKey: createPublicKey(privateKey) }
}
