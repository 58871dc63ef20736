/**
 * Usage records: of the cloud's own decisions, one row each, and of devices' entries, one delivery for each segment, whose
 * records are made when they are read. Both share one sequence of row numbers with the events. The records of row `s` have the positions up
 * to `s * USAGE_ROW_POSITIONS`, in order.
 */
import { type RawBuilder, sql as statement } from 'kysely'
import { decimal, formatDecimal } from '../../../core/pricing/amount.ts'
import type { Delivery } from '../device-records.ts'
import {
  type EventRecord,
  type NewestStep,
  type NewestUsage,
  type NumberedUsage,
  USAGE_ROW_POSITIONS,
  type UsageOperation,
  type UsageRange,
  type UsageRecord,
  type UsageStep,
  type UsageSource,
} from '../records.ts'
import { insertEvent } from './events.ts'
import { inserter } from './row-numbers.ts'
import { entriesOf, packDelivery, usageOf } from './packed-delivery.ts'
import { type Sql, parts, prepared, times, toFlag } from './sql.ts'
import type { Row } from './tables.ts'

/** The first row with a later position. */
export function rowAfter(position: bigint): bigint {
  return position / USAGE_ROW_POSITIONS + 1n
}

function rowOfPosition(position: bigint): bigint {
  return (position + USAGE_ROW_POSITIONS - 1n) / USAGE_ROW_POSITIONS
}

/** Rows whose times one step compares: SQLite takes some milliseconds, in which nothing else runs. */
const ROWS_COMPARED = 50_000n

/** Records of deliveries that one step unpacks. All of them can be of other instances or times. */
const UNPACKED_RECORDS = 1_000n

type Within = Omit<UsageRange, 'limit'>

type Order = 'asc' | 'desc'

interface ListedRow {
  readonly seq: bigint
  readonly records: bigint
  /** Null: a delivery. */
  readonly row: Row<'usage'> | null
}

interface Listed {
  readonly rows: readonly ListedRow[]
  /** There are no others in the range. */
  readonly isAll: boolean
}

function least(one: bigint, other: bigint): bigint {
  return one < other ? one : other
}

/** A multiple of a row's positions. */
const POSITION_MAX = 1n << 62n

