/** Authorization keys on the wire. Source: interface, Authentication; documentation on key management. */
import { z } from 'zod'
import { instant, pathText, plainText, readOnlyField } from '../wire.ts'
import { paging } from './instances.ts'

export const keyId = pathText(256)

const KEY_TYPES = ['administration-key', 'client-key'] as const

/** Body of PUT `administration-keys` and `client-keys`. A key of the other type is refused, not converted. */
const keysBodyOf = (type: (typeof KEY_TYPES)[number]) =>
  z
    .array(
      z
        .strictObject({
          id: keyId,
          publicKey: z.string().min(1).max(10_000),
          /** An extension of this project. Default: that of the key which is replaced. */
          name: plainText(100).optional(),
          type: z.literal(type).optional().meta({ readOnly: true }),
          created: readOnlyField,
          modified: readOnlyField,
        })
        .meta({ id: type === 'administration-key' ? 'AdministrationKeyToSave' : 'ClientKeyToSave' }),
    )
    .min(1)
    .max(100)
    .refine((keys) => new Set(keys.map(({ id }) => id)).size === keys.length, 'must not contain the same id twice')

export const keysBodies = {
  'administration-key': keysBodyOf('administration-key'),
  'client-key': keysBodyOf('client-key'),
}

export const keysQuery = z.object(paging)

const publicKey = z
  .strictObject({
    id: z.string(),
    /** Absent: the key has none. */
    name: z.string().optional(),
    type: z.enum(KEY_TYPES),
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
