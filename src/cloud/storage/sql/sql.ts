/** Context of all queries: Kysely inside one transaction, and the locking features of the database. */
import {
  type Compilable,
  type CompiledQuery,
  type Insertable,
  type Kysely,
  type RawBuilder,
  type SelectQueryBuilder,
  sql as expression,
} from 'kysely'
import { chunksOf } from '../../../core/chunks.ts'
import type { FleetFigures } from './fleet-figures.ts'
import type { Tables } from './tables.ts'
import { CodedError } from '../../../protocol/errors.ts'

export interface Sql {
  readonly db: Kysely<Tables>
  /** False for SQLite: transactions are serialized. */
  readonly lockRows: boolean
  readonly rules: RuleLocks
  /** Of the whole store. */
  readonly fleet: FleetFigures
  /** Returns up to this many free pages to the file system; false: none is left. Null: the database does so itself. */
  readonly shrink: ((pages: number) => boolean) | null
  /** Pipelines a locking query; its rows are available once a later statement is answered. Null: not supported. */
  readonly ahead: (<R>(query: Compilable<R>) => Promise<() => readonly R[]>) | null
}

/** Locks on the rules of instances. `store.ts` describes the words. */
export interface RuleLocks {
  /** In the given sequence. */
  lockShared(...instanceIds: readonly string[]): Promise<void>
  lock(instanceId: string): Promise<void>
  /** Makes shared locks exclusive. @throws WouldWait unless transactions are serialized */
  upgrade(...instanceIds: readonly string[]): Promise<void>
  /** Those of all instances, including new ones. */
  lockAll(): Promise<void>
  /** Before an instance is created: shared, against `lockAll`. */
  lockForInsert(): Promise<void>
}

const nothing = async (): Promise<void> => {
  // No other transaction is running.
}

/** For serialized or read-only transactions. */
export const ALONE: RuleLocks = {
  lockShared: nothing,
  lock: nothing,
  upgrade: nothing,
  lockAll: nothing,
  lockForInsert: nothing,
}

/** Inserts a row, or sets these columns of the row with this key. */
export async function upsert<T extends keyof Tables, K extends keyof Insertable<Tables[T]>>(
  db: Sql['db'],
  table: T,
  key: Pick<Insertable<Tables[T]>, K>,
  columns: Omit<Insertable<Tables[T]>, K>,
): Promise<void> {
  const row = { ...key, ...columns } as unknown as Insertable<Tables[T]>
  await replacing(db, table, [row], { key: Object.keys(key) }).execute()
}

/** Inserts rows. Where a row has the key, it gets the other columns, except those that are `fixed` by the key. */
export function replacing<T extends keyof Tables>(
  db: Sql['db'],
  table: T,
  rows: readonly Insertable<Tables[T]>[],
  { key, fixed = [] }: { readonly key: readonly string[]; readonly fixed?: readonly string[] },
) {
  const others = Object.keys(rows[0] ?? {}).filter((name) => !key.includes(name) && !fixed.includes(name))
  const columns = Object.fromEntries(others.map((name) => [name, expression.ref(`excluded.${name}`)]))
  return db
    .insertInto(table)
    .values(rows)
    .onConflict((conflict) => conflict.columns(key as never).doUpdateSet(columns as never))
}

export async function countOf<DB, T extends keyof DB>(query: SelectQueryBuilder<DB, T, unknown>): Promise<number> {
  const counted = query.select(({ fn }) => fn.countAll<bigint>().as('count')).$castTo<{ count: bigint }>()
  return Number((await counted.executeTakeFirstOrThrow()).count)
}

/** Values per statement: below the smallest parameter limit of the databases. */
const VALUES_MAX = 500

export function chunks<T>(list: readonly T[], size = VALUES_MAX): Generator<readonly T[]> {
  return chunksOf(list, size)
}

/** Every value of the query is a parameter. @param count length of its lists */
type Build<R> = (db: Sql['db'], count: number) => Compilable<R>

/**
 * A query whose text is built once for each database and number of values: that takes longer than to run it.
 * @param build from any values. The parameters that are given later replace them, in their order
 */
