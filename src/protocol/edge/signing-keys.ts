/**
 * Rotation of the cloud's signing key: each key is introduced by a document signed by the previous key. A device that
 * was offline follows the chain from a key that it trusts.
 */
import { z } from 'zod'
import { publicJwk } from '../signing.ts'
import { instant } from '../wire.ts'

/** Signed as a document of kind `key`. */
export const keyIntroduction = z.strictObject({ introduces: publicJwk, at: instant })

export const INTRODUCTIONS_MAX = 100

/** Answer of `GET .../edge/api/v1/signing-keys`. */
export const signingKeys = z
  .strictObject({
    /** Compact JWS of kind `key`, oldest first. */
    introductions: z.array(z.string().max(4_000)).max(INTRODUCTIONS_MAX),
  })
  .meta({ id: 'SigningKeys' })
