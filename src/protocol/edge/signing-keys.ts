/** Each signing key of the cloud is introduced by a document that the previous key signed. */
import { z } from 'zod'
import { publicJwk } from '../signing.ts'
import { instant } from '../wire.ts'

export const keyIntroduction = z.strictObject({ introduces: publicJwk, at: instant })

export const INTRODUCTIONS_MAX = 100

/** Answer of `GET .../edge/api/v1/signing-keys`. */
export const signingKeys = z
  .strictObject({
    introductions: z.array(z.string().max(4_000)).max(INTRODUCTIONS_MAX),
  })
  .meta({ id: 'SigningKeys' })
