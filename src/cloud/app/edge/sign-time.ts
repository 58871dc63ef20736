/** Signed time: fresh for each attempt, so that a device can narrow down what it knows of the time. */
import type { z } from 'zod'
import type { signedTime } from '../../../protocol/edge/sync.ts'
import { signDocument } from '../../../protocol/signing.ts'
import type { KeyRing } from './key-ring.ts'

/** @param nonce what the device sent with this attempt. @param time POSIX ms */
export async function signTime(keys: KeyRing, nonce: string, time: number): Promise<string> {
  const payload: z.input<typeof signedTime> = { nonce, time }
  return signDocument('time', JSON.stringify(payload), keys.signer)
}
