/** Reads another service through its API. Numbers stay exact; unknown fields are listed; other forms are errors. */
import { z } from 'zod'
import { parseExactJson } from '../../client/exact-json.ts'
import type { Answer } from '../../client/http.ts'
import { type Decimal, type Micro, MICRO_PER_TOKEN, parseDecimal } from '../../core/pricing/amount.ts'
import type { ImportWire } from '../../protocol/edge/import.ts'
import { CodedError, firstProblem } from '../../protocol/errors.ts'
import type { ConditionInput } from '../../protocol/service/conditions.ts'
import type { ApiVersion } from '../../protocol/service/status.ts'
import { uuidInLowerCase } from '../../protocol/wire.ts'

export interface SourceInstance {
  readonly id: string
  readonly shortName: string
  readonly accountId: string
  readonly defaultInstance: boolean
}

export interface SourceRateTable {
  readonly series: string
  readonly version: string
  readonly effectiveFrom: number
  readonly items: readonly ({ readonly name: string; readonly version: string } & (
    { readonly rate: Decimal } | { readonly formula: string }
  ))[]
}

export type SourceRules = Pick<ImportWire, 'conditions' | 'lineItems'> & { readonly notes: readonly string[] }

/** Texts of exact JSON: a number is its source text. */
const text = z.string()
const optional = <T>(form: z.ZodType<T>) => form.nullish().transform((given) => given ?? undefined)
const optionalText = optional(text)
const number = z
  .string()
  .refine((digits) => parseDecimal(digits) !== undefined, 'must be a number')
  .transform(Number)
const optionalNumber = optional(number)

const instanceForm = z.object({
  id: uuidInLowerCase,
  shortName: text,
  accountId: text,
  defaultInstance: z.boolean().nullish(),
  created: z.unknown().optional(),
  modified: z.unknown().optional(),
})
const pageForm = z.object({ content: z.array(z.unknown()), next: number.nullish() })
const attributesForm = z.object({
  elastic: optional(z.boolean()),
  rateTableSeries: optionalText,
  overdraftLimit: optionalNumber,
  overdraftType: optionalText,
  resetFrequency: optionalText,
})
const lineItemForm = z.object({
  activationId: text,
  instanceId: z.unknown().optional(),
  state: text.default('DEPLOYED'),
  quantity: number,
  start: number,
  end: number,
  used: optionalText,
  attributes: z.unknown().optional(),
})
const actionForm = z.object({
  id: text,
  name: optionalText,
  conditionId: optionalText,
  action: text,
  allocation: optionalNumber,
  used: optionalText,
})
const actionPageForm = z.object({ lineItems: z.array(z.unknown()), next: number.nullish() })
const lineItemActionsForm = z.object({ lineItemId: text, actions: z.array(z.unknown()) })
const conditionForm = z.object({
  id: optionalText,
  name: optionalText,
  operator: text,
  property: optionalText,
  values: optional(z.array(text)),
  condition: optional(z.unknown()),
  conditions: optional(z.array(z.unknown())),
})
const rateTableForm = z.object({
  created: z.unknown().optional(),
  effectiveFrom: number,
  series: optionalText,
  version: text,
  items: z.array(z.unknown()),
})
const ratedItemForm = z.object({ name: text, version: optionalText, rate: optionalText, formula: optionalText })

const PAGE_SIZE = 100
const DEPTH_MAX = 20
const IGNORED_MAX = 100

export class Source {
  readonly #get: (path: string) => Promise<Answer>
  readonly #version: ApiVersion
  readonly ignored = new Set<string>()

  constructor(version: ApiVersion, get: (path: string) => Promise<Answer>) {
    this.#version = version
    this.#get = get
  }

