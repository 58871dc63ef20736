/**
 * Usage records: of the cloud's own decisions, one row each, and of devices' entries, one delivery for each segment, whose
 * records are made when they are read. Both share one sequence of row numbers with the events. The records of row `s` have the positions up
 * to `s * USAGE_ROW_POSITIONS`, in order.
 */
import { type RawBuilder, sql as statement } from 'kysely'
import { SEGMENT_ENTRIES_MAX } from '../../../protocol/edge/sync.ts'
import type { Delivery } from '../device-records.ts'
import { type EventRecord, USAGE_ROW_POSITIONS, type UsageRecord } from '../records.ts'
import { insertEvent } from './events.ts'
import { packDelivery } from './packed-delivery.ts'
import { usageReader } from './read-usage.ts'
import { inserter } from './row-numbers.ts'
import { type Sql, parts, prepared, repeated, toFlag } from './sql.ts'
import type { Row } from './tables.ts'
import { endOf, endsOf, highest, rowOfPosition } from './usage-positions.ts'
import { SAMPLE, rowOf } from './usage-rows.ts'

/**
 * @returns the accessor, and a function that writes the appended records: the transaction's last step, after all other
 * locks
 */
export function usageTransaction(sql: Sql) {
  const { db, lockRows } = sql
  const appended: (UsageRecord | Delivery | EventRecord)[] = []
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
      await db
        .insertInto('forgotten_usage')
        .values({ backup_end: end, lost_up_to: row * USAGE_ROW_POSITIONS })
        .execute()
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
      appended.push(...records)
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
      for (let at = 0; at < appended.length;) {
        const next = appended[at]
        if (next === undefined) throw new Error('invariant: the list has no holes')
        if ('data' in next) {
          await insertEvent(sql, await nextSeq(sql), next)
          at += 1
          continue
        }
        const table = tableOf(next)
        const end = appended.findIndex((each, index) => index > at && tableOf(each) !== table)
        const [some = []] = parts(appended.slice(at, end === -1 ? appended.length : end))
        if (table === 'deliveries') await insertDeliveries(sql, some as readonly Delivery[])
        else {
          const parameters = (some as readonly UsageRecord[]).flatMap((record) => Object.values(rowOf(record)))
          await db.executeQuery((lockRows ? insertingNumbered : inserting)(db, parameters, some.length))
        }
        at += some.length
      }
    },
  }
}

function tableOf(one: UsageRecord | Delivery | EventRecord): 'deliveries' | 'usage' | 'events' {
  if ('entries' in one) return 'deliveries'
  return 'data' in one ? 'events' : 'usage'
}

/** Waits for the transactions of all rows that have a number, and keeps others from getting one. */
const LOCK_NUMBERS = statement`LOCK TABLE row_numbers IN SHARE MODE`

const ROW_NUMBERS = statement`pg_get_serial_sequence('usage', 'seq')::regclass`

async function insertDeliveries(sql: Sql, deliveries: readonly Delivery[]): Promise<void> {
  const count = deliveries.length
  const first = sql.lockRows ? null : await nextRows(sql, BigInt(count))
  const parameters = deliveries.flatMap((delivery, index) => [
    ...(first === null ? [] : [first + BigInt(index)]),
    ...Object.values(rowOfDelivery(delivery)),
  ])
  const query = sql.lockRows ? insertedNumbered : insertedDeliveries
  await sql.db.executeQuery(query(sql.db, parameters, count))
}

function rowOfDelivery(delivery: Delivery): Omit<Row<'deliveries'>, 'seq'> {
  const { sums, entries } = delivery
  const [first, last] = [entries[0]?.n ?? 0, entries.at(-1)?.n ?? 0]
  const isBounded = BigInt(sums.records) <= USAGE_ROW_POSITIONS && last - first < SEGMENT_ENTRIES_MAX
  if (!isBounded) throw new Error('invariant: a segment is bounded')
  return {
    device_id: delivery.deviceId,
    epoch: BigInt(delivery.epoch),
    segment: BigInt(delivery.segment),
    branch: toFlag(delivery.branch),
    first_entry: BigInt(first),
    last_entry: BigInt(last),
    instance_id: sums.instanceId,
    records: BigInt(sums.records),
    from_time: BigInt(sums.from),
    to_time: BigInt(sums.to),
    write_time: BigInt(delivery.inputs.writeTime),
    body: packDelivery(delivery),
  }
}

/** Parameters follow the field sequence of {@link rowOfDelivery}. */
const insertedDeliveries = prepared((db, count) =>
  db.insertInto('deliveries').values(repeated(count, { seq: 0n, ...NO_DELIVERY })),
)
const insertedNumbered = prepared((db, count) => {
  const row = { seq: statement<bigint>`nextval(${ROW_NUMBERS})`, ...NO_DELIVERY }
  return inserter({ db, lockRows: true }).insertInto('deliveries').values(repeated(count, row))
})

const NO_DELIVERY: Omit<Row<'deliveries'>, 'seq'> = {
  device_id: '',
  epoch: 0n,
  segment: 0n,
  branch: 0n,
  first_entry: 0n,
  last_entry: 0n,
  instance_id: null,
  records: 0n,
  from_time: 0n,
  to_time: 0n,
  write_time: 0n,
  body: Buffer.alloc(0),
}

/** In PostgreSQL an expression, so that the row gets its number under the lock of {@link inserter}. */
async function nextSeq(sql: Sql): Promise<bigint | RawBuilder<bigint>> {
  return sql.lockRows ? statement<bigint>`nextval(${ROW_NUMBERS})` : nextRows(sql, 1n)
}

/** SQLite: the first of the next `count` numbers, as AUTOINCREMENT would take them. */
async function nextRows(sql: Sql, count: bigint): Promise<bigint> {
  const [row] = (await sql.db.executeQuery(nextNumbers(sql.db, [count]))).rows
  if (row !== undefined) return row.seq - count + 1n
  await setLastRow(sql, count)
  return 1n
}

const nextNumbers = prepared((db) => ({
  compile: () =>
    statement<{
      seq: bigint
    }>`UPDATE sqlite_sequence SET seq = seq + ${1n} WHERE name = 'usage' RETURNING seq`.compile(db),
}))

async function setLastRow({ db }: Sql, row: bigint): Promise<void> {
  await statement`DELETE FROM sqlite_sequence WHERE name = 'usage'`.execute(db)
  await statement`INSERT INTO sqlite_sequence (name, seq) VALUES ('usage', ${row})`.execute(db)
}

/** Parameters follow the field sequence of {@link rowOf}. */
const inserting = prepared((db, count) => insert({ db, lockRows: false }, count))
const insertingNumbered = prepared((db, count) => insert({ db, lockRows: true }, count))

function insert(sql: Pick<Sql, 'db' | 'lockRows'>, count: number) {
  return inserter(sql)
    .insertInto('usage')
    .values(repeated(count, rowOf(SAMPLE)))
}
