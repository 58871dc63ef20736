/** Checks that the database is suitable and migrates it. If several nodes start at once, one migrates and the others wait. */
import pg from 'pg'
import { CodedError } from '../../../protocol/errors.ts'
import { type Migration, readMigrations } from '../../../platform/migrations.ts'
import { SESSION_SHARED, coded } from './failures.ts'
import { type DatabaseAddress, Hosts, bounded, requirePrimary } from './hosts.ts'
import { type Limits, SERVER_VERSION_MIN } from './limits.ts'
import { makePartitions } from './partitions.ts'
import { ADVISORY_CLASS } from './rule-locks.ts'

export function migrations(): readonly Migration[] {
  return readMigrations(new URL('./migrations/', import.meta.url))
}

/** Exists while the rows of another database are being copied into this one. */
export const MIGRATION_TABLE = 'tallygate_migration'

/**
 * Migrates the tables and makes the first partitions; returns the number of the schema that contains them.
 *
 * @throws CodedError CONFIG_INVALID, DATABASE_UNREACHABLE, DATABASE_REFUSED, DATABASE_UNSUITABLE, DATABASE_CORRUPT,
 * DATABASE_NEWER, MIGRATION_UNFINISHED
 */
export async function prepareDatabase(address: DatabaseAddress, limits: Limits): Promise<number> {
  const { client, schema } = await openDatabaseOfServer(address, limits)
  try {
    if (await hasTable(client, MIGRATION_TABLE)) {
      throw new CodedError('MIGRATION_UNFINISHED', `${address.shown} contains an unfinished migration.`)
    }
    await makePartitions(client, schema)
    return schema
  } catch (error) {
    throw coded(error, address.shown)
  } finally {
    await client.end()
  }
}

/**
 * Migrates the tables; returns a connection, and the number of the schema that contains them.
 *
 * @throws CodedError as {@link prepareDatabase}, without MIGRATION_UNFINISHED
 */
export async function openDatabaseOfServer(
  address: DatabaseAddress,
  limits: Limits,
): Promise<{ readonly client: pg.Client; readonly schema: number }> {
  const { shown } = address
  try {
    const { client, schema } = await connect(address, limits)
    try {
      await migrate(client, schema, shown)
      return { client, schema }
    } catch (error) {
      await client.end()
      throw error
    }
  } catch (error) {
    throw coded(error, shown)
  }
}

async function connect(
  address: DatabaseAddress,
  limits: Limits,
): Promise<{ readonly client: pg.Client; readonly schema: number }> {
  const hosts = new Hosts(address, limits)
  return hosts.connect(async () => {
    let client: pg.Client
    try {
      client = new pg.Client(hosts.current)
    } catch (cause) {
      // For example, a certificate that cannot be read.
      const words = cause instanceof Error ? cause.message : String(cause)
      throw new CodedError('CONFIG_INVALID', `The address of the database cannot be used: ${words}`)
    }
    // The pending statement reports connection errors.
    client.on('error', () => undefined)
    try {
      await client.connect()
      await requirePrimary(client, limits)
      await requireOwnSession(client, () => new pg.Client(hosts.current), limits, address.shown)
      return { client, schema: await judge(client, limits, address.shown) }
    } catch (cause) {
      await client.end().catch(() => undefined)
      throw cause
    }
  })
}

/**
 * Prepared statements, timeouts, durability and locks belong to a session. A pooler that changes the session with each
 * transaction gives an idle one to the next connection.
 *
 * @throws CodedError DATABASE_UNSUITABLE
 */
async function requireOwnSession(
  client: pg.Client,
  newClient: () => pg.Client,
  limits: Limits,
  shown: string,
): Promise<void> {
  const session = await sessionOf(client, limits)
  // A pooler invents the number with which it greets.
  if (session === (client as pg.Client & { readonly processID: number }).processID) return
  const other = newClient()
  other.on('error', () => undefined)
  try {
    await other.connect()
    if ((await sessionOf(other, limits)) !== session) return
  } finally {
    await other.end().catch(() => undefined)
  }
  throw new CodedError('DATABASE_UNSUITABLE', `${shown}: ${SESSION_SHARED}.`)
}

