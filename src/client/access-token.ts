/** Source of the claims: interface, Authentication; documentation on tokens. The service knows public keys only. */
import { createPrivateKey, createPublicKey, type KeyObject } from 'node:crypto'
import { SignJWT } from 'jose'
import { CodedError } from '../protocol/errors.ts'
import { isP256, thumbprint } from '../protocol/signing.ts'

export interface AccessTokenOptions {
  readonly kind: 'ADMIN' | 'CLIENT'
  /** PEM; an RSA key of at least 2048 bits or a P-256 key. */
  readonly privateKey: string
  readonly file?: string
  /** Id of the registered public key; default: its RFC 7638 thumbprint. */
  readonly keyId?: string
  readonly instanceIds: readonly string[]
  readonly issuer: string
  readonly now: number
  readonly lifetimeMs: number
}

/** Returns a JWT for the header `Authorization: Bearer`. @throws CodedError KEY_UNUSABLE */
export async function makeAccessToken(options: AccessTokenOptions): Promise<string> {
  const { file = 'The file' } = options
  const key = readKey(options.privateKey, file)
  const issuedAt = Math.floor(options.now / 1000)
  const cnf = { jwk: { kid: options.keyId ?? (await keyIdOf(key)), kty: options.kind } }
  return new SignJWT(options.kind === 'CLIENT' ? { cnf, aud: [...options.instanceIds] } : { cnf })
    .setProtectedHeader({ alg: accessTokenAlgorithm(key, file), typ: 'JWT' })
    .setIssuer(options.issuer)
    .setNotBefore(issuedAt)
    .setIssuedAt(issuedAt)
    .setExpirationTime(issuedAt + Math.ceil(options.lifetimeMs / 1000))
    .sign(key)
}

function readKey(pem: string, file: string): KeyObject {
  try {
    return createPrivateKey(pem)
  } catch (cause) {
    throw new CodedError('KEY_UNUSABLE', `${file} has no PEM private key, or the key has a passphrase.`, { cause })
  }
}

/** @throws CodedError KEY_UNUSABLE for a private or public key that the service does not accept */
export function accessTokenAlgorithm(key: KeyObject, file: string): 'ES256' | 'RS256' {
  if (isP256(key)) return 'ES256'
  const { modulusLength = 0 } = key.asymmetricKeyDetails ?? {}
  if (key.asymmetricKeyType === 'rsa' && modulusLength >= 2048) return 'RS256'
  throw new CodedError('KEY_UNUSABLE', `${file}: the key is neither an RSA key of 2048 bits or more nor a P-256 key.`)
}

async function keyIdOf(privateKey: KeyObject): Promise<string> {
  return thumbprint(createPublicKey(privateKey).export({ format: 'jwk' }))
}