export function usageReader(sql: Sql) {
  const { db } = sql
  const usageWithin = ({ after, upTo, instanceId, from, to }: Within) => {
    let query = db.selectFrom('usage').where('seq', '>=', rowAfter(after)).where('seq', '<', rowAfter(upTo))
    if (instanceId !== null) query = query.where('instance_id', '=', instanceId)
    if (from !== null) query = query.where('usage_time', '>=', BigInt(from))
    if (to !== null) query = query.where('usage_time', '<', BigInt(to))
    return query
  }
  /** Those that can have such records: of the instance, and of several. An index has each of them in sequence. */
  const deliveriesWithin = ({ after, upTo, instanceId, from, to }: Within) => {
    let query = db.selectFrom('deliveries').where('seq', '>=', rowAfter(after)).where('seq', '<=', rowOfPosition(upTo))
    if (from !== null) query = query.where('to_time', '>=', BigInt(from))
    if (to !== null) query = query.where('from_time', '<', BigInt(to))
    if (instanceId === null) return [query]
    return [query.where('instance_id', '=', instanceId), query.where('instance_id', 'is', null)]
  }
  const listed = async (range: Within, order: Order, limit: number): Promise<Listed> => {
    const own = await usageWithin(range).selectAll().orderBy('seq', order).limit(limit).execute()
    const lists: ListedRow[][] = [own.map((row) => ({ seq: row.seq, records: 1n, row }))]
    for (const query of deliveriesWithin(range)) {
      const found = await query.select(['seq', 'records']).orderBy('seq', order).limit(limit).execute()
      lists.push(found.map((delivery) => ({ ...delivery, row: null })))
    }
    const isBefore = (one: bigint, other: bigint): boolean => (order === 'asc' ? one < other : one > other)
    // Where one list may have more, the others wait for it.
    const ends = lists.filter(({ length }) => length === limit).map((full) => full.at(-1)?.seq ?? 0n)
    const rows = lists
      .flat()
      .filter(({ seq }) => !ends.some((end) => isBefore(end, seq)))
      .sort((one, other) => (isBefore(one.seq, other.seq) ? -1 : 1))
    return { rows, isAll: ends.length === 0 }
  }
  /** Reads the deliveries of the list in its sequence: as many at a time as have so many records. */
  const deliveriesOf = (list: readonly ListedRow[], range: Within, limit: number) => {
    const known = new Map<bigint, Row<'deliveries'>>()
    let at = 0
    return async (seq: bigint): Promise<Row<'deliveries'>> => {
      if (!known.has(seq)) {
        known.clear()
        let [records, last] = [0n, seq]
        for (; records < limit && at < list.length; at += 1) {
          const next = list[at]
          if (next?.row !== null) continue
          records += next.records
          last = next.seq
        }
        const [lower, higher] = seq < last ? [seq, last] : [last, seq]
        const part = { ...range, after: (lower - 1n) * USAGE_ROW_POSITIONS, upTo: higher * USAGE_ROW_POSITIONS }
        for (const query of deliveriesWithin(part)) {
          for (const row of await query.selectAll().execute()) known.set(row.seq, row)
        }
      }
      const row = known.get(seq)
      if (row === undefined) throw new Error('invariant: the deliveries of one snapshot stay')
      return row
    }
  }
  /** @returns `last`: the row that the step ends with; null: there are no others */
  const read = async (range: Within, order: Order, limit: number) => {
    const { rows, isAll } = await listed(range, order, limit)
    const deliveryOf = deliveriesOf(rows, range, limit)
    const records: NumberedUsage[] = []
    let unpacked = 0n
    for (const { seq, records: packed, row } of rows) {
      if (row === null) {
        const found = recordsOfDelivery(await deliveryOf(seq), range)
        records.push(...(order === 'asc' ? found : found.toReversed()))
        unpacked += packed
      } else records.push({ position: seq * USAGE_ROW_POSITIONS, record: recordOf(row) })
      if (records.length >= limit || unpacked >= UNPACKED_RECORDS) return { records, last: seq }
    }
    return { records, last: isAll ? null : (rows.at(-1)?.seq ?? null) }
  }
  /** The number of the first row with a later position; null: none. A restore leaves a gap of trillions of numbers. */
  const nextRow = async (after: bigint): Promise<bigint | null> => {
    const next = (table: 'usage' | 'deliveries') =>
      db
        .selectFrom(table)
        .select((of) => of.fn.min<bigint | null>('seq').as('seq'))
        .where('seq', '>=', rowAfter(after))
    const rows = await next('usage').unionAll(next('deliveries')).execute()
    return rows.reduce<bigint | null>(
      (least, { seq }) => (least === null || (seq ?? least) < least ? seq : least),
      null,
    )
  }
  /** The number of the last row up to a position; 0: none. */
  const lastRow = async (upTo: bigint): Promise<bigint> => {
    const last = (table: 'usage' | 'deliveries') =>
      db
        .selectFrom(table)
        .select((of) => of.fn.max<bigint | null>('seq').as('seq'))
        .where('seq', '<=', rowOfPosition(upTo))
    const rows = await last('usage').unionAll(last('deliveries')).execute()
    return rows.reduce((most, { seq }) => (seq !== null && seq > most ? seq : most), 0n)
  }
  /** Write time of the first row with a later position, POSIX ms. */
  const writtenAfter = async (position: bigint): Promise<number> => {
    const next = (table: 'usage' | 'deliveries') =>
      db
        .selectFrom(table)
        .select(['seq', 'write_time'])
        .where('seq', '>=', rowAfter(position))
        .orderBy('seq')
        .limit(1)
        .executeTakeFirst()
    const [one, other] = [await next('usage'), await next('deliveries')]
    const first = one === undefined || (other !== undefined && other.seq < one.seq) ? other : one
    return Number(first?.write_time ?? 0)
  }
  return {
    /** Oldest first, in a bounded step. */
    async range({ limit, ...range }: UsageRange): Promise<UsageStep> {
      const { after, upTo, from, to } = range
      let end = upTo
      if (from !== null || to !== null) {
        const next = await nextRow(after)
        if (next !== null) end = least(upTo, (next - 1n + ROWS_COMPARED) * USAGE_ROW_POSITIONS)
      }
      const { records, last } = await read({ ...range, upTo: end }, 'asc', limit)
      return { records, end: last === null ? end : least(upTo, last * USAGE_ROW_POSITIONS) }
    },
    /** Newest first, in a bounded step. */
    async newest({ limit, upTo, ...within }: NewestUsage): Promise<NewestStep> {
      const archived = await archivedUpTo(db)
      const from = upTo ?? POSITION_MAX
      const isCompared = within.from !== null || within.to !== null
      const begin = isCompared ? ((await lastRow(from)) - ROWS_COMPARED) * USAGE_ROW_POSITIONS : archived
      const range = { ...within, after: begin > archived ? begin : archived, upTo: from }
      const { records, last } = await read(range, 'desc', limit)
      const end = last === null ? range.after : (last - 1n) * USAGE_ROW_POSITIONS
      return { records, rest: end > archived ? { upTo: end, writtenBy: await writtenAfter(end) } : null }
    },
    /** Of other writers with the identity of the device, in its newest such deliveries. */
    async ofBranches(deviceId: string, deliveries: number): Promise<readonly UsageRecord[]> {
      const rows = await db
        .selectFrom('deliveries')
        .selectAll()
        .where('device_id', '=', deviceId)
        .where('branch', '=', 1n)
        .orderBy('epoch', 'desc')
        .orderBy('last_entry', 'desc')
        .limit(deliveries)
        .execute()
      return rows.flatMap(usageOf)
    },
    /** Of the first rows of the range: `end` is the position up to which they were counted. */
    async count(range: Within): Promise<{ readonly records: number; readonly end: bigint }> {
      const lists: Pick<Row<'deliveries'>, 'seq' | 'instance_id' | 'records' | 'from_time' | 'to_time'>[] = []
      for (const query of deliveriesWithin(range)) {
        lists.push(...(await query.select(['seq', 'instance_id', 'records', 'from_time', 'to_time']).execute()))
      }
      let [records, unpacked, end] = [0, 0n, range.upTo]
      for (const delivery of lists.sort((one, other) => (one.seq < other.seq ? -1 : 1))) {
        if (isWhollyWithin(delivery, range)) {
          records += Number(delivery.records)
          continue
        }
        const row = await db
          .selectFrom('deliveries')
          .selectAll()
          .where('seq', '=', delivery.seq)
          .executeTakeFirstOrThrow()
        records += recordsOfDelivery(row, range).length
        unpacked += delivery.records
        if (unpacked < UNPACKED_RECORDS) continue
        end = least(range.upTo, delivery.seq * USAGE_ROW_POSITIONS)
        break
      }
      const own = await usageWithin({ ...range, upTo: end })
        .select((of) => of.fn.countAll<bigint>().as('count'))
        .executeTakeFirstOrThrow()
      return { records: records + Number(own.count), end }
    },
    nextRow,
    /** The highest position that is committed. A transaction in progress may commit a lower one. */
    end: (): Promise<bigint> => endOf(sql),
    /** End of the backup that lost the record at this position; null: not lost. */
    async backupEnd(position: bigint): Promise<bigint | null> {
      const row = await db
        .selectFrom('forgotten_usage')
        .select('backup_end')
        .where('backup_end', '<', position)
        .where('gone_on_after', '>', position)
        .executeTakeFirst()
      return row?.backup_end ?? null
    },
  }
}

