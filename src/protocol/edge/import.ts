/** Import of an instance that another service keeps. The rules: docs/how-to/migrate.md. */
import { z } from 'zod'
import { CONDITIONS_MAX, conditionInput } from '../service/conditions.ts'
import { ACTIONS_MAX, replacedAction } from '../service/actions.ts'
import { shortName } from '../service/instances.ts'
import { lineItemBodies } from '../service/line-items.ts'
import { microText, plainText, uuidInLowerCase } from '../wire.ts'

export const IMPORT_BODY_BYTES_MAX = 16 * 1024 * 1024

/** An import is one transaction, and others wait for it. */
const LINE_ITEMS_MAX = 5_000

const importedAction = replacedAction
  .extend({ id: uuidInLowerCase, used: microText.optional() })
  .meta({ id: 'ActionToImport', description: '`used`: micro-tokens consumed at the source.' })
export type ImportedAction = z.infer<typeof importedAction>

const bodyOf = <T extends z.ZodType>(lineItem: T) =>
  z
    .strictObject({
      /** Which service has the data, for the audit: its address. */
      source: plainText(500).min(1),
      /** False: only compare. */
      apply: z.boolean(),
      /** Permits adding the source's use to use of this service. */
      addUsed: z.boolean(),
      /** Permits lowering what was imported before, and removing actions with use. */
      lowerUsed: z.boolean(),
      instance: z.strictObject({
        shortName,
        accountId: plainText(256).min(1),
        defaultInstance: z.boolean(),
      }),
      conditions: z.array(conditionInput).max(CONDITIONS_MAX),
      lineItems: z
        .array(
          z.strictObject({
            lineItem,
            /** Micro-tokens consumed at the source; absent: unknown, nothing is imported. */
            used: microText.optional(),
            actions: z.array(importedAction).max(ACTIONS_MAX),
          }),
        )
        .max(LINE_ITEMS_MAX),
    })
    .meta({ id: 'InstanceToImport' })

export const importForm = bodyOf(lineItemBodies['v1.1'])

/** Line items are checked one by one, so that all problems are reported. */
export const importBody = bodyOf(z.unknown())
export type ImportBody = z.infer<typeof importBody>
export type ImportWire = z.input<typeof importBody>

const importChange = z
  .strictObject({
    /** Such as `line item ACT-1`. */
    object: z.string(),
    field: z.string(),
    /** Null: does not exist. */
    before: z.string().nullable(),
    after: z.string().nullable(),
  })
  .meta({ id: 'ImportChange' })
export type ImportChange = z.infer<typeof importChange>

export const importResult = z
  .strictObject({
    applied: z.boolean(),
    changes: z.array(importChange),
    /** Differences that stay, and consequences. */
    notes: z.array(z.string()),
    /** Reasons why nothing is changed. */
    conflicts: z.array(z.string()),
  })
  .meta({ id: 'ImportResult' })
export type ImportResult = z.infer<typeof importResult>
