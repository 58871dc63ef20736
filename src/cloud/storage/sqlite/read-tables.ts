/** All tables of a database file, for a copy into another database. */
import { existsSync } from 'node:fs'
import Sqlite from 'better-sqlite3'
import { RowDigest, type TableDigest, type Value } from '../sql/row-digest.ts'
import { type Database, openReader } from './database.ts'

export interface TableShape {
  readonly name: string
  readonly columns: readonly string[]
  /** Columns of the primary key, in its order. */
  readonly key: readonly { readonly name: string; readonly isText: boolean }[]
  /** The database numbers new rows in the column `seq` or `id`. */
  readonly isNumbered: boolean
}

/** Each table after those that it refers to. */
export function tablesOf(database: Database): readonly TableShape[] {
  const names = database
    .prepare(`SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name`)
    .all() as readonly { readonly name: string }[]
  const remaining = new Set(names.map(({ name }) => name))
  const sorted: TableShape[] = []
  const references = database.prepare('SELECT DISTINCT "table" AS name FROM pragma_foreign_key_list(?)')
  while (remaining.size > 0) {
    const free = [...remaining].filter((name) =>
      (references.all(name) as readonly { readonly name: string }[]).every((other) => !remaining.has(other.name)),
    )
    if (free.length === 0) throw new Error('invariant: tables do not refer to each other in a circle')
    for (const name of free) {
      remaining.delete(name)
      sorted.push(shapeOf(database, name))
    }
  }
  return sorted
}

function shapeOf(database: Database, name: string): TableShape {
  const columns = database.prepare('SELECT name, type, pk FROM pragma_table_info(?)').all(name) as readonly {
    readonly name: string
    readonly type: string
    readonly pk: bigint
  }[]
  const { sql } = database.prepare('SELECT sql FROM sqlite_schema WHERE name = ?').get(name) as { sql: string }
  return {
    name,
    columns: columns.map((column) => column.name),
    key: columns
      .filter(({ pk }) => pk > 0n)
      .sort((one, other) => Number(one.pk - other.pk))
      .map((column) => ({ name: column.name, isText: column.type === 'TEXT' })),
    isNumbered: sql.includes('AUTOINCREMENT'),
  }
}

/** Rows in the order of the primary key, without the first ones. */
export function rowsOf(database: Database, { name, columns, key }: TableShape, skipped = 0): IterableIterator<Value[]> {
  const order = key.map((column) => quoted(column.name)).join(', ')
  return database
    .prepare(`SELECT ${columns.map(quoted).join(', ')} FROM ${quoted(name)} ORDER BY ${order} LIMIT -1 OFFSET ?`)
    .raw()
    .iterate(skipped) as IterableIterator<Value[]>
}

/** @param onRow called after each row, and waited for */
export async function digestOf(
  database: Database,
  table: TableShape,
  onRow: (rows: number) => Promise<void> | undefined,
): Promise<TableDigest> {
  const digest = new RowDigest()
  for (const row of rowsOf(database, table)) {
    digest.add(row)
    const pause = onRow(digest.rows)
    if (pause !== undefined) await pause
  }
  return digest.end()
}

/** The highest number that a numbered table has given to a row, also a deleted one; null: none. */
export function lastNumberOf(database: Database, { name }: Pick<TableShape, 'name'>): bigint | null {
  // An INSERT of no rows leaves 0.
  const row = database.prepare('SELECT seq FROM sqlite_sequence WHERE name = ? AND seq > 0').get(name)
  return (row as { readonly seq: bigint } | undefined)?.seq ?? null
}

/**
 * Row numbers that divide the usage: the first, each after so many rows, and the one after the last. Empty: no usage.
 * @param partRows rows of a part, by the number of all
 */
export function usageBounds(database: Database, partRows: (all: bigint) => bigint): readonly bigint[] {
  const { all } = database.prepare('SELECT count(*) AS "all" FROM usage').get() as { readonly all: bigint }
  const starts = database
    .prepare(
      'SELECT seq FROM (SELECT seq, row_number() OVER (ORDER BY seq) AS n FROM usage) WHERE (n - 1) % ? = 0 ORDER BY seq',
    )
    .pluck()
    .all(partRows(all)) as readonly bigint[]
  const last = lastNumberOf(database, { name: 'usage' })
  return starts.length === 0 || last === null ? [] : [...starts, last + 1n]
}

/** Whether the file contains what administrators have entered: not only the key of the first start. */
export function hasData(path: string): boolean {
  if (!existsSync(path)) return false
  const database = openReader(path)
  try {
    const found = database
      .prepare(
        `SELECT EXISTS (SELECT 1 FROM instances) OR EXISTS (SELECT 1 FROM rate_tables)
           OR (SELECT count(*) FROM public_keys) > 1 AS found`,
      )
      .get() as { readonly found: bigint }
    return found.found === 1n
  } catch (error) {
    // An empty file has no tables.
    if (error instanceof Sqlite.SqliteError && error.message.startsWith('no such table')) return false
    throw error
  } finally {
    database.close()
  }
}

export function quoted(name: string): string {
  return `"${name}"`
}
