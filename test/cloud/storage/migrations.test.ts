// The migrations of both databases end in the same tables. What each database says of itself is brought into one form: the
// kinds of columns, keys, references, conditions and indexes, in words that both share.
import Sqlite from 'better-sqlite3'
import { describe, expect, it } from 'vitest'
import { migrations as postgresMigrations } from '../../../src/cloud/storage/postgres/database.ts'
import { migrations as sqliteMigrations } from '../../../src/cloud/storage/sqlite/database.ts'
import { PostgresSchema, runSql } from '../../support/postgres-schema.ts'
import { postgres } from '../../support/servers.ts'

interface Table {
  readonly name: string
  /** `name: whole number, given by the database` */
  readonly columns: readonly string[]
  readonly primaryKey: string
  /** Constraints and unique indexes alike: `a, b * c` or `a where b = 1`. */
  readonly unique: readonly string[]
  readonly indexes: readonly string[]
  readonly references: readonly string[]
  readonly checks: readonly string[]
}

function column(name: string, kind: string, required: boolean, given: boolean): string {
  return `${name}: ${kind}${required ? '' : ', may be null'}${given ? ', given by the database' : ''}`
}

/** A condition as both databases could have written it: without what each adds on its own. */
function plain(condition: string): string {
  return condition
    .replaceAll(/::\w+/g, '')
    .replaceAll(/= ANY \(ARRAY\[([^\]]*)\]\)/g, 'IN $1')
    .replaceAll(/[()\s"]/g, '')
    .toLowerCase()
}

/** Columns and condition of an index, from its statement. */
function indexText(statement: string): string {
  const [, columns = '', where] =
    / ON (?:ONLY )?\S+ (?:USING btree )?\((.*?)\)(?:\s+WHERE (.*))?$/s.exec(statement) ?? []
  return columns.replaceAll(/[()]/g, '') + (where === undefined ? '' : ` where ${plain(where)}`)
}

function sqliteTables(): readonly Table[] {
  const database = new Sqlite(':memory:')
  for (const { sql } of sqliteMigrations()) database.exec(sql)
  const all = <R>(text: string, ...values: string[]) => database.prepare(text).all(...values) as R[]
  const names = all<{ name: string }>(
    `SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name`,
  )
  const tables = names.map(({ name }): Table => {
    const source = all<{ sql: string }>('SELECT sql FROM sqlite_schema WHERE name = ?', name)[0]?.sql ?? ''
    const columns = all<{ name: string; type: string; notnull: number; pk: number }>(
      'SELECT * FROM pragma_table_xinfo(?)',
      name,
    )
    const indexes = all<{ name: string; unique: number; origin: string }>('SELECT * FROM pragma_index_list(?)', name)
    const described = indexes.map((index) => {
      const text = all<{ sql: string | null }>('SELECT sql FROM sqlite_schema WHERE name = ?', index.name)[0]?.sql
      const of = all<{ name: string }>('SELECT name FROM pragma_index_info(?) ORDER BY seqno', index.name)
      return {
        ...index,
        text: text === null || text === undefined ? of.map((one) => one.name).join(', ') : indexText(text),
      }
    })
    const keys = all<{ id: number; seq: number; table: string; from: string; to: string }>(
      'SELECT * FROM pragma_foreign_key_list(?) ORDER BY id, seq',
      name,
    )
    return {
      name,
      columns: columns.map(({ name: its, type, notnull, pk }) => {
        const given = new RegExp(`\\b${its} INTEGER PRIMARY KEY AUTOINCREMENT`).test(source)
        return column(its, KINDS[type] ?? type, notnull === 1 || pk > 0, given)
      }),
      primaryKey: columns
        .filter(({ pk }) => pk > 0)
        .sort((a, b) => a.pk - b.pk)
        .map((one) => one.name)
        .join(', '),
      unique: described
        .filter(({ unique, origin }) => unique === 1 && origin !== 'pk')
        .map(({ text }) => text)
        .sort(),
      indexes: described
        .filter(({ unique }) => unique === 0)
        .map(({ text }) => text)
        .sort(),
      references: [...Map.groupBy(keys, ({ id }) => id).values()]
        .map((key) => {
          const side = (name_: 'from' | 'to') => key.map((one) => one[name_]).join(', ')
          return `${side('from')} -> ${key[0]?.table ?? ''} (${side('to')})`
        })
        .sort(),
      checks: checksOf(source).map(plain).sort(),
    }
  })
  database.close()
  return tables
}

const KINDS: Readonly<Record<string, string>> = {
  INTEGER: 'whole number of 64 bits',
  TEXT: 'text',
  BLOB: 'bytes',
  bytea: 'bytes',
  bigint: 'whole number of 64 bits',
  text: 'text',
}

/** What stands between the parentheses after each CHECK. */
function checksOf(source: string): readonly string[] {
  return [...source.matchAll(/CHECK \(/g)].map(({ index }) => {
    let depth = 0
    const start = index + 'CHECK '.length
    for (let at = start; at < source.length; at += 1) {
      if (source[at] === '(') depth += 1
      if (source[at] === ')' && (depth -= 1) === 0) return source.slice(start, at + 1)
    }
    throw new Error('a CHECK without an end')
  })
}

async function postgresTables(url: string): Promise<readonly Table[]> {
  const names = await runSql<{ oid: string; name: string }>(
    url,
    `SELECT oid::text, relname AS name FROM pg_class
     WHERE relkind IN ('r', 'p') AND NOT relispartition AND relpersistence = 'p'
       AND relnamespace = current_schema()::regnamespace
     ORDER BY relname COLLATE "C"`,
  )
  const tables: Table[] = []
  for (const { oid, name } of names) {
    const columns = await runSql<{ name: string; type: string; required: boolean; given: boolean }>(
      url,
      `SELECT attname AS name, format_type(atttypid, atttypmod) AS type, attnotnull AS required, attidentity <> '' AS given
       FROM pg_attribute WHERE attrelid = ${oid} AND attnum > 0 AND NOT attisdropped ORDER BY attnum`,
    )
    const constraints = await runSql<{ kind: string; text: string }>(
      url,
      `SELECT contype AS kind, replace(pg_get_constraintdef(oid), '"', '') AS text FROM pg_constraint WHERE conrelid = ${oid}`,
    )
    const indexes = await runSql<{ unique: boolean; primary: boolean; text: string }>(
      url,
      `SELECT indisunique AS unique, indisprimary AS primary, replace(pg_get_indexdef(indexrelid), '"', '') AS text
       FROM pg_index WHERE indrelid = ${oid}
       UNION SELECT true, false, replace(pg_get_indexdef(indexrelid), '"', '') FROM pg_index
         JOIN pg_inherits ON inhrelid = indrelid AND inhparent = ${oid} WHERE indisunique AND NOT indisprimary`,
    )
    const withKind = (kind: string): string[] => constraints.filter((one) => one.kind === kind).map(({ text }) => text)
    tables.push({
      name,
      columns: columns.map((one) => column(one.name, KINDS[one.type] ?? one.type, one.required, one.given)),
      primaryKey: /\((.*)\)/.exec(withKind('p')[0] ?? '')?.[1] ?? '',
      unique: indexes
        .filter(({ unique, primary }) => unique && !primary)
        .map(({ text }) => indexText(text))
        .sort(),
      indexes: indexes
        .filter(({ unique }) => !unique)
        .map(({ text }) => indexText(text))
        .sort(),
      references: withKind('f')
        .map((text) => {
          const [, from = '', table = '', to = ''] =
            /^FOREIGN KEY \((.*)\) REFERENCES (?:\w+\.)?(\w+)\((.*)\)$/.exec(text) ?? []
          return `${from} -> ${table} (${to})`
        })
        .sort(),
      checks: withKind('c')
        .map((text) => plain(text.replace(/^CHECK /, '')))
        .sort(),
    })
  }
  return tables
}

describe('the migrations of both databases', () => {
  const server = postgres()

  const migrated = async (): Promise<PostgresSchema> => {
    const schema = await PostgresSchema.create(server.url)
    for (const { sql } of postgresMigrations()) await runSql(schema.url, sql)
    return schema
  }

  it('are the same in number', () => {
    expect(postgresMigrations().map(({ number }) => number)).toEqual(sqliteMigrations().map(({ number }) => number))
  })

  it('end in the same tables, columns, keys, references, conditions and indexes', async () => {
    await using schema = await migrated()
    const expected = sqliteTables()
    expect(expected.length).toBeGreaterThan(20)
    expect(expected.some(({ checks }) => checks.includes('charged+granted_out<=cap_in_force'))).toBe(true)
    // SQLite has one writer at a time: nothing to lock.
    const shared = (await postgresTables(schema.url)).filter(({ name }) => name !== 'row_numbers')
    // A partition that refers to a table locks it when it is made or dropped.
    const partitioned = expected.map((table) => (table.name === 'usage' ? { ...table, references: [] } : table))
    expect(shared).toEqual(partitioned)
  })

  it('compare text by its bytes wherever PostgreSQL looks it up or puts it in order', async () => {
    await using schema = await migrated()
    const others = await runSql(
      schema.url,
      `SELECT DISTINCT c.relname AS table, a.attname AS column
       FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
       JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
       WHERE c.relnamespace = current_schema()::regnamespace AND a.attcollation <> 0 AND a.attcollation <> '"C"'::regcollation`,
    )
    expect(others).toEqual([])
  })
})
