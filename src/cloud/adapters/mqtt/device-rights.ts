/** What a device may do at the broker: hear of itself and of its instances, and say whether it is there. Nothing else. */
import { deviceTopic, policyTopic, presence, presenceTopic } from '../../../protocol/push.ts'

/** A device that has signed in. */
export interface SignedIn {
  readonly deviceId: string
  readonly instanceIds: readonly string[]
}

/** Longest message of a device, bytes. */
const MESSAGE_BYTES_MAX = 256

/** Wildcards are no topic that a device has a right to. */
export function maySubscribe({ deviceId, instanceIds }: SignedIn, topic: string): boolean {
  return topic === deviceTopic(deviceId) || instanceIds.some((id) => topic === policyTopic(id))
}

export function mayPublish({ deviceId }: SignedIn, topic: string, payload: string | Uint8Array): boolean {
  if (topic !== presenceTopic(deviceId) || payload.length > MESSAGE_BYTES_MAX) return false
  try {
    return presence.safeParse(JSON.parse(Buffer.from(payload).toString('utf8'))).success
  } catch {
    return false
  }
}
