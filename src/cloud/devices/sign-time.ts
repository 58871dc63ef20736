/**
 * Signed time: fresh for each attempt, so that a device can narrow down what it knows of the time, and bound to the answer
 * that it goes with, so that an old time cannot be put beside another one.
 */
import type { z } from 'zod'
import type { DeviceSuspension } from '../../protocol/edge/device-hold.ts'
import type { signedTime } from '../../protocol/edge/sync.ts'
import { sha256, signDocument } from '../../protocol/signing.ts'
import type { KeyRing } from './key-ring.ts'

export interface SignedTime {
  /** What the device sent with this attempt. */
  readonly nonce: string
  /** The signed answer. */
  readonly answer: string
  /** POSIX ms. */
  readonly time: number
  readonly suspension: DeviceSuspension | null
}

export async function signTime(keys: KeyRing, { nonce, answer, time, suspension }: SignedTime): Promise<string> {
  const payload: z.input<typeof signedTime> = { nonce, time, answer: sha256(answer), suspension }
  return signDocument('time', JSON.stringify(payload), keys.signer)
}
