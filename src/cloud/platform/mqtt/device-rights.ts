/** A device may only subscribe to its own and its instances' topics, and publish its presence. */
import { deviceTopic, policyTopic, presenceTopic, readPresence } from '../../../protocol/push.ts'

export interface SignedIn {
  readonly deviceId: string
  readonly instanceIds: readonly string[]
}

/** Wildcards are not allowed. */
export function maySubscribe({ deviceId, instanceIds }: SignedIn, topic: string): boolean {
  return topic === deviceTopic(deviceId) || instanceIds.some((id) => topic === policyTopic(id))
}

export function mayPublish({ deviceId }: SignedIn, topic: string, payload: string | Uint8Array): boolean {
  return topic === presenceTopic(deviceId) && readPresence(payload) !== undefined
}
