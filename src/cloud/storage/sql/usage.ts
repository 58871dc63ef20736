/**
 * Usage records: of the cloud's own decisions, one row for each instance of a transaction, and of devices' entries, one for each segment,
 * whose records are made when they are read. They share one sequence of row numbers with the events. The records of row `s` have the
 * positions up to `s * USAGE_ROW_POSITIONS`, in order.
 */
import { type RawBuilder, sql as statement } from 'kysely'
import type { Delivery } from '../device-records.ts'
import { type EventRecord, USAGE_ROW_POSITIONS, type UsageRecord, rowOfPosition } from '../records.ts'
import { insertEvent } from './events.ts'
import { type UsageRow, rowOfDelivery, rowsOfRecords } from './packed-usage.ts'
import { usageReader } from './read-usage.ts'
import { inserter } from './row-numbers.ts'
import { type Sql, parts, prepared, repeated } from './sql.ts'
import { endOf, endsOf, highest } from './usage-positions.ts'

/**
 * @returns the accessor, and a function that writes the appended records: the transaction's last step, after all other
 * locks
 */
export function usageTransaction(sql: Sql) {
  const { db, lockRows } = sql
  const appended: ({ readonly records: UsageRecord[] } | Delivery | EventRecord)[] = []
  const settled = async (): Promise<bigint> => {
    const { ahead } = sql
    if (ahead === null) return endOf(sql)
    // Sent together: the server gives the lock back even if this node stops here, and before this transaction's commit.
    await ahead({ compile: () => statement`SAVEPOINT settled`.compile(db) })
    await ahead({ compile: () => LOCK_NUMBERS.compile(db) })
    const ends = await ahead(endsOf(sql))
    await statement`ROLLBACK TO SAVEPOINT settled`.execute(db)
    return highest(ends())
  }
  const usage = {
    ...usageReader(sql),
    /** All later records will have higher positions. 0: no records. */
    settled,
    /**
     * After a restore: new records get positions above `position`; positions from the backup's end up to it are marked
     * as lost.
     */
    async passForgotten(position: bigint): Promise<void> {
      if (lockRows) await LOCK_NUMBERS.execute(db)
      const end = await endOf(sql)
      if (position <= end) return
      const row = rowOfPosition(position)
      const lost = { lost_up_to: row * USAGE_ROW_POSITIONS }
      // Without records since the last ones were passed, they all follow the end of one backup.
      const passed = db.updateTable('forgotten_usage').set(lost).where('lost_up_to', '=', end)
      if ((await passed.returning('backup_end').execute()).length === 0) {
        await db
          .insertInto('forgotten_usage')
          .values({ backup_end: end, ...lost })
          .execute()
      }
      if (lockRows) {
        // Rolled back transactions may have used numbers above the newest record.
        const last = statement`GREATEST(${row}::BIGINT, pg_sequence_last_value(${ROW_NUMBERS}))`
        await statement`SELECT setval(${ROW_NUMBERS}, ${last})`.execute(db)
      } else {
        await setLastRow(sql, row)
      }
    },
    /** Written at the end of the transaction, which cannot read them. */
    async append(records: readonly UsageRecord[]): Promise<void> {
      const last = appended.at(-1)
      if (last !== undefined && 'records' in last) last.records.push(...records)
      else appended.push({ records: [...records] })
    },
    /** Among the appended records, in the same sequence. */
    async deliver(delivery: Delivery): Promise<void> {
      appended.push(delivery)
    },
  }
  const events = {
    /** Among the appended usage records, in the same sequence. An event with a known id is not written again. */
    async append(...records: readonly EventRecord[]): Promise<void> {
      appended.push(...records)
    },
  }
  return {
    usage,
    events,
    write: async (): Promise<void> => {
      let rows: Omit<UsageRow, 'seq'>[] = []
      for (const one of appended) {
        if ('records' in one) rows.push(...rowsOfRecords(one.records))
        else if ('entries' in one) rows.push(rowOfDelivery(one))
        else {
          await insertRows(sql, rows)
          rows = []
          await insertEvent(sql, await nextSeq(sql), one)
        }
      }
      await insertRows(sql, rows)
    },
  }
}

async function insertRows(sql: Sql, rows: readonly Omit<UsageRow, 'seq'>[]): Promise<void> {
  const query = sql.lockRows ? insertingNumbered : inserting
  for (const some of parts(rows)) {
    const parameters = some.flatMap((row) => Object.values(row))
    await sql.db.executeQuery(query(sql.db, parameters, some.length))
  }
}

/** Waits for the transactions of all rows that have a number, and keeps others from getting one. */
const LOCK_NUMBERS = statement`LOCK TABLE row_numbers IN SHARE MODE`

const ROW_NUMBERS = statement`pg_get_serial_sequence('usage', 'seq')::regclass`

/** In PostgreSQL an expression, so that the row gets its number under the lock of {@link inserter}. */
async function nextSeq(sql: Sql): Promise<bigint | RawBuilder<bigint>> {
  return sql.lockRows ? statement<bigint>`nextval(${ROW_NUMBERS})` : nextRow(sql)
}

/** SQLite: the next number, as AUTOINCREMENT would take it. */
async function nextRow(sql: Sql): Promise<bigint> {
  const [row] = (await sql.db.executeQuery(nextNumber(sql.db, []))).rows
  if (row !== undefined) return row.seq
  await setLastRow(sql, 1n)
  return 1n
}

const nextNumber = prepared((db) => ({
  compile: () =>
    statement<{
      seq: bigint
    }>`UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'usage' RETURNING seq`.compile(db),
}))

async function setLastRow({ db }: Sql, row: bigint): Promise<void> {
  await statement`DELETE FROM sqlite_sequence WHERE name = 'usage'`.execute(db)
  await statement`INSERT INTO sqlite_sequence (name, seq) VALUES ('usage', ${row})`.execute(db)
}

/** Parameters follow the columns of {@link SAMPLE}. */
const inserting = prepared((db, count) => insert({ db, lockRows: false }, count))
const insertingNumbered = prepared((db, count) => insert({ db, lockRows: true }, count))

function insert(sql: Pick<Sql, 'db' | 'lockRows'>, count: number) {
  return inserter(sql).insertInto('usage').values(repeated(count, SAMPLE))
}

const SAMPLE: Omit<UsageRow, 'seq'> = {
  instance_id: null,
  records: 0n,
  refused: 0n,
  from_time: 0n,
  to_time: 0n,
  write_time: 0n,
  device_id: null,
  epoch: null,
  segment: null,
  branch: null,
  first_entry: null,
  last_entry: null,
  body: Buffer.alloc(0),
}