export function prepared<R>(
  build: Build<R>,
): (db: Sql['db'], parameters: readonly unknown[], count?: number) => CompiledQuery<R> {
  const known = new WeakMap<object, Map<number, CompiledQuery<R>>>()
  return (db, parameters, count = 1) => {
    const { adapter } = db.getExecutor()
    const byCount = known.get(adapter) ?? new Map<number, CompiledQuery<R>>()
    known.set(adapter, byCount)
    const query = byCount.get(count) ?? build(db, count).compile()
    byCount.set(count, query)
    if (query.parameters.length !== parameters.length) throw new Error('invariant: each value is a parameter')
    return { ...query, parameters }
  }
}

/**
 * As {@link prepared}, of an update of any columns.
 * @param build from any values of the columns
 */
export function preparedUpdate(
  build: (db: Sql['db'], columns: never) => Compilable,
): (db: Sql['db'], changed: Readonly<Record<string, unknown>>, key: readonly unknown[]) => CompiledQuery {
  const byColumns = new Map<string, ReturnType<typeof prepared<unknown>>>()
  return (db, changed, key) => {
    const columns = Object.keys(changed)
    const name = columns.join(' ')
    const update =
      byColumns.get(name) ??
      prepared<unknown>((from) => build(from, Object.fromEntries(columns.map((column) => [column, null])) as never))
    byColumns.set(name, update)
    return update(db, [...Object.values(changed), ...key])
  }
}

/** Most rows of a statement. */
const ROWS_MAX = 32

/** The same row `count` times, for a statement whose parameters are given later. */
export function repeated<T>(count: number, row: T): readonly T[] {
  return Array.from({ length: count }, () => row)
}

/** Parts of powers of two, so that few statement texts serve any number of rows. */
export function* parts<T>(rows: readonly T[]): Generator<readonly T[]> {
  for (let at = 0; at < rows.length;) {
    const count = Math.min(ROWS_MAX, 2 ** Math.floor(Math.log2(rows.length - at)))
    yield rows.slice(at, at + count)
    at += count
  }
}

/** A condition as a column of 1 and 0: SQLite has no boolean type. */
export function asFlag(condition: RawBuilder<boolean>): RawBuilder<bigint> {
  return expression<bigint>`CAST(CASE WHEN ${condition} THEN 1 ELSE 0 END AS BIGINT)`
}

/** The rows of a prepared query for a list of any length. */
export async function rowsOf<R>(
  db: Sql['db'],
  query: ReturnType<typeof prepared<R>>,
  list: readonly unknown[],
): Promise<readonly R[]> {
  const rows: R[] = []
  for (const some of chunks(list)) {
    const listed = filledUp(some)
    for (const row of (await db.executeQuery(query(db, listed, listed.length))).rows) rows.push(row)
  }
  return rows
}

/** As {@link rowsOf}, of a query that is built for each part of the list. */
export async function rowsIn<T, R>(
  list: readonly T[],
  query: (some: readonly T[]) => { execute(): Promise<readonly R[]> },
): Promise<readonly R[]> {
  const rows: R[] = []
  for (const some of chunks(list)) {
    for (const row of await query(some).execute()) rows.push(row)
  }
  return rows
}

type Column = 'TEXT' | 'BIGINT'

/** A table of parameters. Both databases name its columns `column1`, `column2` and so on. */
export function tableOf(columns: readonly Column[], count: number): RawBuilder<Readonly<Record<string, unknown>>> {
  const values = columns.map((column) =>
    column === 'TEXT' ? expression`CAST(${''} AS TEXT)` : expression`CAST(${0n} AS BIGINT)`,
  )
  const rows = repeated(count, expression`(${expression.join(values)})`)
  return expression`(VALUES ${expression.join(rows)})`
}

/** A row to update: the values of its key, and those of its columns that differ from what is stored. */
interface ChangedRow {
  readonly key: readonly (string | bigint)[]
  readonly before: Readonly<Record<string, unknown>>
  readonly after: Readonly<Record<string, unknown>>
}

type Updatable = 'devices' | 'epochs' | 'sessions'

/**
 * Updates rows of a table. Each row may be listed once. One statement updates all rows that change the same columns.
 * @param keys columns of the key
 */
