/** Authorization keys on the wire. Source: interface, Authentication; documentation on key management. */
import { z } from 'zod'
import { instant, pathText } from '../wire.ts'
import { paging } from './instances.ts'

export const keyId = pathText(256)

/** Body of PUT `administration-keys` and `client-keys`. */
export const keysBody = z
  .array(z.strictObject({ id: keyId, publicKey: z.string().min(1).max(10_000) }).meta({ id: 'KeyToSave' }))
  .min(1)
  .max(100)
  .refine((keys) => new Set(keys.map(({ id }) => id)).size === keys.length, 'must not contain the same id twice')

export const keysQuery = z.strictObject(paging)

const publicKey = z
  .strictObject({
    id: z.string(),
    type: z.enum(['administration-key', 'client-key']),
    publicKey: z.string(),
    created: instant,
    modified: instant,
  })
  .meta({ id: 'PublicKey', description: '`publicKey` is PEM.' })
export type PublicKeyWire = z.infer<typeof publicKey>

export const publicKeys = z.array(publicKey)

export const publicKeyPage = z
  .strictObject({ keys: publicKeys, next: z.int().min(0) })
  .meta({ id: 'PublicKeyPage', description: '`next` is 0 on the last page.' })

export const KEY_DELETED = { message: 'Key deleted' }
export const keyDeleted = z.strictObject({ message: z.literal(KEY_DELETED.message) })