  /** @throws CodedError SOURCE_UNREACHABLE, SOURCE_REFUSED, SOURCE_UNEXPECTED, as all methods */
  async *instances(): AsyncGenerator<SourceInstance> {
    const listed = new Set<string>()
    const pages = this.#pages(`/provisioning/api/${this.#version}/instances?size=${PAGE_SIZE}&next=`, (answer) => {
      const { content, next } = this.#object(pageForm, answer, 'instances')
      return { content, next: next ?? 0 }
    })
    for await (const each of pages) {
      const { id, shortName, accountId, defaultInstance } = this.#object(instanceForm, each, 'instance')
      if (listed.has(id)) continue
      listed.add(id)
      yield { id, shortName, accountId, defaultInstance: defaultInstance ?? false }
    }
  }

  async instance(id: string): Promise<SourceInstance> {
    const answer = await this.#read(`/provisioning/api/${this.#version}/instances/${id}`)
    const { shortName, accountId, defaultInstance } = this.#object(instanceForm, answer, 'instance')
    return { id, shortName, accountId, defaultInstance: defaultInstance ?? false }
  }

  async rules(instanceId: string): Promise<SourceRules> {
    const notes: string[] = []
    const below = `/api/${this.#version}/instances/${instanceId}`
    const conditions = this.#list(await this.#read(`${below}/conditions`), 'conditions')
    const actions = new Map<string, ImportWire['lineItems'][number]['actions']>()
    const pages = this.#pages(`${below}/line-items/actions?next=`, (answer) => {
      const of = (Array.isArray(answer) ? answer : [answer]).map((each) =>
        this.#object(actionPageForm, each, 'actions'),
      )
      return { content: of.flatMap(({ lineItems }) => lineItems), next: of.at(-1)?.next ?? 0 }
    })
    for await (const each of pages) {
      const { lineItemId, actions: listed } = this.#object(lineItemActionsForm, each, 'actions of a line item')
      actions.set(
        lineItemId,
        listed.map((action) => this.#action(action, lineItemId, notes)),
      )
    }
    const lineItems = this.#list(await this.#read(`/provisioning${below}/line-items`), 'line items')
    return {
      conditions: conditions.map((condition) => this.#condition(condition, 1)),
      lineItems: lineItems.map((each) => {
        const lineItem = this.#lineItem(each, notes)
        return { ...lineItem, actions: actions.get(lineItem.lineItem.activationId) ?? [] }
      }),
      notes,
    }
  }

  async rateTables(): Promise<readonly SourceRateTable[]> {
    const answer = await this.#read(`/provisioning/api/${this.#version}/rate-tables`)
    return (Array.isArray(answer) ? answer : [answer]).map((each) => this.#rateTable(each))
  }

  #rateTable(value: unknown): SourceRateTable {
    const { series = '', version, effectiveFrom, items } = this.#object(rateTableForm, value, 'rate table')
    return {
      series,
      version,
      effectiveFrom,
      items: items.map((item) => {
        const { rate, formula, ...of } = this.#object(ratedItemForm, item, 'rate table item')
        const named = { name: of.name, version: of.version ?? '' }
        if (formula !== undefined) return { ...named, formula }
        const decimal = parseDecimal(rate ?? '')
        if (decimal !== undefined) return { ...named, rate: decimal }
        throw unexpected(`rate table ${version}, item ${of.name}: has neither a rate nor a formula`)
      }),
    }
  }

  #lineItem(value: unknown, notes: string[]) {
    const { activationId, state, quantity, start, end, used, attributes } = this.#object(
      lineItemForm,
      value,
      'line item',
    )
    return {
      lineItem: {
        activationId,
        state,
        quantity,
        start,
        end,
        attributes: this.#object(attributesForm, attributes ?? {}, 'line item.attributes'),
      },
      used: used === undefined ? undefined : String(microOf(used, `line item ${activationId}`, notes)),
    }
  }

  #action(value: unknown, lineItemId: string, notes: string[]): ImportWire['lineItems'][number]['actions'][number] {
    const { used, action, ...of } = this.#object(actionForm, value, 'action')
    return {
      ...of,
      // Checked by the cloud.
      action: action as 'ALLOW' | 'DENY',
      used: used === undefined ? undefined : String(microOf(used, `action ${of.id} of line item ${lineItemId}`, notes)),
    }
  }

  /** Other operators are refused by the cloud. */
  #condition(value: unknown, depth: number): ConditionInput {
    if (depth > DEPTH_MAX) throw unexpected(`a condition nests deeper than ${DEPTH_MAX} levels`)
    const { condition, conditions, ...node } = this.#object(conditionForm, value, 'condition')
    return {
      ...node,
      ...(condition === undefined ? {} : { condition: this.#condition(condition, depth + 1) }),
      ...(conditions === undefined ? {} : { conditions: conditions.map((each) => this.#condition(each, depth + 1)) }),
    } as ConditionInput
  }

  async *#pages(
    path: string,
    pageOf: (answer: unknown) => { readonly content: readonly unknown[]; readonly next: number },
  ): AsyncGenerator {
    const requested = new Set<number>()
    for (let next = 0; ;) {
      if (requested.has(next))
        throw unexpected(`${path}${next}: the pages do not end: the source names this page again`)
      requested.add(next)
      const page = pageOf(await this.#read(`${path}${next}`))
      yield* page.content
      if (page.next === 0) return
      next = page.next
    }
  }

  async #read(path: string): Promise<unknown> {
    const { status, text: body } = await this.#get(path)
    if (status === 401 || status === 403 || status === 404) {
      throw new CodedError('SOURCE_REFUSED', `GET ${path}: HTTP status ${status}: ${body.slice(0, 300)}`)
    }
    if (status !== 200) throw unexpected(`GET ${path}: HTTP status ${status}: ${body.slice(0, 300)}`)
    try {
      return parseExactJson(body)
    } catch (cause) {
      throw unexpected(`GET ${path}: the answer is not JSON`, cause)
    }
  }

  #list(value: unknown, name: string): readonly unknown[] {
    if (Array.isArray(value)) return value
    throw unexpected(`${name}: must be an array`)
  }

  #object<T extends z.ZodObject>(form: T, value: unknown, name: string): z.output<T> {
    const parsed = form.safeParse(value)
    if (!parsed.success) throw unexpected(firstProblem(parsed.error, name))
    for (const key of Object.keys(value as object)) {
      if (!Object.hasOwn(form.shape, key) && this.ignored.size < IGNORED_MAX)
        this.ignored.add(`${name}.${key.slice(0, 100)}`)
    }
    return parsed.data
  }
}

/** Rounded up, so that no use is lost. */
function microOf(used: string, name: string, notes: string[]): Micro {
  const value = parseDecimal(used)
  if (value === undefined || value.digits < 0n) throw unexpected(`${name}: used: must be a number, 0 or more`)
  const [scaled, divisor] = [value.digits * MICRO_PER_TOKEN, 10n ** BigInt(value.scale)]
  const rest = scaled % divisor
  if (rest > 0n) notes.push(`The use of ${name} is ${used}: it is rounded up to millionths of a token.`)
  return scaled / divisor + (rest > 0n ? 1n : 0n)
}

function unexpected(message: string, cause?: unknown): CodedError {
  return new CodedError('SOURCE_UNEXPECTED', message, { cause })
}
