/** An administrator passes a one-time enrollment token to the device, which trusts the key fingerprints in it. */
import { z } from 'zod'
import { labels } from './labels.ts'
import { publicJwk } from '../signing.ts'
import { instant, plainText, uuid } from '../wire.ts'

/** Lists show it as the link to the device. */
const deviceName = plainText(100).regex(/\S/, 'must not be blank')

/** Body of `POST .../edge/api/v1/enrollment-tokens` (AdministrationAccess). */
export const enrollmentTokenRequest = z
  .strictObject({
    instanceIds: z.array(uuid).min(1).max(100),
    /** Default 24 h. */
    lifetimeMs: z
      .int()
      .min(60_000)
      .max(366 * 86_400_000)
      .optional(),
    name: deviceName.optional(),
    /** Of the device. One that is enrolled already keeps its other labels. */
    labels: labels.optional(),
  })
  .meta({ id: 'EnrollmentTokenRequest' })

export const enrollmentTokenResponse = z
  .strictObject({ token: z.string(), expiresAt: instant })
  .meta({ id: 'EnrollmentToken' })

export const ENROLLMENT_TOKEN_TYPE = 'tallygate-enrollment+jwt'

/** Claims of the enrollment token, a JWT that the cloud has signed. */
export const enrollmentClaims = z.object({
  jti: uuid,
  exp: z.int(),
  iat: z.int(),
  edge: z.url(),
  instances: z.array(uuid).min(1),
  pins: z.array(z.string()).min(1),
  name: z.string().optional(),
  labels: labels.optional(),
})

export const enrollmentRequest = z
  .strictObject({
    publicKey: publicJwk,
    name: deviceName.optional(),
  })
  .meta({ id: 'EnrollmentRequest' })

/** Idempotent for the same token and key; another key is refused. */
export const enrollmentResponse = z
  .strictObject({
    deviceId: uuid,
    instanceIds: z.array(uuid).min(1),
    /** The cloud's signing keys; the device keeps those pinned by the token. */
    trustedKeys: z.array(publicJwk).min(1),
    addresses: z.strictObject({
      /** `https://host/prefix/edge/api/v1` */
      edge: z.url(),
      /** `https://host/prefix/api` */
      service: z.url(),
      /** `mqtt://` or `mqtts://`; null without push. */
      push: z.url().nullable(),
    }),
  })
  .meta({ id: 'Enrollment' })
export type Enrollment = z.infer<typeof enrollmentResponse>
