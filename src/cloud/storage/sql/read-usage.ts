/** Reads usage records in steps of bounded work, however few of the records in a range are wanted. */
import {
  type NewestStep,
  type NewestUsage,
  type NumberedUsage,
  USAGE_ROW_POSITIONS,
  type UsageRange,
  type UsageRecord,
  type UsageStep,
  rowOfPosition,
} from '../records.ts'
import { type DeliveryRow, entriesOf } from './packed-delivery.ts'
import { type UsageRow, isDelivery, recordsOf } from './packed-usage.ts'
import { type Sql, filledUp, rowsIn } from './sql.ts'
import { endOf, rowAfter } from './usage-positions.ts'

/** Rows whose times one step compares: SQLite takes some milliseconds, in which nothing else runs. Many rows take a page each. */
const ROWS_COMPARED = 10_000n

/** Records that one step unpacks. All of them can be of other instances or times. */
const UNPACKED_RECORDS = 1_000n

/** Rows that one step of a search reads. Few of them may fit. */
const ROWS_SEARCHED = 1_000

type Within = Omit<UsageRange, 'limit'> & Pick<NewestUsage, 'search'>

type Order = 'asc' | 'desc'

type ListedRow = Pick<UsageRow, 'seq' | 'records'>

type CountedRow = Pick<UsageRow, 'seq' | 'instance_id' | 'records' | 'from_time' | 'to_time'>

interface Listed {
  readonly rows: readonly ListedRow[]
  /** There are no others in the range. */
  readonly isAll: boolean
}

function least(one: bigint, other: bigint): bigint {
  return one < other ? one : other
}

/** The end of the last row whose positions fit 64 bits. */
const POSITION_MAX = (1n << 63n) - USAGE_ROW_POSITIONS

