/**
 * Copies the database file of a cloud into PostgreSQL. It first computes a digest of each table and keeps it in the target,
 * so that a repeated call continues only with unchanged rows. Rows arrive in the order of their primary keys, so the number
 * of rows in the target is the place to continue at. Until the copy is verified, no cloud starts on the target.
 */
import type pg from 'pg'
import { CodedError } from '../../../protocol/errors.ts'
import type { GiveWay } from '../../runtime/give-way.ts'
import { RowDigest, type TableDigest, type Value } from '../sql/row-digest.ts'
import type { Database } from '../sqlite/database.ts'
import {
  type TableShape,
  digestOf,
  lastNumberOf,
  quoted,
  rowsOf,
  tablesOf,
  usageBounds,
} from '../sqlite/read-tables.ts'
import { MIGRATION_TABLE, hasTable, openDatabaseOfServer } from './database.ts'
import { ConnectionLost, coded } from './failures.ts'
import { databaseAddress } from './hosts.ts'
import { LIMITS } from './limits.ts'
import { createPartitions, partitionRows } from './partitions.ts'
import { ADVISORY_CLASS } from './rule-locks.ts'

export interface MigratedTable extends TableDigest {
  readonly name: string
}

/** Sums over all accounts, in micro-tokens. */
export interface MigratedTokens {
  readonly accounts: number
  readonly charged: bigint
  readonly grantedOut: bigint
}

export interface MigrateStore {
  readonly source: Database
  /** Name of the source in messages. */
  readonly from: string
  /** `postgres://…` */
  readonly to: string
  /** Called when all rows of a table are in the target. */
  readonly onCopied: (table: MigratedTable) => void
  /** Called at short intervals. */
  readonly onProgress: (progress: MigrationProgress) => void
  /** The digests are long work. */
  readonly giveWay: GiveWay
}

/** Rows of a table that are read, copied or compared. */
export interface MigrationProgress {
  readonly name: string
  readonly step: 'read' | 'copied' | 'compared'
  readonly rows: number
  /** Null until all are read. */
  readonly all: number | null
}

const ROWS_MAX = 500
const BYTES_MAX = 4 * 1024 * 1024
const COPY_CLASS = ADVISORY_CLASS + 2

/**
 * @throws CodedError MIGRATION_REFUSED, MIGRATION_DIFFERS, STATE_IN_USE, and those of the database server
 */
export async function migrateStore(work: MigrateStore): Promise<MigratedTokens> {
  const { source, from, to, onCopied } = work
  requireCloud(source, from)
  const address = databaseAddress(to)
  const { client, schema } = await openDatabaseOfServer(address, LIMITS)
  const connection = { isLost: false }
  client.on('error', () => (connection.isLost = true))
  try {
    await lockTarget(client, schema, address.shown)
    const tables = await expectedTables(work)
    const bounds = usageBounds(source, partitionRows)
    const filled = await begin(client, tables, { bounds, from, shown: address.shown })
    if (filled !== null) await requireCopy(client, tables, work, { filled, shown: address.shown })
    for (const table of tables) {
      if (filled === null) {
        await copy(client, table, work)
        await verify(client, table, work)
      }
      onCopied({ name: table.name, ...table.expected })
    }
    const tokens = await compareAccounts(client, source)
    if (filled === null) await finish(client, source, tables)
    return tokens
  } catch (error) {
    const dropped = connection.isLost && !(error instanceof CodedError)
    throw coded(dropped ? new ConnectionLost('the connection was lost', { cause: error }) : error, address.shown)
  } finally {
    await client.end().catch(() => undefined)
  }
}

/** Every cloud that has started has an administration key. @throws CodedError MIGRATION_REFUSED */
function requireCloud(source: Database, from: string): void {
  if (source.prepare('SELECT 1 FROM public_keys LIMIT 1').get() !== undefined) return
  const remedy = 'Name the database file that the cloud used last, or a backup of it.'
  throw new CodedError('MIGRATION_REFUSED', `${from} is a database that no cloud has used.`, { details: { remedy } })
}

interface ExpectedTable extends TableShape {
  readonly expected: TableDigest
}

