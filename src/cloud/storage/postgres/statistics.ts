/**
 * Statistics of tables that grow faster than autovacuum looks at them, once a minute. PostgreSQL keeps the plan of a prepared
 * statement until the table is analyzed: one made for an empty table reads all its rows.
 */
import type pg from 'pg'

/** More rows than twice those that the statistics know, and so many. Autovacuum does the rest. */
const GROWN_BY = 500

const GROWN = `SELECT oid::regclass::text AS name FROM pg_class
  WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
    AND pg_stat_get_live_tuples(oid) > 2 * greatest(reltuples, 0) + ${GROWN_BY}`

/** Analyzes the tables that have grown. One that is in use otherwise is left to the next call. */
export async function renewStatistics(client: pg.ClientBase): Promise<void> {
  const { rows } = await client.query<{ name: string }>(GROWN)
  for (const { name } of rows) await client.query(`ANALYZE (SKIP_LOCKED) ${name}`)
}
