/** Instances on the wire. Source: interface, Instances; documentation on instances and on paging. */
import { z } from 'zod'
import { instant, plainText, queryBoolean, readOnlyField, uuid } from '../wire.ts'

export const PAGE_SIZE_DEFAULT = 100
const PAGE_SIZE_MAX = 1_000

const queryInteger = (digits: RegExp, wire: Readonly<Record<string, number>>) =>
  z
    .string()
    .regex(digits, 'must be a whole number')
    .meta({ wire: { type: 'integer', ...wire } })
    .transform(Number)

/** A larger `size` is reduced to the maximum. */
export const paging = {
  next: queryInteger(/^\d{1,9}$/, { minimum: 0, maximum: 999_999_999 }).optional(),
  size: queryInteger(/^\d+$/, { minimum: 1 })
    .refine((size) => size >= 1, 'must be at least 1')
    .transform((size) => Math.min(size, PAGE_SIZE_MAX))
    .optional(),
}

const SHORT_NAME_MAX = 100

const SHORT_NAME_TOO_LONG = `must have at most ${SHORT_NAME_MAX} characters`

/** The limit is in code points, as people count characters. */
export const shortName = plainText(2 * SHORT_NAME_MAX, SHORT_NAME_TOO_LONG)
  .refine((text) => text !== '', 'must not be empty')
  .refine((text) => Array.from(text).length <= SHORT_NAME_MAX, SHORT_NAME_TOO_LONG)
  .meta({ wire: { type: 'string', minLength: 1, maxLength: SHORT_NAME_MAX } })

export const instanceBody = z
  .strictObject({
    shortName,
    accountId: plainText(256).min(1),
    id: readOnlyField,
    defaultInstance: readOnlyField,
    created: readOnlyField,
    modified: readOnlyField,
  })
  .meta({ id: 'NewInstance' })

export const instanceQuery = z
  .object({
    ...paging,
    accountId: plainText(256).min(1).optional(),
    default: queryBoolean.refine((value) => value, 'must be true').optional(),
  })
  .refine((query) => (query.accountId === undefined) === (query.default === undefined), {
    message: 'accountId and default=true must be given together',
  })

export const instance = z
  .strictObject({
    id: uuid,
    shortName: z.string(),
    accountId: z.string(),
    defaultInstance: z.boolean(),
    created: instant,
    modified: instant,
  })
  .meta({ id: 'Instance' })
export type InstanceWire = z.infer<typeof instance>

export const instancePage = z
  .strictObject({ content: z.array(instance), next: z.int().min(0) })
  .meta({ id: 'InstancePage', description: '`next` is 0 on the last page.' })
