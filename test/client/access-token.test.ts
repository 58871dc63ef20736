import { generateKeyPairSync, type KeyObject } from 'node:crypto'
import { calculateJwkThumbprint, decodeProtectedHeader, jwtVerify } from 'jose'
import { describe, expect, test } from 'vitest'
import { type AccessTokenOptions, makeAccessToken } from '../../src/client/access-token.ts'
import { CodedError } from '../../src/protocol/errors.ts'

const ec = generateKeyPairSync('ec', { namedCurve: 'P-256' })
const now = 1_800_000_000_500

const pem = (key: KeyObject, type: 'pkcs8' | 'sec1' = 'pkcs8') => key.export({ format: 'pem', type })

function make(changes: Partial<AccessTokenOptions> = {}) {
  return makeAccessToken({
    kind: 'ADMIN',
    privateKey: pem(ec.privateKey),
    instanceIds: [],
    issuer: 'producer.example',
    now,
    lifetimeMs: 3_600_000,
    ...changes,
  })
}

const verify = (token: string, key: KeyObject = ec.publicKey) =>
  jwtVerify(token, key, { currentDate: new Date(now + 60_000) })

test('an administration token carries the claims of the interface, times in seconds and no audience', async () => {
  const { payload } = await verify(await make({ keyId: 'key-1' }))
  expect(payload).toEqual({
    iss: 'producer.example',
    nbf: 1_800_000_000,
    iat: 1_800_000_000,
    exp: 1_800_003_600,
    cnf: { jwk: { kid: 'key-1', kty: 'ADMIN' } },
  })
})

test('a client token lists its instances as audience', async () => {
  const instanceIds = ['64d2028c-ae87-4069-a624-66089d957ef9', '64d2028c-ae87-4069-a624-66089d957efa']
  const { payload } = await verify(await make({ kind: 'CLIENT', instanceIds }))
  expect(payload.aud).toEqual(instanceIds)
  expect(payload).toMatchObject({ cnf: { jwk: { kty: 'CLIENT' } } })
})

test('without a key id the token names the thumbprint of the key', async () => {
  const { payload } = await verify(await make())
  const thumbprint = await calculateJwkThumbprint(ec.publicKey.export({ format: 'jwk' }))
  expect(payload).toMatchObject({ cnf: { jwk: { kid: thumbprint } } })
})

test('an RSA key signs too, and so does a P-256 key in the older PEM form', async () => {
  const rsa = generateKeyPairSync('rsa', { modulusLength: 2048 })
  const token = await make({ privateKey: pem(rsa.privateKey) })
  expect(decodeProtectedHeader(token).alg).toBe('RS256')
  await expect(verify(token, rsa.publicKey)).resolves.toBeDefined()
  await expect(verify(await make({ privateKey: pem(ec.privateKey, 'sec1') }))).resolves.toBeDefined()
})

describe('refused as KEY_UNUSABLE, without a word of the key:', () => {
  test.each([
    ['a public key', ec.publicKey.export({ format: 'pem', type: 'spki' })],
    ['any text', 'hello'],
    ['a short RSA key', pem(generateKeyPairSync('rsa', { modulusLength: 1024 }).privateKey)],
    ['another curve', pem(generateKeyPairSync('ec', { namedCurve: 'P-384' }).privateKey)],
    [
      'a key with a passphrase',
      ec.privateKey.export({ format: 'pem', type: 'pkcs8', cipher: 'aes-256-cbc', passphrase: 'x' }),
    ],
  ])('%s', async (_what, privateKey) => {
    const error = await make({ privateKey }).catch((thrown: unknown) => thrown)
    expect(error).toBeInstanceOf(CodedError)
    expect(error).toMatchObject({ code: 'KEY_UNUSABLE' })
    expect((error as CodedError).message).not.toContain(privateKey)
  })
})
