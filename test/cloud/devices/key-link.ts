// Links between keys of a device, as the device makes them, and as an attacker would.
import type { KeyChange, KeyLink } from '../../../src/protocol/edge/device-key.ts'
import { signDocument } from '../../../src/protocol/signing.ts'
import type { DeviceKeys } from '../sync/test-device.ts'

export interface KeyLinkOptions extends Partial<KeyChange> {
  readonly deviceId: string
  readonly epoch: number
  readonly from: DeviceKeys
  readonly to: DeviceKeys
  /** Signs in the place of the next key. */
  readonly possessedBy?: DeviceKeys
}

export const NONCE = 'nonce-of-16-chars'

export async function keyLink({ from, to, possessedBy = to, ...change }: KeyLinkOptions): Promise<KeyLink> {
  const payload: KeyChange = { nonce: NONCE, previous: from.signer.keyId, next: to.jwk, ...change }
  const text = JSON.stringify(payload)
  return {
    introduction: await signDocument('device-key', text, from.signer),
    possession: await signDocument('device-key-possession', text, possessedBy.signer),
  }
}
