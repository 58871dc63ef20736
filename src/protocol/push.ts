/**
 * Hints over MQTT. A hint says "look", never "what": it carries no authority, and a forged, repeated or withheld one
 * costs at most a pull or a delay.
 */
import { z } from 'zod'
import { parseJson } from './parse-json.ts'
import { uuid } from './wire.ts'

const TOPIC_ROOT = 'tallygate/v1'

/** Retained: the newest policy revision of an instance. */
export const policyTopic = (instanceId: string): string => `${TOPIC_ROOT}/instances/${instanceId}/policy`

/** Not retained: this device should sync now. */
export const deviceTopic = (deviceId: string): string => `${TOPIC_ROOT}/devices/${deviceId}/hint`

/** Retained, last will: whether the device's agent is connected. */
export const presenceTopic = (deviceId: string): string => `${TOPIC_ROOT}/devices/${deviceId}/presence`

/** Filter for the presence of all devices. */
export const EVERY_PRESENCE = `${TOPIC_ROOT}/devices/+/presence`

export const policyHint = z.strictObject({ instanceId: uuid, revision: z.int().min(1) })
export const deviceHint = z.strictObject({ reason: z.enum(['session', 'sync']) })
export const presence = z.strictObject({ online: z.boolean() })

/** Of a message that tells the presence of a device. */
const PRESENCE_BYTES_MAX = 256

/** What a message says of a device; undefined for one that is no presence. */
export function readPresence(payload: string | Uint8Array): z.infer<typeof presence> | undefined {
  if (Buffer.byteLength(payload) > PRESENCE_BYTES_MAX) return undefined
  return presence.safeParse(parseJson(Buffer.from(payload).toString('utf8'))).data
}
