/** Reads archives back: the records as they were exported, and what is wrong with an archive. Checks every hash. */
import { CodedError } from '../../../protocol/errors.ts'
import type { UsageFormat } from '../../../protocol/service/usage-export.ts'
import type { UsageRange } from '../../storage/records.ts'
import type { UsageExport } from '../export-usage.ts'
import { type ArchivedUsage, readArchiveLine, usageHead } from '../usage-text.ts'
import {
  type ArchivedFile,
  type Manifest,
  type StoredManifest,
  Tally,
  damaged,
  manifestsIn,
  readManifest,
  sha256,
} from './manifest.ts'
import type { ArchivePlace, Compression } from './place.ts'

export interface ReadArchiveDeps {
  readonly place: ArchivePlace
  readonly compression: Compression
}

export interface ArchiveExportOptions extends Pick<UsageRange, 'after' | 'instanceId' | 'from' | 'to'> {
  readonly format: UsageFormat
}

/**
 * @throws CodedError ARCHIVE_DAMAGED, ARCHIVE_UNAVAILABLE, USAGE_ARCHIVED if the next records are in another place, CURSOR_UNKNOWN if
 *   they are newer
 */
export async function exportArchive(deps: ReadArchiveDeps, options: ArchiveExportOptions): Promise<UsageExport> {
  const { place } = deps
  const { after } = options
  const all = manifestsIn(await place.list())
  const [first, last] = [all[0], all.at(-1)]
  if (first === undefined || last === undefined) {
    throw new CodedError('ARCHIVE_UNAVAILABLE', `${place.name} contains no archive of usage records.`)
  }
  const contents = `${place.name} contains the records after ${first.after} up to ${last.upTo}`
  if (after < first.after) {
    throw new CodedError(
      'USAGE_ARCHIVED',
      `${contents}, not those after ${after}: an earlier archive has them, in another place. To leave them out, use --after ${first.after}.`,
    )
  }
  if (after > last.upTo) throw new CodedError('CURSOR_UNKNOWN', `${contents}, not those after ${after}.`)
  const due = all.filter(({ upTo }) => upTo > after)
  const gap = due.find(({ after: begin }, index) => index > 0 && begin !== due[index - 1]?.upTo)
  if (gap !== undefined) throw damaged(place, `no archive ends where ${gap.name} begins`)
  return { next: last.upTo, pieces: piecesOf(deps, options, due) }
}

async function* piecesOf(
  deps: ReadArchiveDeps,
  { after, instanceId, from, to, format }: ArchiveExportOptions,
  due: readonly { readonly name: string }[],
): AsyncGenerator<string> {
  const head = usageHead(format)
  if (head !== '') yield head
  const isWanted = (record: ArchivedUsage): boolean =>
    record.position > after &&
    (instanceId === null || record.instanceId === instanceId) &&
    (from === null || record.usageTime >= from) &&
    (to === null || record.usageTime < to)
  for (const { name } of due) {
    const { manifest } = await readManifest(deps.place, name)
    for (const file of manifest.files) {
      const records = await readFile(deps, file)
      const text = records.filter(isWanted).map((record) => record.text(format))
      if (text.length > 0) yield text.join('')
    }
  }
}

async function readFile(deps: ReadArchiveDeps, file: ArchivedFile): Promise<readonly ArchivedUsage[]> {
  const lines = (await readText(deps, file)).split('\n')
  const found = lines.slice(0, -1).map(readArchiveLine)
  const whole = found.filter((record) => record !== undefined)
  if (lines.at(-1) !== '' || whole.length !== file.records || found.length !== file.records) {
    throw damaged(deps.place, `the file ${file.name} does not contain ${file.records} usage records`)
  }
  return whole
}

/** @throws CodedError ARCHIVE_DAMAGED, ARCHIVE_UNAVAILABLE */
export async function readText(
  { place, compression }: ReadArchiveDeps,
  { name, bytes, sha256: hash }: ArchivedFile,
): Promise<string> {
  const body = await place.get(name)
  if (body === null) throw damaged(place, `the file ${name} is missing`)
  if (body.length !== bytes || sha256(body) !== hash) throw damaged(place, `the file ${name} was changed`)
  return compression.decompress(body).catch((cause: unknown) => {
    throw damaged(place, `the file ${name} cannot be decompressed (${String(cause)})`)
  })
}

export interface ArchiveFindings {
  readonly archives: number
  readonly files: number
  readonly records: number
  /** Null: the place contains no archive. */
  readonly range: { readonly after: bigint; readonly upTo: bigint } | null
  /** The manifest that the first one follows; null: none. */
  readonly continues: string | null
  readonly problems: readonly string[]
}

/** Checks hashes, chain and sums of all archives in the place. @throws CodedError ARCHIVE_UNAVAILABLE */
export async function verifyArchive(deps: ReadArchiveDeps): Promise<ArchiveFindings> {
  const problems: string[] = []
  let [files, records, continues]: [number, number, string | null] = [0, 0, null]
  let before: StoredManifest | undefined
  const attempt = async (work: () => Promise<void>): Promise<void> => {
    try {
      await work()
    } catch (error) {
      if (!(error instanceof CodedError) || error.code !== 'ARCHIVE_DAMAGED') throw error
      problems.push(error.message)
    }
  }
  const all = manifestsIn(await deps.place.list())
  for (const [index, { name }] of all.entries()) {
    await attempt(async () => {
      const stored = await readManifest(deps.place, name)
      const { previous } = stored.manifest
      if (index === 0) continues = previous?.manifest ?? null
      else if (before === undefined || previous?.sha256 !== before.sha256 || previous.manifest !== before.name) {
        problems.push(damaged(deps.place, `${name} does not follow the archive before it`).message)
      }
      before = stored
      await verifyFiles(deps, name, stored.manifest)
      files += stored.manifest.files.length
      records += stored.manifest.records
    })
  }
  const [first, last] = [all[0], all.at(-1)]
  const range = first === undefined || last === undefined ? null : { after: first.after, upTo: last.upTo }
  return { archives: all.length, files, records, range, continues, problems }
}

async function verifyFiles(deps: ReadArchiveDeps, name: string, manifest: Manifest): Promise<void> {
  const tally = new Tally()
  let at = manifest.after
  for (const file of manifest.files) {
    for (const record of await readFile(deps, file)) {
      if (record.position <= at || record.position > manifest.upTo) {
        throw damaged(deps.place, `cursor ${record.position} in ${file.name} is out of sequence`)
      }
      at = record.position
      tally.add(record)
    }
  }
  if (!tally.fits(manifest)) throw damaged(deps.place, `the records do not add up to the sums of ${name}`)
}
