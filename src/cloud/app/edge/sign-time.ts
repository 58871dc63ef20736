/**
 * Signed time: fresh for each attempt, so that a device can narrow down what it knows of the time, and bound to the answer
 * that it goes with, so that an old time cannot be put beside another one.
 */
import type { z } from 'zod'
import type { signedTime } from '../../../protocol/edge/sync.ts'
import { sha256, signDocument } from '../../../protocol/signing.ts'
import type { KeyRing } from './key-ring.ts'

/** @param nonce what the device sent with this attempt. @param answer the signed answer. @param time POSIX ms */
export async function signTime(keys: KeyRing, nonce: string, answer: string, time: number): Promise<string> {
  const payload: z.input<typeof signedTime> = { nonce, time, answer: sha256(answer) }
  return signDocument('time', JSON.stringify(payload), keys.signer)
}
