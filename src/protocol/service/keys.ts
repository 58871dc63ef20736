/** Authorization keys on the wire. Source: interface, Authentication; documentation on key management. */
import { z } from 'zod'
import { instant, pathText, plainText, readOnlyField, uuidInLowerCase } from '../wire.ts'
import { paging } from './instances.ts'

export const keyId = pathText

/** operator: devices, sessions, recovery. rules: instances, line items, configuration. keys: keys, so everything. */
export const ROLES = ['read', 'operator', 'rules', 'keys'] as const
export type Role = (typeof ROLES)[number]

const KEY_INSTANCES_MAX = 100

/** Extensions of this project. Absent when a key is saved: as before, or no limit for a new key. */
const roles = z.array(z.enum(ROLES)).min(1).max(ROLES.length).optional()
const instances = z.array(uuidInLowerCase).min(1).max(KEY_INSTANCES_MAX).nullable().optional()

const KEY_TYPES = ['administration-key', 'client-key'] as const

const fields = <Type extends (typeof KEY_TYPES)[number]>(type: Type) => ({
  id: keyId,
  publicKey: z.string().min(1).max(10_000),
  name: plainText(100).min(1).optional(),
  instances,
  type: z.literal(type).optional().meta({ readOnly: true }),
  created: readOnlyField,
  modified: readOnlyField,
})

const listOf = <Key extends z.ZodType<{ readonly id: string }>>(key: Key) =>
  z
    .array(key)
    .min(1)
    .max(100)
    .refine((keys) => new Set(keys.map(({ id }) => id)).size === keys.length, 'must not contain the same id twice')

export interface KeyToSave {
  readonly id: string
  readonly publicKey: string
  readonly name?: string | undefined
  readonly roles?: readonly Role[] | undefined
  readonly instances?: readonly string[] | null | undefined
}

/** Bodies of PUT `administration-keys` and `client-keys`. A key of the other type is refused, not converted. */
export const keysBodies: Readonly<Record<(typeof KEY_TYPES)[number], z.ZodType<readonly KeyToSave[]>>> = {
  'administration-key': listOf(
    z.strictObject({ ...fields('administration-key'), roles }).meta({ id: 'AdministrationKeyToSave' }),
  ),
  'client-key': listOf(z.strictObject(fields('client-key')).meta({ id: 'ClientKeyToSave' })),
}

export const keysQuery = z.object(paging)

const publicKey = z
  .strictObject({
    id: z.string(),
    name: z.string().optional(),
    roles,
    instances,
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
