/**
 * Authenticates callers by JWTs. A token whose claim `iss` is the OpenID Connect issuer is checked as an ID token of that
 * issuer, and every other token as signed with a registered key: no token is tried in both ways. The stored key decides the
 * algorithm. Signatures are cached. Each request is checked against the keys that are registered now. Source: interface,
 * Authentication; documentation on tokens; docs/decisions/access-tokens.md.
 */
import { Buffer } from 'node:buffer'
import { type JWTPayload, decodeJwt, errors, jwtVerify } from 'jose'
import { z } from 'zod'
import { CodedError } from '../../protocol/errors.ts'
import { keyInForce } from './change-keys.ts'
import { Batcher, type Defer } from '../runtime/batcher.ts'
import { authenticateDevice } from '../devices/authenticate-device.ts'
import { TOKEN_SKEW_S } from '../devices/limits.ts'
import type { KnownDeviceKey } from '../storage/device-records.ts'
import type { KeyRecord, KeyVersion } from '../storage/records.ts'
import type { Store } from '../storage/store.ts'
import { type Principal, lowerCase } from './principal.ts'
import type { SignIn } from './sign-in.ts'
import { type VerificationKey, readVerificationKey } from './verification-key.ts'

const KEYS_MAX = 1_000

const TOKENS_MAX = 1_000

const LOOKUPS_MAX = 64

/** An id that the store cannot look up would fail a read shared with others. */
const keyId = z
  .string()
  .min(1)
  .max(256)
  .refine((text) => !text.includes('\0'))

const claims = z.object({
  iss: z.string(),
  nbf: z.number(),
  iat: z.number(),
  exp: z.number(),
  cnf: z.object({ jwk: z.object({ kid: keyId, kty: z.enum(['ADMIN', 'CLIENT']) }) }),
  aud: z.union([z.string(), z.array(z.string())]).optional(),
})

export interface AuthenticatorDeps {
  readonly store: Pick<Store, 'read'>
  readonly defer: Defer
  /** Called at the first use of an announced key: resolves when it has replaced the previous one. */
  readonly takeNextKey: (deviceId: string, thumbprint: string) => Promise<void>
  /** Null: administrators use keys only. */
  readonly signIn: SignIn | null
  /** Another number when registered keys must be read again. Null: they are read for each request. */
  readonly keysVersion?: () => number | null
}

export class Authenticator {
  /** Calls during a read share the next one. It starts after they arrive, so a revoked key is noticed. */
  readonly #lookups: Batcher<KeyName, FoundKey | undefined>
  readonly #found = new Map<string, { readonly version: number; readonly key: FoundKey }>()
  readonly #keys = new Map<string, VerificationKey>()
  /** By the value of the header, least recently used first. */
  readonly #verified = new Map<string, Verified>()
  readonly #deps: AuthenticatorDeps

  constructor(deps: AuthenticatorDeps) {
    const { store, defer } = deps
    this.#deps = deps
    this.#lookups = new Batcher({ defer, serve: (names) => findKeys(store, names), weightMax: LOOKUPS_MAX })
  }

  /**
   * @param authorization value of the header
   * @throws CodedError TOKEN_MISSING, TOKEN_INVALID, TOKEN_NOT_IN_TIME, DEVICE_REVOKED, DEVICE_KEY_REPLACED,
   * SIGN_IN_NOT_MAPPED, SIGN_IN_UNAVAILABLE
   */
  async authenticate(authorization: string | undefined, now: number): Promise<Principal> {
    const header = authorization ?? ''
    const known = this.#verified.get(header)
    const token = known?.token ?? bearerToken(authorization)
    const payload = known === undefined ? payloadOf(token) : null
    const { signIn } = this.#deps
    if (signIn !== null && payload?.iss === signIn.terms.issuer) return signIn.authenticate(token, now)
    const asserted = known?.claims ?? claimsOf(payload)
    const { kid } = asserted.cnf.jwk
    const found = await this.#find(asserted.cnf.jwk)
    if (found?.kind === 'DEVICE') {
      const { device, instanceIds } = await authenticateDevice(found.key, token, now)
      if (found.key.state === 'NEXT') await this.#deps.takeNextKey(device.id, kid)
      const identity = { keyId: kid, name: device.name, issuer: null, scope: null }
      return { kind: 'DEVICE', ...identity, instances: lowerCase(instanceIds), deviceId: device.id, device }
    }
    const key = found === undefined ? null : keyInForce(found.key, now)
    if (key === null)
      throw new CodedError('TOKEN_INVALID', 'The token names a key that is not registered for its kind.')
    const { pem } = key
    if (known?.pem === pem && isInTime(known.claims, now)) {
      this.#keep(header, known)
      return principalOf(known.claims, key)
    }
    await verify(token, this.#key(pem), now)
    const principal = principalOf(asserted, key)
    this.#keep(header, { token, claims: asserted, pem })
    return principal
  }

  async #find({ kid, kty }: KeyName): Promise<FoundKey | undefined> {
    // Before the read: a later change of the key is not in it.
    const version = this.#deps.keysVersion?.() ?? null
    const name = `${kty} ${kid}`
    const known = this.#found.get(name)
    if (known !== undefined && known.version === version) return known.key
    const key = await this.#lookups.submit({ kid, kty })
    if (version === null || key?.kind !== 'REGISTERED') return key
    if (this.#found.size >= KEYS_MAX) this.#found.clear()
    this.#found.set(name, { version, key })
    return key
  }

  #keep(header: string, verified: Verified): void {
    this.#verified.delete(header)
    if (this.#verified.size >= TOKENS_MAX) {
      const [oldest] = this.#verified.keys()
      if (oldest !== undefined) this.#verified.delete(oldest)
    }
    this.#verified.set(header, verified)
  }

