/** Validates objects with long lists element by element, so that other events run in between. */
import type { z } from 'zod'
import { firstProblem } from '../../protocol/errors.ts'
import { type JsonObject, isJsonObject } from '../../protocol/parse-json.ts'
import type { GiveWay } from '../runtime/give-way.ts'

const ELEMENTS_AT_A_TIME = 50

/** Unknown fields that the schema judges. With hundreds of thousands, it would take a second. */
const UNKNOWN_MAX = 10

export type Parsed<T> =
  { readonly parsed: true; readonly data: T } | { readonly parsed: false; readonly problem: string }

export interface LongLists {
  readonly lists: Readonly<Record<string, number>>
  readonly root: string
  readonly giveWay: GiveWay
}

/** The same result as `schema.safeParse(value)`, but the problem names only the first unknown fields. */
export async function parseLists<S extends z.ZodObject>(
  schema: S,
  value: unknown,
  { lists, root, giveWay }: LongLists,
): Promise<Parsed<z.output<S>>> {
  const rest = isJsonObject(value) ? withFewUnknown(value, schema) : {}
  const long = new Map<string, readonly unknown[]>()
  for (const [name, most] of Object.entries(lists)) {
    const list = rest[name]
    if (!Array.isArray(list)) continue
    if (list.length > most) return { parsed: false, problem: `${root}.${name}: has more than ${most} elements` }
    long.set(name, list)
    rest[name] = []
  }
  const shell = schema.safeParse(isJsonObject(value) ? rest : value)
  if (!shell.success) return { parsed: false, problem: firstProblem(shell.error, root) }
  const data: Record<string, unknown> = shell.data
  for (const [name, list] of long) {
    const { element } = schema.shape[name] as unknown as z.ZodArray<z.ZodType>
    const elements: unknown[] = []
    for (const [index, each] of list.entries()) {
      if (index % ELEMENTS_AT_A_TIME === 0) await giveWay()
      const parsed = element.safeParse(each)
      if (!parsed.success) return { parsed: false, problem: firstProblem(parsed.error, `${root}.${name}[${index}]`) }
      elements.push(parsed.data)
    }
    data[name] = elements
  }
  return { parsed: true, data: data as z.output<S> }
}

function withFewUnknown(value: JsonObject, { shape }: z.ZodObject): Record<string, unknown> {
  // Without a prototype, so that a field named `__proto__` is one like others.
  const fields = Object.create(null) as Record<string, unknown>
  let unknown = 0
  for (const name of Object.keys(value)) {
    if (!Object.hasOwn(shape, name)) unknown += 1
    if (Object.hasOwn(shape, name) || unknown <= UNKNOWN_MAX) fields[name] = value[name]
  }
  return fields
}
