/**
 * One case of the corpus: facts, a clock, a request, and the expected decision. Facts are written as an administrator
 * enters them (whole quantities, usage so far, conditions and actions by name), so that the engine can decide a case, and
 * the service's API can provision it. Amounts, counts and rates are decimal text, instants are ISO 8601 in UTC to the
 * millisecond.
 *
 * A case gives only what it shows. By default, {@link NOW} is in the middle of the year {@link YEAR} of every line item,
 * {@link SCAN} is the only rate table, the requester is the user LisaBarry, and items are decided one by one.
 */
import { z } from 'zod'
import { REFUSAL_REASONS, type RefusalReason } from '../../src/core/rules/refusal-reasons.ts'

const instant = z.iso.datetime({ precision: 3 }).transform((text) => Date.parse(text))
const decimalText = z.string().regex(/^\d+(\.\d+)?$/)

const NOW = '2026-06-01T12:00:00.000Z'
const YEAR = { start: '2026-01-01T00:00:00.000Z', end: '2026-12-31T23:59:59.999Z' }
const SCAN = { items: [{ name: 'Scan', rate: '1' }] }

/** `until` is exclusive; null is an open end. */
const span = { index: z.int().min(0), from: instant.nullable(), until: instant.nullable() }

export type ConditionFact =
  | { operator: 'AND' | 'OR'; conditions: ConditionFact[] }
  | { operator: 'NOT'; condition: ConditionFact }
  | { operator: 'IN'; property: string; values: string[] }

const nested = z.lazy(() => condition)
const and = { operator: z.literal('AND'), conditions: z.array(nested) }
const or = { operator: z.literal('OR'), conditions: z.array(nested) }
const not = { operator: z.literal('NOT'), condition: nested }
const within = { operator: z.literal('IN'), property: z.string(), values: z.array(z.string()) }

const condition: z.ZodType<ConditionFact> = z.discriminatedUnion('operator', [
  z.strictObject(and),
  z.strictObject(or),
  z.strictObject(not),
  z.strictObject(within),
])

/** Other facts refer to a condition by its name, so names are unique within one case. */
const name = z.string().min(1)
const namedCondition = z.discriminatedUnion('operator', [
  z.strictObject({ name, ...and }),
  z.strictObject({ name, ...or }),
  z.strictObject({ name, ...not }),
  z.strictObject({ name, ...within }),
])

const action = z.strictObject({
  /** Unique within its line item; the answer names the action by it. */
  name,
  /** The name of a condition; absent on the default action. */
  condition: z.string().optional(),
  action: z.enum(['ALLOW', 'DENY']),
  allocation: decimalText.optional(),
  used: decimalText.default('0'),
})

const requesterId = z.strictObject({ type: z.string(), value: z.string() })

const consumptionLimit = z.strictObject({
  limit: decimalText,
  /** As the API would receive it; the periods are derived from it. */
  frequency: z.enum(['DAILY', 'WEEKLY', 'MONTHLY', 'YEARLY']),
  periods: z.array(z.strictObject(span)).min(1),
  used: z.array(z.strictObject({ requester: requesterId, period: z.int().min(0), used: decimalText })).default([]),
})

const lineItem = z.strictObject({
  id: z.string().min(1),
  state: z.enum(['DEPLOYED', 'INACTIVE', 'OBSOLETE']).default('DEPLOYED'),
  elastic: z.boolean().default(true),
  rateTableSeries: z.string().default(''),
  start: instant.prefault(YEAR.start),
  end: instant.prefault(YEAR.end),
  quantity: z.int().min(0),
  overdraft: z.union([z.literal('Unlimited'), z.int().min(0)]).default(0),
  /** Of the only period; a line item with a reset gives it for each of its periods instead. */
  used: decimalText.optional(),
  reset: z
    .strictObject({
      frequency: z.enum(['DAILY', 'WEEKLY', 'MONTHLY', 'YEARLY']),
      periods: z.array(z.strictObject({ ...span, used: decimalText.default('0') })).min(1),
    })
    .optional(),
  actions: z.array(action).default([]),
  consumptionLimit: consumptionLimit.optional(),
})