  #key(pem: string): VerificationKey {
    const known = this.#keys.get(pem)
    if (known !== undefined) return known
    const key = readVerificationKey(pem)
    if (key === undefined) throw new Error('invariant: a registered key was judged when it was saved')
    if (this.#keys.size >= KEYS_MAX) this.#keys.clear()
    this.#keys.set(pem, key)
    return key
  }
}

/** @throws CodedError TOKEN_MISSING */
export function bearerToken(authorization: string | undefined): string {
  if (authorization === undefined) throw new CodedError('TOKEN_MISSING', 'There is no Authorization header.')
  const token = /^Bearer +([\w.~+/=-]+) *$/i.exec(authorization)?.[1]
  if (token === undefined) throw new CodedError('TOKEN_MISSING', 'The Authorization header has no bearer token.')
  return token
}

/** Turns HTTP Basic credentials into the bearer token that their password is; leaves other values as they are. */
export function bearerOf(authorization: string | undefined): string | undefined {
  const encoded = /^Basic +([A-Za-z0-9+/=_-]+) *$/i.exec(authorization ?? '')?.[1]
  if (encoded === undefined) return authorization
  const credentials = Buffer.from(encoded, 'base64').toString('utf8')
  return `Bearer ${credentials.slice(credentials.indexOf(':') + 1)}`
}

type Claims = z.infer<typeof claims>

type KeyName = Claims['cnf']['jwk']

type FoundKey =
  { readonly kind: 'REGISTERED'; readonly key: KeyRecord } | { readonly kind: 'DEVICE'; readonly key: KnownDeviceKey }

interface Verified {
  readonly token: string
  readonly claims: Claims
  readonly pem: string
}

async function findKeys(
  store: Pick<Store, 'read'>,
  names: readonly KeyName[],
): Promise<readonly PromiseSettledResult<FoundKey | undefined>[]> {
  return store.read(async (reader) => {
    const registered = new Map<string, KeyRecord>()
    for (const key of await reader.keys.withIds(idsOf(names))) registered.set(`${key.type} ${key.id}`, key)
    const others = names.filter(({ kid, kty }) => kty === 'CLIENT' && !registered.has(`client-key ${kid}`))
    const devices = await reader.edge.devices.withKeys(idsOf(others))
    return names.map(({ kid, kty }) => {
      const key = registered.get(`${kty === 'ADMIN' ? 'administration-key' : 'client-key'} ${kid}`)
      if (key !== undefined) return { status: 'fulfilled', value: { kind: 'REGISTERED', key } }
      const found = kty === 'CLIENT' ? devices.get(kid) : undefined
      return { status: 'fulfilled', value: found === undefined ? undefined : { kind: 'DEVICE', key: found } }
    })
  })
}

function idsOf(names: readonly KeyName[]): readonly string[] {
  return [...new Set(names.map(({ kid }) => kid))]
}

/** @throws CodedError TOKEN_INVALID for a client without instances */
function principalOf({ cnf, aud }: Claims, { name, roles, instances }: KeyVersion): Principal {
  const { kid, kty } = cnf.jwk
  const scope = instances === null ? null : lowerCase(instances)
  const identity = { keyId: kid, name, issuer: null, scope, deviceId: null }
  if (kty === 'ADMIN') {
    return { kind: 'ADMINISTRATOR', ...identity, rights: [{ roles, instances: scope }], instances: null }
  }
  if (aud === undefined) throw new CodedError('TOKEN_INVALID', 'A client token needs the claim aud.')
  return { kind: 'CLIENT', ...identity, instances: lowerCase([aud].flat()) }
}

/** Without tolerance: a token slightly out of time is verified again. */
function isInTime({ nbf, exp }: Claims, now: number): boolean {
  return nbf * 1_000 <= now && now < exp * 1_000
}

function payloadOf(token: string): JWTPayload {
  try {
    return decodeJwt(token)
  } catch (cause) {
    throw new CodedError('TOKEN_INVALID', 'The token is not a JWT.', { cause })
  }
}

function claimsOf(payload: JWTPayload | null): Claims {
  const parsed = claims.safeParse(payload)
  if (parsed.success) return parsed.data
  throw new CodedError(
    'TOKEN_INVALID',
    'The token lacks one of the claims iss, nbf, iat, exp and cnf, or has another type.',
  )
}

async function verify(token: string, { key, algorithms }: VerificationKey, now: number): Promise<void> {
  try {
    await jwtVerify(token, key, {
      algorithms: [...algorithms],
      currentDate: new Date(now),
      clockTolerance: TOKEN_SKEW_S,
    })
  } catch (cause) {
    const outOfTime =
      cause instanceof errors.JWTExpired || (cause instanceof errors.JWTClaimValidationFailed && cause.claim === 'nbf')
    throw outOfTime
      ? new CodedError('TOKEN_NOT_IN_TIME', 'The token has expired or is not valid yet.', { cause })
      : new CodedError('TOKEN_INVALID', 'The signature of the token does not fit its key.', { cause })
  }
}
