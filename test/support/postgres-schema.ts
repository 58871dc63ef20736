// A place of its own in a PostgreSQL server that others may use too: an empty schema, and the address that leads into it.
import { randomUUID } from 'node:crypto'
import pg from 'pg'
import type { UsageRecord } from '../../src/cloud/storage/records.ts'
import { type UsageRow, recordsOf } from '../../src/cloud/storage/sql/packed-usage.ts'

// A table is made after those that it refers to, so the newest is emptied first. Positions of usage begin anew.
export const EMPTY_TABLES = `DO $$ DECLARE its record; BEGIN
  FOR its IN SELECT relname FROM pg_class
    WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace AND relname <> 'tallygate_schema'
    ORDER BY oid DESC
  LOOP EXECUTE format('DELETE FROM %I', its.relname); END LOOP;
  FOR its IN SELECT relname FROM pg_class WHERE relkind = 'S' AND relnamespace = current_schema()::regnamespace
  LOOP EXECUTE format('ALTER SEQUENCE %I RESTART', its.relname); END LOOP;
END $$`

export class PostgresSchema implements AsyncDisposable {
  /** Its connections find and make tables in this schema only. */
  readonly url: string
  readonly #server: string
  readonly #name: string

  private constructor(server: string, name: string) {
    this.#server = server
    this.#name = name
    const url = new URL(server)
    url.searchParams.set('options', `-csearch_path=${name}`)
    this.url = url.href
  }

  /** @param server address of a server whose user may make schemas */
  static async create(server: string): Promise<PostgresSchema> {
    const name = `test_${randomUUID().replaceAll('-', '')}`
    await runSql(server, `CREATE SCHEMA ${name}`)
    return new PostgresSchema(server, name)
  }

  /** Forgets every row but the versions of the tables; far cheaper than another schema with the same tables. */
  async empty(): Promise<void> {
    await runSql(this.url, EMPTY_TABLES)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await runSql(this.#server, `SET client_min_messages = warning; DROP SCHEMA ${this.#name} CASCADE`)
  }
}

/** Runs statements on a connection of their own; the rows of the last one. */
export async function runSql<R extends pg.QueryResultRow>(url: string, text: string): Promise<readonly R[]> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  try {
    const result = (await client.query(text)) as pg.QueryResult<R> | pg.QueryResult<R>[]
    return [result].flat().at(-1)?.rows ?? []
  } finally {
    await client.end()
  }
}

/** All usage records of the database. */
export async function usageIn(url: string): Promise<readonly UsageRecord[]> {
  return (await usageRowsIn(url)).flatMap(recordsOf)
}

export async function usageRowsIn(url: string): Promise<readonly UsageRow[]> {
  return runSql<pg.QueryResultRow & UsageRow>(url, 'SELECT * FROM usage ORDER BY seq')
}