export function usageReader(sql: Sql) {
  const { db } = sql
  return {
    /** Oldest first, in a bounded step. */
    async range({ limit, ...range }: UsageRange): Promise<UsageStep> {
      const { after, upTo, from, to } = range
      let end = upTo
      if (from !== null || to !== null) {
        const next = await nextRow(db, after)
        if (next !== null) end = least(upTo, (next - 1n + ROWS_COMPARED) * USAGE_ROW_POSITIONS)
      }
      const { records, last } = await readStep(db, { ...range, upTo: end }, 'asc', limit)
      return { records, end: last === null ? end : least(upTo, last * USAGE_ROW_POSITIONS) }
    },
    /** Newest first, in a bounded step. */
    async newest({ limit, upTo, ...within }: NewestUsage): Promise<NewestStep> {
      const archived = await archivedUpTo(db)
      const from = upTo ?? POSITION_MAX
      const isCompared = within.from !== null || within.to !== null || within.search !== undefined
      const begin = isCompared ? ((await lastRow(db, from)) - ROWS_COMPARED) * USAGE_ROW_POSITIONS : archived
      const range = { ...within, after: begin > archived ? begin : archived, upTo: from }
      const { records, last } = await readStep(db, range, 'desc', limit)
      const end = last === null ? range.after : (last - 1n) * USAGE_ROW_POSITIONS
      return { records, rest: end > archived ? { upTo: end, writtenBy: await writtenAfter(db, end) } : null }
    },
    /** Of other writers with the identity of the device, in its newest such deliveries. */
    async ofBranches(deviceId: string, deliveries: number): Promise<readonly UsageRecord[]> {
      const rows = await db
        .selectFrom('usage')
        .selectAll()
        .where('device_id', '=', deviceId)
        .where('epoch', 'is not', null)
        .where('branch', '=', 1n)
        .orderBy('epoch', 'desc')
        .orderBy('first_entry', 'desc')
        .limit(deliveries)
        .execute()
      return rows.flatMap(recordsOf)
    },
    /** Of the first rows of the range: `end` is the position up to which they were counted. */
    async count(range: Within): Promise<{ readonly records: number; readonly end: bigint }> {
      const rows: CountedRow[] = []
      for (const query of rowsWithin(db, range)) {
        rows.push(...(await query.select(['seq', 'instance_id', 'records', 'from_time', 'to_time']).execute()))
      }
      let [records, unpacked] = [0, 0n]
      for (const each of rows.sort((one, other) => (one.seq < other.seq ? -1 : 1))) {
        if (isWhollyWithin(each, range)) {
          records += Number(each.records)
          continue
        }
        const row = await db.selectFrom('usage').selectAll().where('seq', '=', each.seq).executeTakeFirstOrThrow()
        records += numberedRecords(row, range).length
        unpacked += each.records
        if (unpacked >= UNPACKED_RECORDS) return { records, end: least(range.upTo, each.seq * USAGE_ROW_POSITIONS) }
      }
      return { records, end: range.upTo }
    },
    /** The number of the first row with a later position; null: none. */
    nextRow: (after: bigint): Promise<bigint | null> => nextRow(db, after),
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

/** Those that can have such records: of the instance, and of several. An index has each of them in sequence. */
function rowsWithin(db: Sql['db'], { after, upTo, instanceId, from, to, search }: Within) {
  let query = db.selectFrom('usage').where('seq', '>=', rowAfter(after)).where('seq', '<=', rowOfPosition(upTo))
  if (from !== null) query = query.where('to_time', '>=', BigInt(from))
  if (to !== null) query = query.where('from_time', '<', BigInt(to))
  if (search?.deviceId !== undefined) query = query.where('device_id', '=', search.deviceId)
  if (search?.isRefused === true) query = query.where('refused', '>', 0n)
  if (instanceId === null) return [query]
  // Listed twice: PostgreSQL drops a constant from the order below, and may then walk the later rows of others.
  return [query.where('instance_id', 'in', [instanceId, instanceId]), query.where('instance_id', 'is', null)]
}

async function listRows(db: Sql['db'], range: Within, order: Order, limit: number): Promise<Listed> {
  const lists: ListedRow[][] = []
  for (const query of rowsWithin(db, range)) {
    // By the index also where few of the later rows are of several instances: PostgreSQL would walk all rows for them.
    const inIndex = range.instanceId === null ? query : query.orderBy('instance_id', order)
    lists.push(await inIndex.select(['seq', 'records']).orderBy('seq', order).limit(limit).execute())
  }
  const isBefore = (one: bigint, other: bigint): boolean => (order === 'asc' ? one < other : one > other)
  // Where one list may have more, the other waits for it.
  const ends = lists.filter(({ length }) => length === limit).map((full) => full.at(-1)?.seq ?? 0n)
  const rows = lists
    .flat()
    .filter(({ seq }) => !ends.some((end) => isBefore(end, seq)))
    .sort((one, other) => (isBefore(one.seq, other.seq) ? -1 : 1))
  return { rows, isAll: ends.length === 0 }
}

/** Reads the rows of the list in its sequence. @param limit records that it reads at a time, rounded up to whole rows */
function rowReader(db: Sql['db'], list: readonly ListedRow[], limit: number) {
  const known = new Map<bigint, UsageRow>()
  let at = 0
  return async (seq: bigint): Promise<UsageRow> => {
    if (!known.has(seq)) {
      known.clear()
      const numbers: bigint[] = []
      for (let records = 0n; records < limit && at < list.length; at += 1) {
        const next = list[at]
        if (next === undefined) break
        records += next.records
        numbers.push(next.seq)
      }
      // Not those from the first to the last number: PostgreSQL may walk all rows between them.
      const rows = await rowsIn(numbers, (some) =>
        db.selectFrom('usage').selectAll().where('seq', 'in', filledUp(some)),
      )
      for (const row of rows) known.set(row.seq, row)
    }
    const row = known.get(seq)
    if (row === undefined) throw new Error('invariant: the rows of one snapshot stay')
    return row
  }
}

/** @returns `last`: the row that the step ends with; null: there are no others */
async function readStep(db: Sql['db'], range: Within, order: Order, limit: number) {
  const rowsMax = range.search === undefined ? Math.min(limit, Number(UNPACKED_RECORDS)) : ROWS_SEARCHED
  const { rows, isAll } = await listRows(db, range, order, rowsMax)
  const rowOf = rowReader(db, rows, rowsMax)
  const records: NumberedUsage[] = []
  let unpacked = 0n
  for (const { seq, records: count } of rows) {
    const found = numberedRecords(await rowOf(seq), range)
    records.push(...(order === 'asc' ? found : found.toReversed()))
    unpacked += count
    if (records.length >= limit || unpacked >= UNPACKED_RECORDS) return { records, last: seq }
  }
  return { records, last: isAll ? null : (rows.at(-1)?.seq ?? null) }
}

/** The number of the first row with a later position; null: none. A restore leaves a gap of trillions of numbers. */
async function nextRow(db: Sql['db'], after: bigint): Promise<bigint | null> {
  const next = db.selectFrom('usage').select((of) => of.fn.min<bigint | null>('seq').as('seq'))
  return (await next.where('seq', '>=', rowAfter(after)).executeTakeFirstOrThrow()).seq
}

/** The number of the last row up to a position; 0: none. */
async function lastRow(db: Sql['db'], upTo: bigint): Promise<bigint> {
  const last = db.selectFrom('usage').select((of) => of.fn.max<bigint | null>('seq').as('seq'))
  return (await last.where('seq', '<=', rowOfPosition(upTo)).executeTakeFirstOrThrow()).seq ?? 0n
}

/** Write time of the first row with a later position, POSIX ms. */
async function writtenAfter(db: Sql['db'], position: bigint): Promise<number> {
  const next = db.selectFrom('usage').select('write_time').where('seq', '>=', rowAfter(position))
  return Number((await next.orderBy('seq').limit(1).executeTakeFirst())?.write_time ?? 0)
}

function numberedRecords(row: UsageRow, range: Within): readonly NumberedUsage[] {
  const records = recordsOf(row)
  const last = row.seq * USAGE_ROW_POSITIONS
  const entries = range.entries === true && isDelivery(row) ? entryPartsOf(row, records) : []
  const numbered = records.map((record, index) => {
    const entry = entries[index]
    const position = last - BigInt(records.length - 1 - index)
    return { position, record, ...(entry === undefined ? {} : { entry }) }
  })
  return numbered.filter((each) => isWithin(each, range))
}

/** Of each record, its part of an entry. The records of an entry follow each other. */
function entryPartsOf(row: DeliveryRow, records: readonly UsageRecord[]): readonly NumberedUsage['entry'][] {
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
  { seq, instance_id, records, from_time, to_time }: CountedRow,
  { after, upTo, instanceId, from, to }: Within,
): boolean {
  const last = seq * USAGE_ROW_POSITIONS
  if (last - records < after || last > upTo) return false
  if (instanceId !== null && instance_id !== instanceId) return false
  return (from === null || from_time >= BigInt(from)) && (to === null || to_time < BigInt(to))
}
