/**
 * How a device becomes known. An administrator has the cloud make a one-time enrollment token; it reaches the device out
 * of band, so the fingerprints in it are what the device trusts from then on. The device makes its own key pair; only
 * the public part leaves it.
 */
import { z } from 'zod'
import { publicJwk } from '../signing.ts'
import { instant, plainText, uuid } from '../wire.ts'

/** Body of `POST .../edge/api/v1/enrollment-tokens` (AdministrationAccess). */
export const enrollmentTokenRequest = z
  .strictObject({
    instanceIds: z.array(uuid).min(1).max(100),
    /** How long the token can be used; default 24 h. */
    lifetimeMs: z
      .int()
      .min(60_000)
      .max(366 * 86_400_000)
      .optional(),
    /** Suggested name of the device. */
    name: plainText(100).optional(),
  })
  .meta({ id: 'EnrollmentTokenRequest' })

export const enrollmentTokenResponse = z
  .strictObject({ token: z.string(), expiresAt: instant })
  .meta({ id: 'EnrollmentToken' })

/** Claims of the enrollment token: a JWT of type `tallygate-enrollment+jwt` signed by the cloud. */
export const enrollmentClaims = z.object({
  jti: uuid,
  exp: z.int(),
  iat: z.int(),
  /** Base address of the edge area: `https://host/prefix/edge/api/v1`. */
  edge: z.url(),
  instances: z.array(uuid).min(1),
  /** Thumbprints of the cloud's signing keys that the device shall pin. */
  pins: z.array(z.string()).min(1),
  name: z.string().optional(),
})

/** Body of `POST .../edge/api/v1/enrollments`, with the enrollment token as bearer. */
export const enrollmentRequest = z
  .strictObject({
    publicKey: publicJwk,
    name: plainText(100).optional(),
  })
  .meta({ id: 'EnrollmentRequest' })

/** The same token with the same key gets the same answer again; with another key it is refused. */
export const enrollmentResponse = z
  .strictObject({
    deviceId: uuid,
    instanceIds: z.array(uuid).min(1),
    /** Signing keys of the cloud; the device keeps those whose thumbprint is pinned by the token. */
    trustedKeys: z.array(publicJwk).min(1),
    addresses: z.strictObject({
      /** `https://host/prefix/edge/api/v1` */
      edge: z.url(),
      /** `https://host/prefix/api` */
      service: z.url(),
      /** `mqtt://` or `mqtts://`; null when the cloud offers no push. */
      push: z.url().nullable(),
    }),
  })
  .meta({ id: 'Enrollment' })
export type Enrollment = z.infer<typeof enrollmentResponse>