export function updates(
  table: Updatable,
  keys: readonly string[],
): (db: Sql['db'], rows: readonly ChangedRow[]) => Promise<void> {
  const byColumns = new Map<string, ReturnType<typeof prepared>>()
  return async (db, rows) => {
    const groups = new Map<string, (readonly unknown[])[]>()
    for (const { key, before, after } of rows) {
      const changed = Object.entries(changedOf(before, after))
      if (changed.length === 0) continue
      const types = changed.map(([name, value]) => typeOf(value ?? before[name]))
      const columns = changed.map(([name], index) => `${name} ${types[index]}`).join()
      const group = groups.get(columns) ?? []
      groups.set(columns, group)
      group.push([...key, ...changed.map(([, value]) => value)])
      if (byColumns.has(columns)) continue
      const names = changed.map(([name]) => name)
      const all = [...key.map(typeOf), ...types]
      byColumns.set(
        columns,
        prepared((from, count) => updating(from, table, { keys, names }, tableOf(all, count))),
      )
    }
    for (const [columns, group] of groups) {
      for (const some of chunks(group, ROWS_MAX)) {
        const listed = filledUp(some)
        const update = byColumns.get(columns)
        if (update !== undefined) await db.executeQuery(update(db, listed.flat(), listed.length))
      }
    }
  }
}

function updating(
  db: Sql['db'],
  table: Updatable,
  { keys, names }: { readonly keys: readonly string[]; readonly names: readonly string[] },
  rows: ReturnType<typeof tableOf>,
): Compilable {
  const given = (index: number) => expression.ref(`given.column${index + 1}`)
  const set = Object.fromEntries(names.map((name, index) => [name, given(keys.length + index)]))
  const isRow = keys.map((key, index) => expression`${expression.ref(`${table}.${key}`)} = ${given(index)}`)
  return db
    .updateTable(table)
    .from(rows.as('given'))
    .set(set as never)
    .where(expression<boolean>`${expression.join(isRow, expression` AND `)}`)
}

function typeOf(value: unknown): Column {
  return typeof value === 'bigint' ? 'BIGINT' : 'TEXT'
}

/**
 * A list for a condition `IN`, filled up by repetition to one of few lengths, so that few texts serve any list.
 * @param list at most a chunk
 */
export function filledUp<T>(list: readonly T[], length = filledLength(list.length)): readonly T[] {
  const [first] = list
  return list.length === length || first === undefined
    ? list
    : [...list, ...Array.from({ length: length - list.length }, () => first)]
}

/** The length of a list of `count` values that is {@link filledUp}. */
export function filledLength(count: number): number {
  return Math.min(VALUES_MAX, 2 ** Math.ceil(Math.log2(count)))
}

/** The columns of `after` that differ. Writing a column rewrites its indexes, even if the value is the same. */
export function changedOf<T extends object>(before: T, after: T): Partial<T> {
  const columns = Object.keys(after) as (keyof T)[]
  return Object.fromEntries(
    columns.flatMap((name) => (after[name] === before[name] ? [] : [[name, after[name]]])),
  ) as Partial<T>
}

export function toFlag(value: boolean): bigint {
  return value ? 1n : 0n
}

export function toBigint(value: number | null): bigint | null {
  return value === null ? null : BigInt(value)
}

export function toNumber(value: bigint | null): number | null {
  return value === null ? null : Number(value)
}

/** What PostgreSQL cannot store, all stores refuse. @throws CodedError BAD_REQUEST */
export function requireStorable(parameters: readonly unknown[]): void {
  for (const value of parameters) {
    if (typeof value === 'string' && value.includes('\u0000')) {
      throw new CodedError('BAD_REQUEST', 'The request has a text with the character NUL, which cannot be stored.')
    }
    if (typeof value === 'bigint' && BigInt.asIntN(64, value) !== value) {
      throw new CodedError('BAD_REQUEST', 'The request leads to an amount that is larger than any counter can hold.')
    }
  }
}

/** A lock out of sequence. Waiting for it could deadlock: the transaction restarts. */
export class WouldWait extends Error {
  constructor(cause?: unknown) {
    super('a lock out of sequence', { cause })
  }
}

/** SQLSTATE of NOWAIT when it would have to wait. */
export const LOCK_NOT_AVAILABLE = '55P03'

export function isLockNotAvailable(error: unknown): boolean {
  return error instanceof Error && (error as { readonly code?: unknown }).code === LOCK_NOT_AVAILABLE
}
