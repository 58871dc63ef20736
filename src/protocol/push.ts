/** Change notifications over MQTT say that something changed, not what: they carry no authority. */
import { z } from 'zod'
import { parseJson } from './parse-json.ts'
import { uuid } from './wire.ts'

const TOPIC_ROOT = 'tallygate/v1'

/** Retained: newest policy revision of an instance. */
export const policyTopic = (instanceId: string): string => `${TOPIC_ROOT}/instances/${instanceId}/policy`

/** Not retained: this device should sync now. */
export const deviceTopic = (deviceId: string): string => `${TOPIC_ROOT}/devices/${deviceId}/notification`

/** Retained, last will: whether the device's agent is connected. */
export const presenceTopic = (deviceId: string): string => `${TOPIC_ROOT}/devices/${deviceId}/presence`

export const EVERY_PRESENCE = `${TOPIC_ROOT}/devices/+/presence`

export const policyNotification = z.strictObject({ instanceId: uuid, revision: z.int().min(1) })
export const deviceNotification = z.strictObject({ reason: z.enum(['session', 'sync']) })
export const presence = z.strictObject({ online: z.boolean() })

const PRESENCE_BYTES_MAX = 256

export function readPresence(payload: string | Uint8Array): z.infer<typeof presence> | undefined {
  if (Buffer.byteLength(payload) > PRESENCE_BYTES_MAX) return undefined
  return presence.safeParse(parseJson(Buffer.from(payload).toString('utf8'))).data
}
