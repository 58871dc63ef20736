/**
 * The key pair that is the device: it signs segments and tokens. Only the public half is ever shown to anybody.
 */
import type { PublicJwk, Signer } from '../../../protocol/signing.ts'

export interface DeviceKey {
  /** `keyId` is the RFC 7638 thumbprint of the public half. */
  readonly signer: Signer
  readonly publicJwk: PublicJwk
}
