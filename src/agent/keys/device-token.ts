/** Short-lived access tokens. The device's time may be wrong: after a refusal for time, they follow the cloud's clock. */
import { SignJWT } from 'jose'
import { algorithmOf } from '../../protocol/signing.ts'
import type { DeviceKeys } from './device-key.ts'
import type { Clock } from '../runtime/clock.ts'

const LIFETIME_MS = 5 * 60_000

/** Tokens start this much earlier, for a clock that is slightly ahead. */
const BACKDATED_MS = 60_000

const LEFT_MIN_MS = 2 * 60_000

interface Device {
  readonly deviceId: string
  readonly instanceIds: readonly string[]
}

export class DeviceTokens {
  readonly #keys: Pick<DeviceKeys, 'current'>
  readonly #clock: Pick<Clock, 'reading' | 'sinceBoot'>
  /** The cloud's clock when the device booted, POSIX ms. Null: no token was refused for its time. */
  #cloudAtBoot: number | null = null
  #cached: { readonly of: string; readonly token: string; readonly madeAt: number } | undefined

  constructor(keys: Pick<DeviceKeys, 'current'>, clock: Pick<Clock, 'reading' | 'sinceBoot'>) {
    this.#keys = keys
    this.#clock = clock
  }

  async token(device: Device): Promise<string> {
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

  async fresh(device: Device): Promise<string> {
    const atBoot = this.#cloudAtBoot
    const now = atBoot === null ? this.#clock.reading().now : atBoot + this.#clock.sinceBoot()
    const { keyId, privateKey } = this.#keys.current.signer
    const seconds = (ms: number): number => Math.floor(ms / 1000)
    return new SignJWT({
      aud: [...device.instanceIds],
      cnf: { jwk: { kid: keyId, kty: 'CLIENT' } },
    })
      .setProtectedHeader({ alg: algorithmOf(privateKey), typ: 'JWT' })
      .setIssuer(device.deviceId)
      .setNotBefore(seconds(now - BACKDATED_MS))
      .setIssuedAt(seconds(now - BACKDATED_MS))
      .setExpirationTime(seconds(now + LIFETIME_MS))
      .sign(privateKey)
  }

  /** Call after a refusal for time. @param cloudNow the cloud's clock in that answer, POSIX ms */
  followCloudClock(cloudNow: number): void {
    this.#cloudAtBoot = cloudNow - this.#clock.sinceBoot()
    this.#cached = undefined
  }
}