async function expectedTables({ source, onProgress, giveWay }: MigrateStore): Promise<readonly ExpectedTable[]> {
  const tables: ExpectedTable[] = []
  for (const table of tablesOf(source)) {
    const expected = await digestOf(source, table, (rows) => {
      if (rows % ROWS_MAX === 0) onProgress({ name: table.name, step: 'read', rows, all: null })
      return giveWay()
    })
    tables.push({ ...table, expected })
  }
  return tables
}

async function lockTarget(client: pg.Client, schema: number, shown: string): Promise<void> {
  const { rows } = await client.query<{ locked: boolean }>('SELECT pg_try_advisory_lock($1, $2) AS locked', [
    COPY_CLASS,
    schema,
  ])
  if (rows[0]?.locked !== true) throw new CodedError('STATE_IN_USE', `Another migration into ${shown} is running.`)
}

/**
 * Marks an empty target, and makes the partitions of its usage, or continues an unfinished migration of the same rows. Returns
 * a table with rows of a target that is neither; null: the copy can continue.
 */
async function begin(
  client: pg.Client,
  tables: readonly ExpectedTable[],
  { bounds, from, shown }: { readonly bounds: readonly bigint[]; readonly from: string; readonly shown: string },
): Promise<string | null> {
  const digests = JSON.stringify(tables.map(({ name, expected }) => ({ name, ...expected })))
  await client.query('BEGIN')
  if (await hasTable(client, MIGRATION_TABLE)) {
    const { rows } = await client.query<{ digests: string }>(`SELECT digests FROM ${MIGRATION_TABLE}`)
    if (rows[0]?.digests !== digests) {
      throw new CodedError(
        'MIGRATION_REFUSED',
        `${shown} contains an unfinished migration of other rows than ${from} has now.`,
      )
    }
  } else {
    for (const { name } of tables) {
      const { rows } = await client.query<{ filled: boolean }>(`SELECT EXISTS (SELECT FROM ${quoted(name)}) AS filled`)
      if (rows[0]?.filled !== true) continue
      await client.query('ROLLBACK')
      return name
    }
    await client.query(`CREATE TABLE ${MIGRATION_TABLE} (digests TEXT NOT NULL)`)
    await client.query(`INSERT INTO ${MIGRATION_TABLE} VALUES ($1)`, [digests])
    await createPartitions(client, bounds)
  }
  await client.query('COMMIT')
  return null
}

/** A run that was interrupted at its very end has left a finished copy. */
async function requireCopy(
  client: pg.Client,
  tables: readonly ExpectedTable[],
  work: MigrateStore,
  { filled, shown }: { readonly filled: string; readonly shown: string },
): Promise<void> {
  try {
    for (const table of tables) await verify(client, table, work)
  } catch (error) {
    if (!(error instanceof CodedError)) throw error
    throw new CodedError(
      'MIGRATION_REFUSED',
      `${shown} is not empty, and not a copy of ${work.from}: its table ${filled} has rows.`,
    )
  }
}

async function copy(client: pg.Client, table: ExpectedTable, { source, onProgress }: MigrateStore): Promise<void> {
  const { rows: counted } = await client.query<{ rows: bigint }>(`SELECT count(*) AS rows FROM ${quoted(table.name)}`)
  let rows = Number(counted[0]?.rows ?? 0n)
  let batch: Value[][] = []
  let bytes = 0
  for (const row of rowsOf(source, table, rows)) {
    batch.push(row)
    for (const value of row) bytes += value === null || typeof value === 'bigint' ? 8 : value.length
    if (batch.length < ROWS_MAX && bytes < BYTES_MAX) continue
    await insert(client, table, batch)
    rows += batch.length
    onProgress({ name: table.name, step: 'copied', rows, all: table.expected.rows })
    batch = []
    bytes = 0
  }
  if (batch.length > 0) await insert(client, table, batch)
}

