/** What a device may do at the broker: hear of itself and of its instances, and say whether it is there. Nothing else. */
import { deviceTopic, policyTopic, presenceTopic, readPresence } from '../../../protocol/push.ts'

/** A device that has signed in. */
export interface SignedIn {
  readonly deviceId: string
  readonly instanceIds: readonly string[]
}

/** Wildcards are no topic that a device has a right to. */
export function maySubscribe({ deviceId, instanceIds }: SignedIn, topic: string): boolean {
  return topic === deviceTopic(deviceId) || instanceIds.some((id) => topic === policyTopic(id))
}

export function mayPublish({ deviceId }: SignedIn, topic: string, payload: string | Uint8Array): boolean {
  return topic === presenceTopic(deviceId) && readPresence(payload) !== undefined
}
