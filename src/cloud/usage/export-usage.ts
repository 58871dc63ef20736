/** The end position is fixed first: the next export continues without gaps or duplicates despite concurrent writers. */
import { CodedError } from '../../protocol/errors.ts'
import type { UsageFormat } from '../../protocol/service/usage-export.ts'
import type { GiveWay } from '../runtime/give-way.ts'
import type { UsageArchive, UsageRange } from '../storage/records.ts'
import type { Store } from '../storage/store.ts'
import { usageHead, usageLine } from './usage-text.ts'
import { requireInstance } from '../storage/require-record.ts'

export const USAGE_PIECE_RECORDS = 500

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
  if (instanceId !== null) await store.read((reader) => requireInstance(reader, instanceId))
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
  if (archive !== null) throw usageArchivedError(after, archive)
  return { next: upTo, pieces: piecesOf(deps, options, after, upTo) }
}

export function usageArchivedError(after: bigint, { place, manifest, upTo }: UsageArchive): CodedError {
  const start = after === 0n ? 'Usage records' : `after is ${after}, but usage records`
  return new CodedError('USAGE_ARCHIVED', `${start} up to ${upTo} are archived in ${place} (${manifest}).`)
}

async function* piecesOf(
  { store, giveWay }: UsageExportDeps,
  { format, tenantId, instanceId, from, to }: UsageExportOptions,
  first: bigint,
  upTo: bigint,
): AsyncGenerator<string> {
  const head = usageHead(format)
  if (head !== '') yield head
  for (let after = first; after < upTo;) {
    const { end, records, archive } = await store.read(async (reader) => ({
      ...(await reader.usage.range({ after, upTo, instanceId, from, to, limit: USAGE_PIECE_RECORDS })),
      archive: await reader.usageArchives.later(after, { from, to }),
    }))
    // Archived since the export began: some records may be deleted already.
    if (archive !== null) throw usageArchivedError(after, archive)
    if (records.length > 0) yield records.map((record) => usageLine(format, tenantId, record)).join('')
    after = end
    await giveWay()
  }
}