async function insert(client: pg.Client, { name, columns }: TableShape, rows: readonly Value[][]): Promise<void> {
  const places = rows.map(
    (_row, index) => `(${columns.map((_column, at) => `$${index * columns.length + at + 1}`).join(', ')})`,
  )
  await client.query(
    `INSERT INTO ${quoted(name)} (${columns.map(quoted).join(', ')}) OVERRIDING SYSTEM VALUE VALUES ${places.join(', ')}`,
    rows.flat(),
  )
}

/** Reads the rows back. */
async function verify(client: pg.Client, table: ExpectedTable, { onProgress }: MigrateStore): Promise<void> {
  const { name, columns, key, expected } = table
  const order = key.map((column) => `${quoted(column.name)}${column.isText ? ' COLLATE "C"' : ''}`).join(', ')
  const digest = new RowDigest()
  await client.query('BEGIN READ ONLY')
  await client.query(
    `DECLARE copied NO SCROLL CURSOR FOR SELECT ${columns.map(quoted).join(', ')} FROM ${quoted(name)} ORDER BY ${order}`,
  )
  for (;;) {
    const { rows } = await client.query<Value[]>({ text: `FETCH ${ROWS_MAX} FROM copied`, rowMode: 'array' })
    for (const row of rows) digest.add(row)
    if (rows.length < ROWS_MAX) break
    onProgress({ name, step: 'compared', rows: digest.rows, all: expected.rows })
  }
  await client.query('COMMIT')
  const found = digest.end()
  if (found.rows !== expected.rows || found.sha256 !== expected.sha256) {
    throw new CodedError(
      'MIGRATION_DIFFERS',
      `The table ${name} has ${expected.rows} rows with digest ${expected.sha256}, and its copy has ${found.rows} with ${found.sha256}.`,
    )
  }
}

const ACCOUNTS = `
  SELECT id, CAST(charged AS TEXT) AS charged, CAST(granted_out AS TEXT) AS granted_out,
    (SELECT CAST(SUM(granted - returned - released) AS TEXT) FROM device_accounts WHERE account = accounts.id) AS on_devices,
    (SELECT CAST(SUM(used - refunded) AS TEXT) FROM device_accounts WHERE account = accounts.id) AS used_by_devices
  FROM accounts`

interface AccountSums {
  readonly id: string
  readonly charged: string
  readonly granted_out: string
  readonly on_devices: string | null
  readonly used_by_devices: string | null
}

/** Compares the tokens of each account as each database adds them up. */
async function compareAccounts(client: pg.Client, source: Database): Promise<MigratedTokens> {
  const { rows } = await client.query<AccountSums>(ACCOUNTS)
  const copies = new Map(rows.map((row) => [row.id, row]))
  let charged = 0n
  let grantedOut = 0n
  for (const account of source.prepare(ACCOUNTS).iterate() as IterableIterator<AccountSums>) {
    const copied = copies.get(account.id)
    const fields = ['charged', 'granted_out', 'on_devices', 'used_by_devices'] as const
    const wrong = fields.find((field) => copied?.[field] !== account[field])
    if (wrong !== undefined) {
      const shown = `${account[wrong] ?? 'null'}, and its copy has ${copied?.[wrong] ?? 'null'}`
      throw new CodedError('MIGRATION_DIFFERS', `The account ${account.id} has ${wrong} ${shown}.`)
    }
    charged += BigInt(account.charged)
    grantedOut += BigInt(account.granted_out)
  }
  return { accounts: rows.length, charged, grantedOut }
}

/** New rows get numbers after those of the source. Then a cloud may start. */
async function finish(client: pg.Client, source: Database, tables: readonly TableShape[]): Promise<void> {
  await client.query('BEGIN')
  await client.query('SET LOCAL synchronous_commit = on')
  for (const table of tables) {
    const last = table.isNumbered ? lastNumberOf(source, table) : null
    if (last === null) continue
    const column = table.key[0]?.name ?? 'seq'
    await client.query(`SELECT setval(pg_get_serial_sequence($1, $2)::regclass, $3)`, [
      quoted(table.name),
      column,
      last,
    ])
  }
  await client.query(`DROP TABLE ${MIGRATION_TABLE}`)
  await client.query('COMMIT')
  await client.query('ANALYZE')
}
