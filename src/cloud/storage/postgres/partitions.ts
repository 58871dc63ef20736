/**
 * Partitions of the usage by ranges of row numbers. They are made in advance and dropped when everything in them is archived, which
 * gives their space back. docs/decisions/usage-partitions.md explains the locks.
 */
import pg from 'pg'
import { USAGE_ROW_POSITIONS } from '../records.ts'
import { ADVISORY_CLASS } from './rule-locks.ts'

/** Numbers of a partition: at least so many, or this part of the rows that are there. */
const PARTITION_ROWS_MIN = 1n << 18n
const PARTITIONS = 8n

/** Numbers that other transactions may take while a partition is made, if there was none for them. */
const MARGIN = 1n << 14n

/** Others wait behind this wait. */
const LOCK_TIMEOUT_MS = 200

const PARTITIONS_CLASS = ADVISORY_CLASS + 3

/**
 * Makes the next partitions. What is not possible now is left to the next call.
 * @param schema number of the schema that contains the tables
 */
export async function makePartitions(client: pg.ClientBase, schema: number): Promise<void> {
  await alone(client, schema, () => addNext(client))
}

/** Also drops the partitions whose rows are all archived. */
export async function keepPartitions(client: pg.ClientBase, schema: number): Promise<void> {
  await alone(client, schema, async () => {
    await addNext(client)
    await dropArchived(client)
  })
}

/** Does nothing if another node is at it. After a failure, the connection must be closed: it keeps the lock. */
async function alone(client: pg.ClientBase, schema: number, work: () => Promise<void>): Promise<void> {
  const lock = [PARTITIONS_CLASS, schema]
  const { rows } = await client.query<{ locked: boolean }>('SELECT pg_try_advisory_lock($1, $2) AS locked', lock)
  if (rows[0]?.locked !== true) return
  await work()
  await client.query('SELECT pg_advisory_unlock($1, $2)', lock)
}

export function partitionRows(rows: bigint): bigint {
  const part = rows / PARTITIONS
  return part > PARTITION_ROWS_MIN ? part : PARTITION_ROWS_MIN
}

/** Between these row numbers, as far as there are none yet. */
export async function createPartitions(client: pg.ClientBase, bounds: readonly bigint[]): Promise<void> {
  const end = endOf(await partitionsOf(client))
  for (const [index, bound] of bounds.slice(0, -1).entries()) {
    const from = bound > end ? bound : end
    const to = bounds[index + 1] ?? from
    if (from < to) await createPartition(client, from, to)
  }
}

/** For the row numbers from the one on, below the other. Writers do not wait for it. */
async function createPartition(client: pg.ClientBase, from: bigint, to: bigint): Promise<void> {
  const name = `usage_from_${from}`
  const like = 'INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES INCLUDING STORAGE'
  await client.query(`CREATE TABLE ${name} (LIKE usage ${like})`)
  await client.query(
    `CREATE UNIQUE INDEX ${name}_by_entry ON ${name} (device_id, epoch, first_entry, (branch * seq)) WHERE epoch IS NOT NULL`,
  )
  await client.query(`ALTER TABLE usage ATTACH PARTITION ${name} FOR VALUES FROM (${from}) TO (${to})`)
}

async function addNext(client: pg.ClientBase): Promise<void> {
  const { rows } = await client.query<{ last: bigint | null; rows: bigint }>(
    `SELECT pg_sequence_last_value(pg_get_serial_sequence('usage', 'seq')::regclass) AS last,
       (SELECT sum(greatest(reltuples, 0))::bigint FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
         WHERE inhparent = 'usage'::regclass) AS rows`,
  )
  const last = rows[0]?.last ?? 0n
  const size = partitionRows(rows[0]?.rows ?? 0n)
  const end = endOf(await partitionsOf(client))
  if (end > last + size) return
  const from = end > last ? end : last + MARGIN
  await briefly(client, () => createPartition(client, from, from + size))
}

async function dropArchived(client: pg.ClientBase): Promise<void> {
  const { rows } = await client.query<{ archived: bigint | null }>('SELECT max(up_to) AS archived FROM usage_archives')
  const archived = (rows[0]?.archived ?? 0n) / USAGE_ROW_POSITIONS
  for (const { name, end, bytes } of await partitionsOf(client)) {
    if (end > archived + 1n || (bytes > 0n && !(await isVacuumed(client, name)))) continue
    const isDone = await briefly(client, async () => {
      await client.query('LOCK TABLE ONLY usage IN ACCESS EXCLUSIVE MODE')
      if ((await sizeOf(client, name)) === 0n) await client.query(`DROP TABLE ${name}`)
    })
    // Each attempt keeps others waiting.
    if (!isDone) return
  }
}

/** VACUUM leaves a row that an older snapshot still sees: only an empty file proves that nothing reads it. */
async function isVacuumed(client: pg.ClientBase, name: string): Promise<boolean> {
  const { rows } = await client.query(`SELECT seq FROM ${name} ORDER BY seq DESC LIMIT 1`)
  if (rows.length > 0) return false
  try {
    await client.query(`VACUUM (SKIP_LOCKED) ${name}`)
  } catch (error) {
    // Autovacuum has no limit.
    if (!isForLater(error)) throw error
  }
  return (await sizeOf(client, name)) === 0n
}

async function sizeOf(client: pg.ClientBase, name: string): Promise<bigint | undefined> {
  const { rows } = await client.query<{ bytes: bigint }>('SELECT pg_relation_size($1::regclass) AS bytes', [name])
  return rows[0]?.bytes
}

interface Partition {
  readonly name: string
  /** The first number after it. */
  readonly end: bigint
  /** Without indexes. */
  readonly bytes: bigint
}

/** The first number after all of them. */
function endOf(partitions: readonly Partition[]): bigint {
  return partitions.reduce((most, { end }) => (end > most ? end : most), 1n)
}

async function partitionsOf(client: pg.ClientBase): Promise<readonly Partition[]> {
  const { rows } = await client.query<Partition>(
    String.raw`SELECT relname AS name, pg_relation_size(pg_class.oid) AS bytes,
      (regexp_match(pg_get_expr(relpartbound, pg_class.oid), 'TO \(''(\d+)''\)'))[1]::bigint AS end
    FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
    WHERE inhparent = 'usage'::regclass AND relname <> 'usage_rest'`,
  )
  return rows
}

/** A transaction that gives up if it does not get its locks soon. Returns whether it is done. */
async function briefly(client: pg.ClientBase, work: () => Promise<void>): Promise<boolean> {
  await client.query(`BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = ${LOCK_TIMEOUT_MS}`)
  // A commit keeps its locks while it waits for a standby. Rows that need the partition follow it in the log.
  await client.query('SET LOCAL synchronous_commit = local')
  try {
    await work()
    await client.query('COMMIT')
    return true
  } catch (error) {
    if (!isForLater(error)) throw error
    await client.query('ROLLBACK')
    return false
  }
}

function isForLater(error: unknown): boolean {
  return error instanceof pg.DatabaseError && LATER.has(error.code ?? '')
}

const LATER: ReadonlySet<string> = new Set([
  '55P03', // lock_not_available
  '40P01', // deadlock_detected
  '57014', // query_canceled: the statement's limit
  '23514', // check_violation: a row for the new partition was written before it was there
])
