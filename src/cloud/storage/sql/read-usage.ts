/** Reads usage records in steps of bounded work, however few of the records in a range are wanted. */
import {
  type NewestStep,
  type NewestUsage,
  type NumberedUsage,
  USAGE_ROW_POSITIONS,
  type UsageRange,
  type UsageRecord,
  type UsageStep,
} from '../records.ts'
import { entriesOf, usageOf } from './packed-delivery.ts'
import type { Sql } from './sql.ts'
import type { Row } from './tables.ts'
import { endOf, rowAfter, rowOfPosition } from './usage-positions.ts'
import { recordOf } from './usage-rows.ts'

/** Rows whose times one step compares: SQLite takes some milliseconds, in which nothing else runs. */
const ROWS_COMPARED = 50_000n

/** Records of deliveries that one step unpacks. All of them can be of other instances or times. */
const UNPACKED_RECORDS = 1_000n

/** Rows that one step of a search reads. Few of them may fit. */
const ROWS_SEARCHED = 1_000

type Within = Omit<UsageRange, 'limit'> & Pick<NewestUsage, 'search'>

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
  const usageWithin = ({ after, upTo, instanceId, from, to, search }: Within) => {
    let query = db.selectFrom('usage').where('seq', '>=', rowAfter(after)).where('seq', '<', rowAfter(upTo))
    if (instanceId !== null) query = query.where('instance_id', '=', instanceId)
    if (from !== null) query = query.where('usage_time', '>=', BigInt(from))
    if (to !== null) query = query.where('usage_time', '<', BigInt(to))
    if (search?.deviceId !== undefined) query = query.where('device_id', '=', search.deviceId)
    if (search?.statuses !== undefined) query = query.where('status', 'in', search.statuses)
    return query
  }
  /** Those that can have such records: of the instance, and of several. An index has each of them in sequence. */
  const deliveriesWithin = ({ after, upTo, instanceId, from, to, search }: Within) => {
    let query = db.selectFrom('deliveries').where('seq', '>=', rowAfter(after)).where('seq', '<=', rowOfPosition(upTo))
    if (from !== null) query = query.where('to_time', '>=', BigInt(from))
    if (to !== null) query = query.where('from_time', '<', BigInt(to))
    if (search?.deviceId !== undefined) query = query.where('device_id', '=', search.deviceId)
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
  /** Reads the deliveries of the list in its sequence. @param limit records that it reads at a time, rounded up to whole deliveries */
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
    const { search } = range
    const rowsMax = search === undefined ? limit : ROWS_SEARCHED
    const { rows, isAll } = await listed(range, order, rowsMax)
    const deliveryOf = deliveriesOf(rows, range, rowsMax)
    const records: NumberedUsage[] = []
    let unpacked = 0n
    for (const { seq, records: packed, row } of rows) {
      if (row === null) {
        const found = recordsOfDelivery(await deliveryOf(seq), range)
        records.push(...(order === 'asc' ? found : found.toReversed()))
        unpacked += packed
      } else {
        const record = recordOf(row)
        if (search?.fits(record) !== false) records.push({ position: seq * USAGE_ROW_POSITIONS, record })
      }
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
    const [one = null, other = null] = rows.map(({ seq }) => seq)
    return one === null || other === null ? (one ?? other) : least(one, other)
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
      const isCompared = within.from !== null || within.to !== null || within.search !== undefined
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
        .orderBy('first_entry', 'desc')
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
        .where('lost_up_to', '>', position)
        .executeTakeFirst()
      return row?.backup_end ?? null
    },
  }
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

function isWithin({ position, record }: NumberedUsage, { after, upTo, instanceId, from, to, search }: Within): boolean {
  const { usageTime } = record
  if (search?.fits(record) === false) return false
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
