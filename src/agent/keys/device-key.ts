/** The next key is durable before it is announced, and used only after it has replaced the current one. */
import type { KeyLink } from '../../protocol/edge/device-key.ts'
import type { PublicJwk, Signer } from '../../protocol/signing.ts'

export interface DeviceKey {
  readonly signer: Signer
  readonly publicJwk: PublicJwk
}

export interface DeviceKeys {
  readonly current: DeviceKey
  readonly next: DeviceKey | null
  /** The newest links that lead to the current key, oldest first. Provided keys usually have none. */
  readonly links: readonly KeyLink[]
  /** Creates the next key durably if there is none. @throws CodedError DEVICE_KEY_PROVIDED, STATE_UNWRITABLE */
  prepare(): Promise<DeviceKey>
  /** Discards the next key, unless an operator provides it. @throws CodedError STATE_UNWRITABLE */
  discard(): Promise<void>
  /** Makes the next key current, durably. @param links that lead to it. @throws CodedError STATE_UNWRITABLE */
  replace(links: readonly KeyLink[]): Promise<void>
}