/** The highest position so far. */
async function endOf(sql: Sql): Promise<bigint> {
  return highest(await endsOf(sql).execute())
}

function highest(ends: readonly { readonly end: bigint | null }[]): bigint {
  return ends.reduce((most, { end }) => (end !== null && end > most ? end : most), 0n)
}

/** The highest position of each table. */
function endsOf({ db }: Sql) {
  const newest = (table: 'usage' | 'deliveries' | 'events') =>
    db.selectFrom(table).select((of) => of(of.fn.max<bigint | null>('seq'), '*', USAGE_ROW_POSITIONS).as('end'))
  return newest('usage')
    .unionAll(newest('deliveries'))
    .unionAll(newest('events'))
    .unionAll(db.selectFrom('forgotten_usage').select((of) => of.fn.max<bigint | null>('gone_on_after').as('end')))
    .unionAll(db.selectFrom('usage_archives').select((of) => of.fn.max<bigint | null>('up_to').as('end')))
}

function recordsOfDelivery(row: Row<'deliveries'>, range: Within): readonly NumberedUsage[] {
  const records = usageOf(row)
  const last = row.seq * USAGE_ROW_POSITIONS
  const entries = range.entries === true ? entryPartsOf(row, records) : []
  const numbered = records.map((record, index) => {
    const entry = entries[index]
    const position = last - BigInt(records.length - 1 - index)
    return { position, record, ...(entry === undefined ? {} : { entry }) }
  })
  return numbered.filter((each) => isWithin(each, range))
}

