/**
 * The key pair that is the device: it signs segments and tokens. Only the public half is ever shown to anybody. Another one
 * may follow it: it is made and durable before anybody hears of it, and used only after it has taken the place of this one.
 */
import type { PublicJwk, Signer } from '../../protocol/signing.ts'

export interface DeviceKey {
  /** `keyId` is the RFC 7638 thumbprint of the public half. */
  readonly signer: Signer
  readonly publicJwk: PublicJwk
}

export interface DeviceKeys {
  /** The one in use. */
  readonly current: DeviceKey
  /** The one that shall follow it; null: none is there. */
  readonly next: DeviceKey | null
  /** The next key, made where there is none; it would survive a power cut. @throws CodedError DEVICE_KEY_PROVIDED, STATE_UNWRITABLE */
  prepare(): Promise<DeviceKey>
  /** There is no next key any more, unless somebody else provides it. @throws CodedError STATE_UNWRITABLE */
  discard(): Promise<void>
  /** The next key takes the place of the one in use, durably. @throws CodedError STATE_UNWRITABLE */
  replace(): Promise<void>
}
