/**
 * How a device changes its key. A link leads from one key to the next: two documents over the same text, of which the key
 * before has signed one and the next key the other. It is bound to the device, its incarnation and a nonce; it holds no
 * secret, and is worth nothing to whoever does not have the next key.
 */
import { z } from 'zod'
import { publicJwk } from '../signing.ts'
import { uuid } from '../wire.ts'

/** RFC 7638, SHA-256, base64url. */
export const thumbprintText = z.string().regex(/^[\w-]{43}$/, 'must be a thumbprint')

/** Links that a device keeps, the newest ones, and shows at a time. */
export const KEY_LINKS_MAX = 64

/** Text that both halves of a link sign. */
export const keyChange = z.strictObject({
  deviceId: uuid,
  /** The current one of the device; 0 before its first attach. */
  incarnation: z.int().min(0),
  /** Fresh for each attempt. */
  nonce: z.string().min(16).max(64),
  /** Of the key before. */
  previous: thumbprintText,
  next: publicJwk,
})
export type KeyChange = z.infer<typeof keyChange>

const document = z.string().min(1).max(4_000)

export const keyLink = z
  .strictObject({
    /** JWS of kind `device-key`, signed by the key before. */
    introduction: document,
    /** JWS of kind `device-key-possession`, signed by the next key: whoever introduces it has it. */
    possession: document,
  })
  .meta({ id: 'DeviceKeyLink' })
export type KeyLink = z.infer<typeof keyLink>

/** Body of `POST .../devices/{deviceId}/keys`, with a token of the key in use. `nonce` is that of the link. */
export const keyChangeRequest = z
  .strictObject({ nonce: z.string().min(16).max(64), link: keyLink })
  .meta({ id: 'DeviceKeyChange' })

/**
 * Body of `POST .../devices/{deviceId}/keys/links`, with a token of the newest key, which the cloud does not know: oldest
 * first. `nonce` is fresh for each attempt.
 */
export const keyLinksRequest = z
  .strictObject({ nonce: z.string().min(16).max(64), links: z.array(keyLink).min(1).max(KEY_LINKS_MAX) })
  .meta({ id: 'DeviceKeyLinks' })

/** Payload of the JWS of kind `device-key-answer`: the cloud takes this key as one of the device. */
export const keyAnswer = z.strictObject({ deviceId: uuid, nonce: z.string(), keyId: thumbprintText })
