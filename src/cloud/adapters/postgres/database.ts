/**
 * Makes sure that a database is one that the store can rest on, and brings its tables up to date. Several nodes may start
 * at once: one of them does the work, the others wait for it.
 */
import pg from 'pg'
import { CodedError } from '../../../protocol/errors.ts'
import { type Migration, readMigrations } from '../sql/migrations.ts'
import type { DatabaseAddress } from './address.ts'
import { NotConnected, coded } from './failures.ts'
import { type Limits, SERVER_VERSION_MIN } from './limits.ts'
import { connectionOptions } from './pool.ts'
import { ADVISORY_CLASS } from './rule-locks.ts'

export function migrations(folder = new URL('./migrations/', import.meta.url)): readonly Migration[] {
  return readMigrations(folder)
}

/**
 * The number of the schema that holds the tables, which are as new as this program.
 *
 * @throws CodedError CONFIG_INVALID, DATABASE_UNREACHABLE, DATABASE_REFUSED, DATABASE_UNSUITABLE, DATABASE_CORRUPT,
 *   DATABASE_NEWER
 */
export async function prepareDatabase(address: DatabaseAddress, limits: Limits, all = migrations()): Promise<number> {
  const { shown } = address
  try {
    const client = await connect(address, limits)
    try {
      const schema = await judge(client, shown)
      await migrate(client, schema, shown, all)
      return schema
    } finally {
      await client.end()
    }
  } catch (error) {
    throw coded(error, shown)
  }
}

async function connect({ connectionString }: DatabaseAddress, limits: Limits): Promise<pg.Client> {
  let client: pg.Client
  try {
    client = new pg.Client(connectionOptions(connectionString, limits))
  } catch (cause) {
    // A certificate that cannot be read, for one.
    const words = cause instanceof Error ? cause.message : String(cause)
    throw new CodedError('CONFIG_INVALID', `The address of the database cannot be used: ${words}`)
  }
  // What happens to the connection is heard from the statement under way.
  client.on('error', () => undefined)
  try {
    await client.connect()
  } catch (cause) {
    throw new NotConnected('no connection', { cause })
  }
  return client
}

/** Those that hold every character. SQL_ASCII keeps the bytes as they come, and the driver only sends UTF-8. */
const ENCODINGS: ReadonlySet<string> = new Set(['UTF8', 'SQL_ASCII'])

interface Facts {
  readonly version: bigint
  readonly version_text: string
  readonly encoding: string
  readonly reads_only: boolean
  /** Null: the search path names no schema that exists. */
  readonly schema: bigint | null
}

async function judge(client: pg.Client, shown: string): Promise<number> {
  const { rows } = await client.query<Facts>(`
    SELECT current_setting('server_version_num')::bigint AS version, current_setting('server_version') AS version_text,
      current_setting('server_encoding') AS encoding, pg_is_in_recovery() AS reads_only,
      (SELECT oid::bigint FROM pg_namespace WHERE nspname = current_schema()) AS schema`)
  const [facts] = rows
  if (facts === undefined) throw new Error('invariant: a SELECT without FROM has one row')
  const unsuitable = (text: string) => new CodedError('DATABASE_UNSUITABLE', `${shown}: ${text}`)
  if (facts.version < BigInt(SERVER_VERSION_MIN) * 10_000n) {
    throw unsuitable(`the server is PostgreSQL ${facts.version_text}; it must be ${SERVER_VERSION_MIN} or newer.`)
  }
  if (!ENCODINGS.has(facts.encoding)) throw unsuitable(`the encoding is ${facts.encoding}; it must be UTF8.`)
  if (facts.reads_only) throw unsuitable('this server only reads: it is a standby.')
  if (facts.schema === null) throw unsuitable('no schema of the search path exists; create one for the tables.')
  // As PostgreSQL's int, which the half of an advisory lock is.
  return Number(facts.schema) | 0
}

/**
 * Each migration runs in a transaction with its number, under a lock that other nodes wait for.
 * @throws CodedError DATABASE_NEWER, DATABASE_CORRUPT when there are tables of another program with the same names
 */
async function migrate(client: pg.Client, schema: number, shown: string, all: readonly Migration[]): Promise<void> {
  const newest = all.at(-1)?.number ?? 0
  const judged = (version: number): number => {
    if (version <= newest) return version
    throw new CodedError('DATABASE_NEWER', `${shown} has version ${version}, this program knows ${newest}.`)
  }
  if ((await knowsVersions(client)) && judged(await versionOf(client)) === newest) return
  for (const { number, sql } of all) {
    await client.query('BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE')
    try {
      // A table may be large, and another node may be at it.
      await client.query(`SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true)`)
      await client.query('SELECT pg_advisory_xact_lock($1, $2)', [MIGRATION_CLASS, schema])
      if (!(await knowsVersions(client))) {
        await client.query(
          'CREATE TABLE tallygate_schema (number BIGINT PRIMARY KEY, applied TIMESTAMPTZ NOT NULL DEFAULT now())',
        )
      }
      if (judged(await versionOf(client)) < number) {
        await client.query(sql)
        await client.query('INSERT INTO tallygate_schema (number) VALUES ($1)', [number])
      }
      await client.query('COMMIT')
    } catch (error) {
      await client.query('ROLLBACK').catch(() => undefined)
      if (error instanceof pg.DatabaseError && error.code === DUPLICATE_TABLE) {
        throw new CodedError('DATABASE_CORRUPT', `${shown} has tables of another program: ${error.message}.`, {
          cause: error,
        })
      }
      throw error
    }
  }
}

const MIGRATION_CLASS = ADVISORY_CLASS + 1

const DUPLICATE_TABLE = '42P07'

async function knowsVersions(client: pg.Client): Promise<boolean> {
  const { rows } = await client.query<{ known: boolean }>(
    `SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = current_schema() AND tablename = 'tallygate_schema') AS known`,
  )
  return rows[0]?.known === true
}

async function versionOf(client: pg.Client): Promise<number> {
  const { rows } = await client.query<{ version: bigint | null }>('SELECT max(number) AS version FROM tallygate_schema')
  return Number(rows[0]?.version ?? 0n)
}
