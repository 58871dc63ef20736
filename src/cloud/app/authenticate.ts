/**
 * Who calls: a JWT that an administrator or a client made with a private key whose public half is registered, or that a
 * device made with its own key. The stored key decides the algorithm. Source: contract, Authentication; facts on tokens;
 * docs/decisions/access-tokens.md.
 */
import { decodeJwt, errors, jwtVerify } from 'jose'
import { z } from 'zod'
import { CodedError } from '../../protocol/errors.ts'
import { keyInForce } from './change-keys.ts'
import { authenticateDevice } from './edge/authenticate-device.ts'
import type { Reader, Store } from './store.ts'
import { type VerificationKey, readVerificationKey } from './verification-key.ts'

export type AccessKind = 'ADMINISTRATION' | 'CLIENT'

export interface Principal {
  readonly kind: AccessKind
  readonly keyId: string
  /** In lower case; null: every instance. */
  readonly instances: ReadonlySet<string> | null
  /** Null unless a device calls. */
  readonly deviceId: string | null
}

/** Times of a token may be off by so much. */
const CLOCK_SKEW_S = 60

/** Parsed keys kept in memory. */
const KEYS_MAX = 1_000

const claims = z.object({
  iss: z.string(),
  nbf: z.number(),
  iat: z.number(),
  exp: z.number(),
  cnf: z.object({ jwk: z.object({ kid: z.string().min(1).max(256), kty: z.enum(['ADMIN', 'CLIENT']) }) }),
  aud: z.union([z.string(), z.array(z.string())]).optional(),
})

export class Authenticator {
  readonly #store: Pick<Store, 'read'>
  readonly #keys = new Map<string, VerificationKey>()

  constructor(store: Pick<Store, 'read'>) {
    this.#store = store
  }

  /**
   * @param authorization value of the header, if any
   * @throws CodedError TOKEN_MISSING, TOKEN_INVALID, TOKEN_NOT_IN_TIME, DEVICE_REVOKED
   */
  async authenticate(authorization: string | undefined, now: number): Promise<Principal> {
    if (authorization === undefined) throw new CodedError('TOKEN_MISSING', 'There is no Authorization header.')
    const token = /^Bearer +([\w.~+/=-]+) *$/i.exec(authorization)?.[1]
    if (token === undefined) throw new CodedError('TOKEN_MISSING', 'The Authorization header has no bearer token.')
    const { cnf, aud } = claimsOf(token)
    const { kid, kty } = cnf.jwk
    const found = await this.#store.read((reader) => findKey(reader, kid, kty))
    if (found?.kind === 'DEVICE') {
      const { device, instanceIds } = await authenticateDevice(found.device, token, now)
      return { kind: 'CLIENT', keyId: kid, instances: lower(instanceIds), deviceId: device.id }
    }
    const pem = found === undefined ? null : keyInForce(found.key, now)
    if (pem === null)
      throw new CodedError('TOKEN_INVALID', 'The token names a key that is not registered for its kind.')
    await verify(token, this.#key(pem), now)
    if (kty === 'ADMIN') return { kind: 'ADMINISTRATION', keyId: kid, instances: null, deviceId: null }
    if (aud === undefined) throw new CodedError('TOKEN_INVALID', 'A client token needs the claim aud.')
    return { kind: 'CLIENT', keyId: kid, instances: lower([aud].flat()), deviceId: null }
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

async function findKey(reader: Reader, kid: string, kty: 'ADMIN' | 'CLIENT') {
  const key = await reader.keys.get(kty === 'ADMIN' ? 'administration-key' : 'client-key', kid)
  if (key !== undefined) return { kind: 'REGISTERED', key } as const
  const device = kty === 'CLIENT' ? await reader.edge.devices.withKey(kid) : undefined
  return device === undefined ? undefined : ({ kind: 'DEVICE', device } as const)
}

/** The claims before anything is verified: they name the key. */
function claimsOf(token: string): z.infer<typeof claims> {
  let payload: unknown
  try {
    payload = decodeJwt(token)
  } catch (cause) {
    throw new CodedError('TOKEN_INVALID', 'The token is not a JWT.', { cause })
  }
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
      clockTolerance: CLOCK_SKEW_S,
    })
  } catch (cause) {
    const outOfTime =
      cause instanceof errors.JWTExpired || (cause instanceof errors.JWTClaimValidationFailed && cause.claim === 'nbf')
    throw outOfTime
      ? new CodedError('TOKEN_NOT_IN_TIME', 'The token has expired or is not valid yet.', { cause })
      : new CodedError('TOKEN_INVALID', 'The signature of the token does not fit its key.', { cause })
  }
}

function lower(ids: readonly string[]): ReadonlySet<string> {
  return new Set(ids.map((id) => id.toLowerCase()))
}