async function sessionOf(client: pg.Client, limits: Limits): Promise<number | undefined> {
  const { rows } = await client.query<{ pid: number }>(bounded('SELECT pg_backend_pid() AS pid', limits))
  return rows[0]?.pid
}

/** Encodings for every character. SQL_ASCII stores bytes unchanged, and the driver sends UTF-8. */
const ENCODINGS: ReadonlySet<string> = new Set(['UTF8', 'SQL_ASCII'])

interface ServerSettings {
  readonly version: bigint
  readonly version_text: string
  readonly encoding: string
  /** Null: no schema in the search path exists. */
  readonly schema: bigint | null
}

async function judge(client: pg.Client, limits: Limits, shown: string): Promise<number> {
  const text = `
    SELECT current_setting('server_version_num')::bigint AS version, current_setting('server_version') AS version_text,
      current_setting('server_encoding') AS encoding, (SELECT oid::bigint FROM pg_namespace WHERE nspname = current_schema()) AS schema`
  const { rows } = await client.query<ServerSettings>(bounded(text, limits))
  const [inputs] = rows
  if (inputs === undefined) throw new Error('invariant: a SELECT without FROM has one row')
  const unsuitable = (text: string) => new CodedError('DATABASE_UNSUITABLE', `${shown}: ${text}`)
  if (inputs.version < BigInt(SERVER_VERSION_MIN) * 10_000n) {
    throw unsuitable(`the server is PostgreSQL ${inputs.version_text}; it must be ${SERVER_VERSION_MIN} or newer.`)
  }
  if (!ENCODINGS.has(inputs.encoding)) throw unsuitable(`the encoding is ${inputs.encoding}; it must be UTF8.`)
  if (inputs.schema === null) throw unsuitable('no schema in the search path exists. Create one for the tables.')
  // Half of an advisory lock key is a signed 32-bit integer.
  return Number(inputs.schema) | 0
}

/**
 * Runs each migration in a transaction with its number, under a lock against other nodes.
 * @throws CodedError DATABASE_NEWER, DATABASE_UNSUITABLE if another program has tables in the schema
 */
async function migrate(client: pg.Client, schema: number, shown: string): Promise<void> {
  const all = migrations()
  const newest = all.at(-1)?.number ?? 0
  const judged = (version: number): number => {
    if (version <= newest) return version
    throw new CodedError(
      'DATABASE_NEWER',
      `${shown} has schema ${version}; this version of tallygate supports up to ${newest}.`,
    )
  }
  if ((await knowsVersions(client)) && judged(await versionOf(client)) === newest) return
  for (const { number, sql } of all) {
    await client.query('BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE')
    try {
      // Tables may be large, and another node may be migrating.
      await client.query(`SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true)`)
      await client.query('SELECT pg_advisory_xact_lock($1, $2)', [MIGRATION_CLASS, schema])
      if (!(await knowsVersions(client))) {
        await requireEmpty(client, shown)
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
      throw error
    }
  }
}

const MIGRATION_CLASS = ADVISORY_CLASS + 1

/** Tables of extensions do not count. */
async function requireEmpty(client: pg.Client, shown: string): Promise<void> {
  const { rows } = await client.query<{ name: string }>(`
    SELECT relname AS name FROM pg_class
    WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
      AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = pg_class.oid AND deptype = 'e')
    ORDER BY relname LIMIT 1`)
  const [other] = rows
  if (other === undefined) return
  const problem = `it must be empty, but contains ${other.name} of another program`
  throw new CodedError('DATABASE_UNSUITABLE', `${shown}: ${problem}.`)
}

const knowsVersions = (client: pg.Client): Promise<boolean> => hasTable(client, 'tallygate_schema')

export async function hasTable(client: pg.Client, name: string): Promise<boolean> {
  const { rows } = await client.query<{ known: boolean }>(
    'SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = current_schema() AND tablename = $1) AS known',
    [name],
  )
  return rows[0]?.known === true
}

async function versionOf(client: pg.Client): Promise<number> {
  const { rows } = await client.query<{ version: bigint | null }>('SELECT max(number) AS version FROM tallygate_schema')
  return Number(rows[0]?.version ?? 0n)
}
