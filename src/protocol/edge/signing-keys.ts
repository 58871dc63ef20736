/**
 * How a device comes to believe another signing key of the cloud: each key is introduced by a document that the key before it
 * has signed. A device that was away meanwhile goes along the chain from a key that it trusts.
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