const rated = { name: z.string().min(1), version: z.string().default('') }
const ratedItem = z.union([
  z.strictObject({ ...rated, rate: decimalText }),
  z.strictObject({ ...rated, formula: z.string() }),
])

const rateTable = z.strictObject({
  series: z.string().default(''),
  version: z.string().default('1'),
  effectiveFrom: instant.prefault(YEAR.start),
  items: z.array(ratedItem),
})

/** Names an account with the names of the case. Exactly one of `line`, `action` and `limit`. */
const account = {
  line: z.string().optional(),
  /** `<line item>: <action>` */
  action: z.string().optional(),
  limit: z.string().optional(),
  requester: requesterId.optional(),
  period: z.int().min(0).optional(),
}

/** The balance of a device, where it is less than that of the pool. */
const grant = z.strictObject({ ...account, left: decimalText, shortage: z.enum(['GRANT', 'GRANT_EXPIRED', 'COUNTER']) })

const refusals = Object.keys(REFUSAL_REASONS) as readonly RefusalReason[]

const wantedItem = z.union([
  z.strictObject({
    status: z.literal('GRANTED'),
    total: decimalText,
    parts: z.array(
      z.strictObject({
        lineItem: z.string(),
        rate: decimalText,
        /** The name of the action that allowed it; absent where the line item has no actions. */
        action: z.string().optional(),
        charged: decimalText,
      }),
    ),
  }),
  z.strictObject({ status: z.enum(['NOT_CHARGED', ...refusals]) }),
])

/** Read keys that JSON can hold and zod's records drop, such as `__proto__`. */
const dictionary = z.custom<Readonly<Record<string, unknown>>>(
  (value) => typeof value === 'object' && value !== null && !Array.isArray(value),
)

export const corpusCase = z.strictObject({
  /** What the case shows, as a sentence. */
  name: z.string().min(10),
  /** Why the service's API cannot set the case up; absent: it can. */
  engineOnly: z.string().optional(),
  facts: z.strictObject({
    timezoneTolerant: z.boolean().default(false),
    undecidedClock: z.enum(['allow', 'refuse']).default('refuse'),
    conditions: z.array(namedCondition).default([]),
    lineItems: z.array(lineItem),
    rateTables: z.array(rateTable).prefault([SCAN]),
    grants: z.array(grant).default([]),
  }),
  /** A trusted clock gives only `now`. `latest: null`: the clock has no upper bound. */
  clock: z
    .strictObject({ now: instant, earliest: instant.optional(), latest: instant.nullable().optional() })
    .prefault({ now: NOW }),
  request: z.strictObject({
    requester: z
      .strictObject({
        type: z.string().default('user'),
        value: z.string().default('LisaBarry'),
        dictionary: dictionary.optional(),
      })
      .prefault({}),
    items: z
      .array(
        z.strictObject({
          item: z.string().min(1),
          version: z.string().optional(),
          count: decimalText,
          variables: z.record(z.string(), z.string().regex(/^-?\d+(\.\d+)?$/)).optional(),
        }),
      )
      .min(1),
  }),
  /** `BEST_EFFORT` is the one-off request, `ALL_OR_NOTHING` the request in a session. */
  mode: z.enum(['BEST_EFFORT', 'ALL_OR_NOTHING']).default('BEST_EFFORT'),
  want: z.strictObject({
    items: z.array(wantedItem),
    /** In the order of first mention; `amount` in tokens. */
    postings: z.array(z.strictObject({ ...account, amount: decimalText })),
    warnings: z.array(z.enum(['CLOCK_UNDECIDED_ALLOWED', 'ESSENTIAL_OFFLINE'])).default([]),
  }),
})

export type CorpusCase = z.infer<typeof corpusCase>
export type LineItemFact = CorpusCase['facts']['lineItems'][number]
export type AccountName = Pick<
  CorpusCase['want']['postings'][number],
  'line' | 'action' | 'limit' | 'requester' | 'period'
>
