/**
 * Answers are parsed but not verified. Methods reject with a CodedError: CLOUD_UNREACHABLE without a usable answer
 * (detail `retryAfterMs`: the requested wait), otherwise the cloud's code.
 */
import type { z } from 'zod'
import type { attachRequest } from '../../protocol/edge/attach.ts'
import type { keyChangeRequest, keyLinksRequest } from '../../protocol/edge/device-key.ts'
import type { Enrollment, enrollmentRequest } from '../../protocol/edge/enrollment.ts'
import type { PolicyRequest } from '../../protocol/edge/policy-document.ts'
import type { signedAnswer, syncRequest } from '../../protocol/edge/sync.ts'
import type { Identity } from '../ledger/journal.ts'

export type SignedAnswer = z.infer<typeof signedAnswer>

export type PolicyAnswer =
  /** The given revision is still the newest. */
  { readonly kind: 'UNCHANGED' } | { readonly kind: 'DOCUMENT'; readonly document: string }

export type Heartbeat =
  | { readonly kind: 'ALIVE' }
  /** Busy with a charge or refund: try again later. */
  | { readonly kind: 'LOCKED' }
  /** `state` as in the service API; `UNKNOWN`: the cloud does not know the session. */
  | { readonly kind: 'ENDED'; readonly state: 'TERMINATED' | 'FAILED' | 'DISCONNECTED' | 'UNKNOWN' }

export type CalledDevice = Pick<Identity, 'deviceId' | 'instanceIds' | 'edgeUrl'>

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
  showKeyLinks(
    device: CalledDevice,
    request: z.input<typeof keyLinksRequest>,
    signal: AbortSignal,
  ): Promise<SignedAnswer>
  /** @throws CodedError AGENT_ENGINE_OLD, CLOUD_ENGINE_OLD among others */
  policy(device: Identity, request: PolicyRequest, signal: AbortSignal): Promise<PolicyAnswer>
  /** Introductions of the cloud's signing keys, oldest first; not verified. */
  signingKeys(device: Identity, signal: AbortSignal): Promise<readonly string[]>
  /** Returns the session's id. @param opening idempotency key */
  openSession(device: Identity, instanceId: string, opening: string, signal: AbortSignal): Promise<string>
  heartbeat(device: Identity, instanceId: string, sessionId: string, signal: AbortSignal): Promise<Heartbeat>
  /** Also resolves when the cloud no longer knows the session. */
  closeSession(device: Identity, instanceId: string, sessionId: string, signal: AbortSignal): Promise<void>
}
