/** Records keep their places: pages follow the order of writing, and the time range begins with a day (UTC). */
import { REPORT_PAGE_RECORDS } from '../../protocol/service/usage-report.ts'
import type { GiveWay } from '../runtime/give-way.ts'
import { type NumberedUsage, USAGE_ROW_POSITIONS, type UsageRange } from '../storage/records.ts'
import type { Reader, Store } from '../storage/store.ts'
import { USAGE_PIECE_RECORDS, usageArchivedError } from './export-usage.ts'
import { reportRow } from './usage-text.ts'
import { requireInstance } from '../storage/require-record.ts'

const ROWS_COUNTED_MAX = 4_096n

const DAY_MS = 86_400_000

export interface UsageReportOptions {
  readonly tenantId: string
  readonly instanceId: string | null
  /** Whole days before the current one. */
  readonly pastDays: number
  readonly pageNumber: number
  readonly now: number
}

export interface UsageReportDeps {
  readonly store: Store
  readonly giveWay: GiveWay
  /** Of a page. Default: those that the API names. */
  readonly pageRecords?: number
}

/** JSON text `{"data":[...]}` in pieces. @throws CodedError USAGE_ARCHIVED, NOT_FOUND for an unknown instance */
export async function reportUsage(
  deps: UsageReportDeps,
  { tenantId, instanceId, pastDays, pageNumber, now }: UsageReportOptions,
): Promise<AsyncIterable<string>> {
  const { store } = deps
  if (instanceId !== null) await store.read((reader) => requireInstance(reader, instanceId))
  const from = Math.max(0, now - (now % DAY_MS) - pastDays * DAY_MS)
  await readUnarchived(store, { from, now }, async () => undefined)
  const range = { instanceId, from, to: null, now, upTo: await store.transaction((tx) => tx.usage.settled()) }
  return (async function* () {
    let before = '{"data":['
    for await (const records of pageOf(deps, range, pageNumber)) {
      const states = await sessionStates(store, records)
      yield before + records.map((record) => reportRow(tenantId, record, states)).join(',')
      before = ','
    }
    yield before === ',' ? ']}' : `${before}]}`
  })()
}

interface Range extends Omit<UsageRange, 'after' | 'limit'> {
  readonly now: number
}

/** Archived use that is dated after now is not of the past days. */
async function readUnarchived<T>(
  store: Store,
  { from, now }: Pick<Range, 'from' | 'now'>,
  work: (reader: Reader) => Promise<T>,
): Promise<T> {
  return store.read(async (reader) => {
    const result = await work(reader)
    // After the read: until then, none was deleted.
    const archive = await reader.usageArchives.later(0n, { from, to: now + 1 })
    if (archive !== null) throw usageArchivedError(0n, archive)
    return result
  })
}

async function* pageOf(
  { store, giveWay, pageRecords = REPORT_PAGE_RECORDS }: UsageReportDeps,
  range: Range,
  pageNumber: number,
): AsyncGenerator<readonly NumberedUsage[]> {
  let skip = (pageNumber - 1) * pageRecords
  let after = 0n
  // Fewer rows at a time near the first record of the page, down to the row that has it.
  for (let rows = ROWS_COUNTED_MAX; skip > 0 && rows > 0n && after < range.upTo;) {
    const counted = await readUnarchived(store, range, async (reader) =>
      reader.usage.count({ ...range, after, upTo: await endOfRows(reader, { after, upTo: range.upTo, rows }) }),
    )
    await giveWay()
    if (counted.records > skip) {
      rows /= 8n
      continue
    }
    skip -= counted.records
    after = counted.end
  }
  let left = skip + pageRecords
  while (left > 0 && after < range.upTo) {
    const limit = Math.min(left, USAGE_PIECE_RECORDS)
    const { records, end } = await readUnarchived(store, range, (reader) =>
      reader.usage.range({ ...range, after, limit }),
    )
    await giveWay()
    if (records.length > skip) yield records.slice(skip, left)
    skip = Math.max(0, skip - records.length)
    left -= records.length
    after = end
  }
}

/** The end of so many row numbers, beginning with the next row that exists; at most `upTo`. */
async function endOfRows(
  reader: Reader,
  { after, upTo, rows }: Pick<UsageRange, 'after' | 'upTo'> & { readonly rows: bigint },
): Promise<bigint> {
  const next = await reader.usage.nextRow(after)
  const end = next === null ? upTo : (next - 1n + rows) * USAGE_ROW_POSITIONS
  return end < upTo ? end : upTo
}

async function sessionStates(store: Store, records: readonly NumberedUsage[]): Promise<ReadonlyMap<string, string>> {
  const ids = records.flatMap(({ record: { source } }) =>
    source.kind === 'one-off' || source.sessionId === undefined ? [] : [source.sessionId],
  )
  return ids.length === 0 ? new Map() : store.read((reader) => reader.sessions.states([...new Set(ids)]))
}
