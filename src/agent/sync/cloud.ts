/**
 * The cloud as the link sees it: one method for each call, answers parsed but not yet believed. A method rejects with a
 * CodedError: CLOUD_UNREACHABLE when there was no usable answer (the fact `retryAfterMs` says how long the cloud asked to
 * be left alone), otherwise the code that the cloud gave. None of them changes anything on the device.
 */
import type { z } from 'zod'
import type { attachRequest } from '../../protocol/edge/attach.ts'
import type { keyChangeRequest, keyLinksRequest } from '../../protocol/edge/device-key.ts'
import type { Enrollment, enrollmentRequest } from '../../protocol/edge/enrollment.ts'
import type { signedAnswer, syncRequest } from '../../protocol/edge/sync.ts'
import type { Identity } from '../ledger/journal.ts'

export type SignedAnswer = z.infer<typeof signedAnswer>

export type PolicyAnswer =
  /** The revision that the device named is still the newest. */
  { readonly kind: 'UNCHANGED' } | { readonly kind: 'DOCUMENT'; readonly document: string }

/** What the cloud says of a session of its service API. */
export type Heartbeat =
  | { readonly kind: 'ALIVE' }
  /** Busy with a charge or a refund: ask again later. */
  | { readonly kind: 'LOCKED' }
  /** It operates no more. `state` in the cloud's words, `UNKNOWN` when it does not know the session. */
  | { readonly kind: 'ENDED'; readonly state: 'TERMINATED' | 'FAILED' | 'DISCONNECTED' | 'UNKNOWN' }

export interface Cloud {
  enroll(
    edgeUrl: string,
    enrollmentToken: string,
    request: z.input<typeof enrollmentRequest>,
    signal: AbortSignal,
  ): Promise<Enrollment>
  attach(device: Identity, request: z.input<typeof attachRequest>, signal: AbortSignal): Promise<SignedAnswer>
  sync(device: Identity, request: z.input<typeof syncRequest>, signal: AbortSignal): Promise<SignedAnswer>
  /** @throws CodedError DEVICE_KEY_REFUSED among others */
  announceKey(device: Identity, request: z.input<typeof keyChangeRequest>, signal: AbortSignal): Promise<SignedAnswer>
  showKeyLinks(device: Identity, request: z.input<typeof keyLinksRequest>, signal: AbortSignal): Promise<SignedAnswer>
  /** @param knownRevision the one in force on the device; 0 for none */
  policy(device: Identity, instanceId: string, knownRevision: number, signal: AbortSignal): Promise<PolicyAnswer>
  /** Introductions of the cloud’s signing keys, oldest first; unbelieved. */
  signingKeys(device: Identity, signal: AbortSignal): Promise<readonly string[]>
  /**
   * The id of the session.
   *
   * @param opening the same gives the same session
   */
  openSession(device: Identity, instanceId: string, opening: string, signal: AbortSignal): Promise<string>
  heartbeat(device: Identity, instanceId: string, sessionId: string, signal: AbortSignal): Promise<Heartbeat>
  /** Resolves as well when the cloud no longer knows the session. */
  closeSession(device: Identity, instanceId: string, sessionId: string, signal: AbortSignal): Promise<void>
}
