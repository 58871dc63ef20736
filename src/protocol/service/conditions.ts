/** Conditions on the wire. Source: interface, Rules of access; documentation on conditions and their limits. */
import { z } from 'zod'
import { plainText, uuid, uuidInLowerCase } from '../wire.ts'

const CONDITION_VALUES_MAX = 100
export const CONDITIONS_MAX = 1_000
/** JSON characters of all conditions of an instance: a decision may evaluate them all, and devices store them. */
export const CONDITIONS_CHARACTERS_MAX = 4_000_000

const label = { id: uuidInLowerCase.optional(), name: plainText(256).optional() }

export type ConditionInput = { readonly id?: string | undefined; readonly name?: string | undefined } & (
  | { readonly operator: 'AND' | 'OR'; readonly conditions: readonly ConditionInput[] }
  | { readonly operator: 'NOT'; readonly condition: ConditionInput }
  | { readonly operator: 'IN'; readonly property: string; readonly values: readonly string[] }
)

/** The caller checks the depth: see `CONDITION_DEPTH_MAX`. */
export const conditionInput: z.ZodType<ConditionInput> = z
  .lazy(() =>
    z.discriminatedUnion('operator', [
      z.strictObject({
        ...label,
        operator: z.enum(['AND', 'OR']),
        conditions: z.array(conditionInput).min(1).max(CONDITION_VALUES_MAX),
      }),
      z.strictObject({ ...label, operator: z.literal('NOT'), condition: conditionInput }),
      z.strictObject({
        ...label,
        operator: z.literal('IN'),
        property: plainText(256).min(1),
        values: z.array(plainText(1_000)).min(1).max(CONDITION_VALUES_MAX),
      }),
    ]),
  )
  .meta({ id: 'ConditionToSave', description: 'Tests the dictionary of the requester. At most 10 levels deep.' })

const list = z.array(conditionInput).min(1).max(CONDITIONS_MAX)

export const conditionsBody = z.union([
  list,
  z.strictObject({ conditions: list }).transform(({ conditions }) => conditions),
])

export function conditionDepth(condition: ConditionInput): number {
  switch (condition.operator) {
    case 'AND':
    case 'OR':
      return 1 + Math.max(...condition.conditions.map(conditionDepth))
    case 'NOT':
      return 1 + conditionDepth(condition.condition)
    case 'IN':
      return 1
  }
}

export type ConditionWire = { readonly id: string; readonly name?: string | undefined } & (
  | { readonly operator: 'AND' | 'OR'; readonly conditions: readonly ConditionWire[] }
  | { readonly operator: 'NOT'; readonly condition: ConditionWire }
  | { readonly operator: 'IN'; readonly property: string; readonly values: readonly string[] }
)

const shown = { id: uuid, name: z.string().optional() }

const condition: z.ZodType<ConditionWire> = z
  .lazy(() =>
    z.discriminatedUnion('operator', [
      z.strictObject({ ...shown, operator: z.enum(['AND', 'OR']), conditions: z.array(condition) }),
      z.strictObject({ ...shown, operator: z.literal('NOT'), condition }),
      z.strictObject({ ...shown, operator: z.literal('IN'), property: z.string(), values: z.array(z.string()) }),
    ]),
  )
  .meta({ id: 'Condition', description: 'The service assigns an id to each node.' })

export const conditionList = z.array(condition)
