/**
 * Short-lived access tokens of the device, made by itself: a client token whose key is the device key. The wall clock of
 * a device can show anything, so their times follow the cloud's clock once the cloud has refused one for its time; that
 * clock comes unsigned and dates tokens only.
 */
import { SignJWT } from 'jose'
import type { Identity } from '../ledger/journal.ts'
import type { DeviceKeys } from './device-key.ts'
import type { LinkClock } from '../sync/ports.ts'

const LIFETIME_MS = 5 * 60_000

/** A token begins so much earlier than now, for a clock that is a little ahead. */
const BACKDATED_MS = 60_000

/** A token with less than this left is not used for another call. */
const LEFT_MIN_MS = 2 * 60_000

export class DeviceTokens {
  readonly #keys: Pick<DeviceKeys, 'current'>
  readonly #clock: Pick<LinkClock, 'wall' | 'sinceBoot'>
  #offsetMs = 0
  #cached: { readonly of: string; readonly token: string; readonly madeAt: number } | undefined

  constructor(keys: Pick<DeviceKeys, 'current'>, clock: Pick<LinkClock, 'wall' | 'sinceBoot'>) {
    this.#keys = keys
    this.#clock = clock
  }

  /** A token for calls by this device on its instances; the same one until it has little time left. */
  async token(device: Identity): Promise<string> {
    const { keyId } = this.#keys.current.signer
    const of = [keyId, device.deviceId, ...device.instanceIds].join(' ')
    const cached = this.#cached
    const age = cached === undefined ? Infinity : this.#clock.sinceBoot() - cached.madeAt
    if (cached?.of === of && age < LIFETIME_MS - LEFT_MIN_MS) return cached.token
    const madeAt = this.#clock.sinceBoot()
    const token = await this.fresh(device)
    this.#cached = { of, token, madeAt }
    return token
  }

  /** A token that nobody has seen yet. */
  async fresh(device: Identity): Promise<string> {
    const now = this.#clock.wall() + this.#offsetMs
    const { signer } = this.#keys.current
    const seconds = (ms: number): number => Math.floor(ms / 1000)
    return new SignJWT({
      aud: [...device.instanceIds],
      cnf: { jwk: { kid: signer.keyId, kty: 'CLIENT' } },
    })
      .setProtectedHeader({ alg: signer.algorithm, typ: 'JWT' })
      .setIssuer(device.deviceId)
      .setNotBefore(seconds(now - BACKDATED_MS))
      .setIssuedAt(seconds(now - BACKDATED_MS))
      .setExpirationTime(seconds(now + LIFETIME_MS))
      .sign(signer.privateKey)
  }

  /** The cloud refused a token for its time. @param cloudNow what the cloud's clock showed in that answer, POSIX ms */
  followCloudClock(cloudNow: number): void {
    this.#offsetMs = cloudNow - this.#clock.wall()
    this.#cached = undefined
  }
}
