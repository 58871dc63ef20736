/**
 * A link leads from one device key to the next: two documents over the same text, one signed by each key. It contains
 * no secret and is useless without the next key.
 */
import { z } from 'zod'
import { publicJwk } from '../signing.ts'
import { uuid } from '../wire.ts'

/** RFC 7638, SHA-256, base64url. */
export const thumbprintText = z.string().regex(/^[\w-]{43}$/, 'must be a thumbprint')

/** Newest links that a device keeps and can show. */
export const KEY_LINKS_MAX = 64

export const keyChange = z.strictObject({
  deviceId: uuid,
  /** Current epoch; 0 before the first attach. */
  epoch: z.int().min(0),
  nonce: z.string().min(16).max(64),
  previous: thumbprintText,
  next: publicJwk,
})
export type KeyChange = z.infer<typeof keyChange>

const document = z.string().min(1).max(4_000)

export const keyLink = z
  .strictObject({
    /** JWS of kind `device-key`, signed by the previous key. */
    introduction: document,
    /** JWS of kind `device-key-possession`, signed by the next key as proof of possession. */
    possession: document,
  })
  .meta({ id: 'DeviceKeyLink' })
export type KeyLink = z.infer<typeof keyLink>

/** Body of `POST .../devices/{deviceId}/keys`, authorized by the current key. */
export const keyChangeRequest = z
  .strictObject({ nonce: z.string().min(16).max(64), link: keyLink })
  .meta({ id: 'DeviceKeyChange' })

/**
 * Body of `POST .../devices/{deviceId}/keys/links`, authorized by the newest key, which the cloud does not know.
 * Oldest link first.
 */
export const keyLinksRequest = z
  .strictObject({ nonce: z.string().min(16).max(64), links: z.array(keyLink).min(1).max(KEY_LINKS_MAX) })
  .meta({ id: 'DeviceKeyLinks' })

/** Payload of the JWS of kind `device-key-answer`: the cloud accepts this key. */
export const keyAnswer = z.strictObject({ deviceId: uuid, nonce: z.string(), keyId: thumbprintText })
