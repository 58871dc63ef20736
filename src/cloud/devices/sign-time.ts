/** Signed with the response, so that an old time cannot be attached to another one. */
import type { z } from 'zod'
import type { DeviceSuspension } from '../../protocol/edge/device-suspension.ts'
import type { signedTime } from '../../protocol/edge/sync.ts'
import { sha256, signDocumentAside } from '../../protocol/signing.ts'
import type { Keyring } from './keyring.ts'

export interface SignedTime {
  readonly nonce: string
  readonly answer: string
  readonly time: number
  readonly suspension: DeviceSuspension | null
}

export async function signTime(keys: Keyring, { nonce, answer, time, suspension }: SignedTime): Promise<string> {
  // A stored suspension also has a name, which devices do not learn.
  const shown = suspension === null ? null : { state: suspension.state, since: suspension.since }
  const payload: z.input<typeof signedTime> = { nonce, time, answer: sha256(answer), suspension: shown }
  return signDocumentAside('time', JSON.stringify(payload), keys.signer)
}