/** Of each record, its part of an entry. The records of an entry follow each other. */
function entryPartsOf(row: Row<'deliveries'>, records: readonly UsageRecord[]): readonly NumberedUsage['entry'][] {
  const hashes = new Map(entriesOf(row).map(({ n, hash }) => [n, hash]))
  const parts = new Map<number, number>()
  return records.map(({ source }) => {
    const n = source.kind === 'device' ? source.entry : 0
    const part = parts.get(n) ?? 0
    parts.set(n, part + 1)
    return { hash: hashes.get(n) ?? '', part }
  })
}

/** Positions up to it are archived; 0: none. */
async function archivedUpTo(db: Sql['db']): Promise<bigint> {
  const row = await db.selectFrom('usage_archives').select('up_to').orderBy('up_to', 'desc').limit(1).executeTakeFirst()
  return row?.up_to ?? 0n
}

function isWithin({ position, record }: NumberedUsage, { after, upTo, instanceId, from, to }: Within): boolean {
  const { usageTime } = record
  if (position <= after || position > upTo) return false
  if (instanceId !== null && record.instanceId !== instanceId) return false
  return (from === null || usageTime >= from) && (to === null || usageTime < to)
}

/** Without a look at its records. */
function isWhollyWithin(
  {
    seq,
    instance_id,
    records,
    from_time,
    to_time,
  }: Pick<Row<'deliveries'>, 'seq' | 'instance_id' | 'records' | 'from_time' | 'to_time'>,
  { after, upTo, instanceId, from, to }: Within,
): boolean {
  const last = seq * USAGE_ROW_POSITIONS
  if (last - records < after || last > upTo) return false
  if (instanceId !== null && instance_id !== instanceId) return false
  return (from === null || from_time >= BigInt(from)) && (to === null || to_time < BigInt(to))
}

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
      if (sql.lockRows) await LOCK_NUMBERS.execute(db)
      const end = await endOf(sql)
      if (position <= end) return
      const row = rowOfPosition(position)
      await db
        .insertInto('forgotten_usage')
        .values({ backup_end: end, gone_on_after: row * USAGE_ROW_POSITIONS })
        .execute()
      if (sql.lockRows) {
        // Rolled back transactions may have used numbers above the newest record.
        const highest = statement`GREATEST(${row}::BIGINT, pg_sequence_last_value(${ROW_NUMBERS}))`
        await statement`SELECT setval(${ROW_NUMBERS}, ${highest})`.execute(db)
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
  if (BigInt(sums.records) > USAGE_ROW_POSITIONS) throw new Error('invariant: a segment is bounded')
  return {
    device_id: delivery.deviceId,
    epoch: BigInt(delivery.epoch),
    segment: BigInt(delivery.segment),
    branch: toFlag(delivery.branch),
    first_entry: BigInt(entries[0]?.n ?? 0),
    last_entry: BigInt(entries.at(-1)?.n ?? 0),
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
  db.insertInto('deliveries').values(times(count, { seq: 0n, ...NO_DELIVERY })),
)
const insertedNumbered = prepared((db, count) => {
  const row = { seq: statement<bigint>`nextval(${ROW_NUMBERS})`, ...NO_DELIVERY }
  return inserter({ db, lockRows: true }).insertInto('deliveries').values(times(count, row))
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

/** SQLite: the first of so many numbers, as AUTOINCREMENT would take them. */
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
    .values(times(count, rowOf(SAMPLE)))
}

const SAMPLE: UsageRecord = {
  correlationId: '',
  usageTime: 0,
  writeTime: 0,
  requesterType: '',
  requesterValue: '',
  accountId: '',
  instanceId: '',
  activationId: null,
  quantity: null,
  used: null,
  item: '',
  version: '',
  count: decimal(0),
  operation: 'REQUEST',
  status: '',
  tokens: 0n,
  source: { kind: 'one-off' },
  metaData: null,
}

function rowOf(record: UsageRecord): Omit<Row<'usage'>, 'seq'> {
  const { source } = record
  return {
    correlation_id: record.correlationId,
    usage_time: BigInt(record.usageTime),
    write_time: BigInt(record.writeTime),
    requester_type: record.requesterType,
    requester_value: record.requesterValue,
    account_id: record.accountId,
    instance_id: record.instanceId,
    activation_id: record.activationId,
    quantity: record.quantity,
    used: record.used,
    item: record.item,
    version: record.version,
    count: formatDecimal(record.count),
    rate: record.rate === undefined ? null : formatDecimal(record.rate),
    operation: record.operation,
    status: record.status,
    tokens: record.tokens,
    source: source.kind,
    session_id: source.kind === 'one-off' ? null : (source.sessionId ?? null),
    device_id: source.kind === 'device' ? source.deviceId : null,
    epoch: source.kind === 'device' ? BigInt(source.epoch) : null,
    entry: source.kind === 'device' ? BigInt(source.entry) : null,
    meta_data: record.metaData,
  }
}

function recordOf(row: Row<'usage'>): UsageRecord {
  return {
    correlationId: row.correlation_id,
    usageTime: Number(row.usage_time),
    writeTime: Number(row.write_time),
    requesterType: row.requester_type,
    requesterValue: row.requester_value,
    accountId: row.account_id,
    instanceId: row.instance_id,
    activationId: row.activation_id,
    quantity: row.quantity,
    used: row.used,
    item: row.item,
    version: row.version,
    count: decimal(row.count),
    ...(row.rate === null ? {} : { rate: decimal(row.rate) }),
    operation: row.operation as UsageOperation,
    status: row.status,
    tokens: row.tokens,
    source: sourceOf(row),
    metaData: row.meta_data,
  }
}

function sourceOf(row: Row<'usage'>): UsageSource {
  if (row.device_id === null) {
    return row.session_id === null ? { kind: 'one-off' } : { kind: 'session', sessionId: row.session_id }
  }
  return {
    kind: 'device',
    deviceId: row.device_id,
    epoch: Number(row.epoch),
    entry: Number(row.entry),
    ...(row.session_id === null ? {} : { sessionId: row.session_id }),
  }
}
