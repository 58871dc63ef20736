/** The end position is fixed first: the next export continues without gaps or duplicates despite concurrent writers. */
import { CodedError } from '../../protocol/errors.ts'
import type { UsageFormat } from '../../protocol/service/usage-export.ts'
import type { GiveWay } from '../runtime/give-way.ts'
import { USAGE_ROW_POSITIONS, type UsageArchive, type UsageRange } from '../storage/records.ts'
import type { Reader, Store } from '../storage/store.ts'
import { usageHead, usageLine } from './usage-text.ts'

export const USAGE_PIECE_RECORDS = 500

/** Rows whose times one read compares: SQLite takes some milliseconds, in which nothing else runs. */
const USAGE_COMPARED_ROWS = 50_000n

export interface UsageExportDeps {
  readonly store: Store
  readonly giveWay: GiveWay
}

export interface UsageExportOptions extends Pick<UsageRange, 'instanceId' | 'from' | 'to'> {
  readonly format: UsageFormat
  readonly tenantId: string
  /** Null: from the first record. */
  readonly after: bigint | null
}

export interface UsageExport {
  readonly next: bigint
  readonly pieces: AsyncIterable<string>
}

/** @throws CodedError CURSOR_UNKNOWN, USAGE_FORGOTTEN, USAGE_ARCHIVED, NOT_FOUND for an unknown instance */
export async function exportUsage(deps: UsageExportDeps, options: UsageExportOptions): Promise<UsageExport> {
  const { store } = deps
  const { instanceId } = options
  const after = options.after ?? 0n
  if (instanceId !== null && (await store.read((reader) => reader.instances.get(instanceId))) === undefined) {
    throw new CodedError('NOT_FOUND', `There is no instance ${instanceId}.`)
  }
  const { upTo, backupEnd, archive } = await store.transaction(async (tx) => ({
    upTo: await tx.usage.settled(),
    backupEnd: await tx.usage.backupEnd(after),
    archive: await tx.usageArchives.later(after, options),
  }))
  if (after > upTo) throw new CodedError('CURSOR_UNKNOWN', `after is ${after}, but the newest record is ${upTo}.`)
  if (backupEnd !== null) {
    throw new CodedError(
      'USAGE_FORGOTTEN',
      `after is ${after}, but the cloud was restored from a backup that ends at ${backupEnd}. Continue with after=${backupEnd}.`,
    )
  }
  if (archive !== null) throw usageArchived(after, archive)
  return { next: upTo, pieces: piecesOf(deps, options, after, upTo) }
}

export function usageArchived(after: bigint, { place, manifest, upTo }: UsageArchive): CodedError {
  return new CodedError(
    'USAGE_ARCHIVED',
    `after is ${after}, but usage records up to ${upTo} are archived in ${place} (${manifest}).`,
  )
}

/** The end of so many row numbers, beginning with the next row that exists; at most `upTo`. */
export async function endOfRows(
  reader: Reader,
  { after, upTo, rows }: Pick<UsageRange, 'after' | 'upTo'> & { readonly rows: bigint },
): Promise<bigint> {
  const next = await reader.usage.nextRow(after)
  const end = next === null ? upTo : (next - 1n + rows) * USAGE_ROW_POSITIONS
  return end < upTo ? end : upTo
}

async function* piecesOf(
  { store, giveWay }: UsageExportDeps,
  { format, tenantId, instanceId, from, to }: UsageExportOptions,
  first: bigint,
  upTo: bigint,
): AsyncGenerator<string> {
  const head = usageHead(format)
  if (head !== '') yield head
  const isCompared = from !== null || to !== null
  for (let after = first; after < upTo;) {
    const { end, records, archive } = await store.read(async (reader) => {
      const end = isCompared ? await endOfRows(reader, { after, upTo, rows: USAGE_COMPARED_ROWS }) : upTo
      const range = { after, upTo: end, instanceId, from, to, limit: USAGE_PIECE_RECORDS }
      return {
        end,
        records: await reader.usage.range(range),
        archive: await reader.usageArchives.later(after, { from, to }),
      }
    })
    // Archived since the export began: some records may be deleted already.
    if (archive !== null) throw usageArchived(after, archive)
    if (records.length > 0) yield records.map((record) => usageLine(format, tenantId, record)).join('')
    after = records.length < USAGE_PIECE_RECORDS ? end : (records.at(-1)?.position ?? end)
    await giveWay()
  }
}
