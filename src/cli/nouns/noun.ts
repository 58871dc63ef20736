/** One kind of object that administrators see and change: its routes, its columns and its fields, as data. */
import type { z } from 'zod'
import type { Call } from '../../client/call.ts'
import { numberText } from '../../client/exact-json.ts'
import { tokensInWords } from '../../core/accounts/in-words.ts'
import { parseDecimal, toMicro } from '../../core/pricing/amount.ts'
import type { Row, Service } from './service.ts'

export interface Scope {
  /** Null: all instances, or the noun belongs to no instance. */
  readonly instanceId: string | null
  /** POSIX ms; only nouns with `since`. */
  readonly since?: number
  readonly until?: number
  readonly deviceId?: string
  /** Only refused requests. */
  readonly isRefused?: boolean
  /** If there are more rows, one more than this. */
  readonly limit?: number
}

export interface Noun {
  readonly name: string
  readonly one: string
  /** `one`: the objects of one instance. `any`: of all instances, or of one. */
  readonly instance: 'none' | 'one' | 'any'
  readonly since?: true
  /** The service lists no more than the newest so many. */
  readonly listedMax?: number
  readonly list: (service: Service, scope: Scope) => Promise<readonly Row[]>
  /** Names one object on the command line and in a file; other unique properties are in `ids`. */
  readonly nameOf: (row: Row) => string
  readonly ids?: readonly string[]
  /** Reads an object that `list` omits, by its id. */
  readonly path?: (id: string) => string
  readonly columns: readonly Column[]
  readonly examples: readonly string[]
  /** Several lines of the table for one object. */
  readonly lines?: (row: Row) => readonly Row[]
  readonly set?: Setting
  /** The path to which a DELETE is sent. */
  readonly remove?: (row: Row, scope: Scope) => string
}

export interface Setting {
  /** Property of a new object that the argument of `set` names. */
  readonly name: string
  /** For people. */
  readonly called: string
  readonly fields: readonly Field[]
  readonly schema: z.ZodType
  /** The whole body: given fields, else those of `current`, which is empty for a new object, else defaults. */
  readonly complete: (given: Row, current: Row, now: number) => Row
  /** Why an object cannot become so; undefined: it can. */
  readonly refuse?: (body: Row, existing: Row | undefined) => string | undefined
  /** The settable fields of an existing object, as `complete` returns them. */
  readonly current: (row: Row) => Row
  /** A field that `complete` computes if options omit it, instead of the value of the existing object. */
  readonly derived?: string
  readonly call: (change: Change) => Call | Promise<Call>
  readonly fixed?: true
  /** Warns of an effect of a new object that is easy to miss. @param known the objects before it */
  readonly warning?: (body: Row, known: readonly Row[]) => string | undefined
}

export interface Change {
  readonly service: Service
  readonly scope: Scope
  readonly body: Row
  readonly existing: Row | undefined
}

export interface Field {
  readonly path: string
  readonly flags: string
  readonly help: string
  /** A list: the words to choose from. */
  readonly kind: 'text' | 'number' | 'boolean' | 'time' | 'words' | 'rates' | readonly string[]
  /** A time that an option gives must be in the future; a file may keep one that has passed. */
  readonly isFuture?: true
}

export function field(path: string, flags: string, help: string, kind: Field['kind']): Field {
  return { path, flags, help, kind }
}

export type Names = ReadonlyMap<string, string>

export interface Column {
  readonly head: string
  readonly of: (row: Row, names: Names) => string
  /** The value is an id of one of these, which is shown by its name. */
  readonly named?: 'instances' | 'devices'
}

export function column(head: string, property: string): Column {
  return { head, of: (row) => valueText(row[property]) }
}

export function time(head: string, property: string, zero = 'never'): Column {
  return { head, of: (row) => (row[property] === 0 ? zero : instantText(row[property])) }
}

export function tokens(head: string, property: string): Column {
  return { head, of: (row) => tokensText(row[property]) }
}

export function named(head: string, property: string, list: 'instances' | 'devices'): Column {
  return { head, named: list, of: (row, names) => names.get(valueText(row[property])) ?? valueText(row[property]) }
}

export function valueText(value: unknown): string {
  if (value === undefined || value === null) return ''
  if (typeof value === 'string') return value
  return numberText(value) ?? JSON.stringify(value)
}

export function instantText(value: unknown): string {
  const date = new Date(Number(numberText(value) ?? valueText(value)))
  return valueText(value) === '' ? '' : Number.isNaN(date.getTime()) ? valueText(value) : date.toISOString()
}

export function tokensText(value: unknown): string {
  const amount = parseDecimal(valueText(value))
  return amount === undefined ? valueText(value) : tokensInWords(toMicro(amount))
}
