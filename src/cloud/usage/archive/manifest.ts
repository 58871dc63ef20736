/** A manifest has the hash of the previous one. Names contain positions: a repeated run writes the same files. */
import { hash } from 'node:crypto'
import { z } from 'zod'
import { formatMicro, parseDecimal } from '../../../core/pricing/amount.ts'
import { CodedError } from '../../../protocol/errors.ts'
import { parseJson } from '../../../protocol/parse-json.ts'
import { hashText } from '../../../protocol/signing.ts'
import { usageCursor } from '../../../protocol/service/usage-export.ts'
import { USAGE_ROW_POSITIONS, type UsageArchive } from '../../storage/records.ts'
import type { ArchivePlace } from './place.ts'

const FORMAT = 'tallygate-usage-archive-1'

const count = z.int().min(0)

const FILE_NAME = /^usage-(?<after>\d{19})-(?<upTo>\d{19})\.ndjson\.zst$/
const MANIFEST_NAME = /^usage-(?<after>\d{19})-(?<upTo>\d{19})\.manifest\.json$/

const manifestSchema = z.strictObject({
  format: z.literal(FORMAT),
  /** Cursors of the records: after the one, up to the other. */
  after: usageCursor,
  /** The last one of a row of the store. */
  upTo: usageCursor.refine((position) => position % USAGE_ROW_POSITIONS === 0n),
  records: count,
  latestUse: count,
  /** The use that devices date more than a day after its record was written, which latestUse leaves out; null: none. */
  usedAhead: z.strictObject({ from: count, to: count }).nullable(),
  previous: z.strictObject({ manifest: z.string().regex(MANIFEST_NAME), sha256: hashText }).nullable(),
  files: z.array(z.strictObject({ name: z.string().regex(FILE_NAME), records: count, bytes: count, sha256: hashText })),
  /** By instance and line item; null: no line item was charged. Tokens are decimals. */
  sums: z.array(
    z.strictObject({
      instanceId: z.string(),
      lineItemId: z.string().nullable(),
      records: count,
      tokens: z.string().refine((text) => parseDecimal(text) !== undefined, 'must be a decimal'),
    }),
  ),
})

export type Manifest = z.output<typeof manifestSchema>
export type ArchivedFile = Manifest['files'][number]

export function manifestBody(manifest: Omit<Manifest, 'format'>): Buffer {
  const { after, upTo, ...rest } = manifest
  return Buffer.from(
    `${JSON.stringify({ format: FORMAT, after: String(after), upTo: String(upTo), ...rest }, null, 2)}\n`,
  )
}

export interface StoredManifest {
  readonly name: string
  readonly sha256: string
  readonly manifest: Manifest
}

/** @throws CodedError ARCHIVE_DAMAGED, ARCHIVE_UNAVAILABLE */
export async function readManifest(place: ArchivePlace, name: string): Promise<StoredManifest> {
  const body = await place.get(name)
  if (body === null) throw damaged(place, `the manifest ${name} is missing`)
  const parsed = manifestSchema.safeParse(parseJson(body.toString('utf8')))
  if (!parsed.success) throw damaged(place, `${name} is not a manifest of an archive`)
  const { after, upTo } = parsed.data
  if (manifestName(after, upTo) !== name) throw damaged(place, `${name} contains another archive than its name says`)
  return { name, sha256: sha256(body), manifest: parsed.data }
}

export function damaged({ name }: Pick<ArchivePlace, 'name'>, what: string): CodedError {
  return new CodedError('ARCHIVE_DAMAGED', `The archive in ${name} is damaged: ${what}.`)
}

export function manifestName(after: bigint, upTo: bigint): string {
  return `usage-${padded(after)}-${padded(upTo)}.manifest.json`
}

export function fileName(after: bigint, upTo: bigint): string {
  return `usage-${padded(after)}-${padded(upTo)}.ndjson.zst`
}

function padded(position: bigint): string {
  return String(position).padStart(19, '0')
}

export interface NamedRange {
  readonly name: string
  readonly after: bigint
  readonly upTo: bigint
}

/** The manifests among the files, by position. */
export function manifestsIn(names: readonly string[]): readonly NamedRange[] {
  return names.flatMap((name) => rangeIn(MANIFEST_NAME, name)).sort((a, b) => (a.name < b.name ? -1 : 1))
}

export function filesOf({ files }: Manifest): readonly (ArchivedFile & NamedRange)[] {
  return files.flatMap((file) => rangeIn(FILE_NAME, file.name).map((range) => ({ ...file, ...range })))
}

function rangeIn(pattern: RegExp, name: string): NamedRange[] {
  const { after, upTo } = pattern.exec(name)?.groups ?? {}
  return after === undefined || upTo === undefined ? [] : [{ name, after: BigInt(after), upTo: BigInt(upTo) }]
}

export function sha256(body: Buffer): string {
  return hash('sha256', body)
}

/** So that one device whose clock is years ahead does not hide all later use: ms. */
const AHEAD_MS = 86_400_000

export class Tally {
  records = 0
  latestUse = 0
  usedAhead: Manifest['usedAhead'] = null
  readonly #sums = new Map<string, { records: number; tokens: bigint }>()

  add(record: {
    readonly instanceId: string
    readonly activationId: string | null
    readonly usageTime: number
    readonly writeTime: number
    readonly tokens: bigint
  }): void {
    const key = JSON.stringify([record.instanceId, record.activationId])
    const sum = this.#sums.get(key) ?? { records: 0, tokens: 0n }
    sum.records += 1
    sum.tokens += record.tokens
    this.#sums.set(key, sum)
    this.records += 1
    const { usageTime, writeTime } = record
    if (usageTime <= writeTime + AHEAD_MS) {
      this.latestUse = Math.max(this.latestUse, usageTime)
    } else {
      const { from, to } = this.usedAhead ?? { from: usageTime, to: usageTime }
      this.usedAhead = { from: Math.min(from, usageTime), to: Math.max(to, usageTime) }
    }
  }

  totals(): Pick<Manifest, 'records' | 'latestUse' | 'usedAhead' | 'sums'> {
    const sums = [...this.#sums]
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, { records, tokens }]) => {
        const [instanceId, lineItemId] = JSON.parse(key) as [string, string | null]
        return { instanceId, lineItemId, records, tokens: formatMicro(tokens) }
      })
    return { records: this.records, latestUse: this.latestUse, usedAhead: this.usedAhead, sums }
  }

  fits({ records, latestUse, usedAhead, sums }: Manifest): boolean {
    return JSON.stringify(this.totals()) === JSON.stringify({ records, latestUse, usedAhead, sums })
  }
}

export function archiveOf(
  { name, sha256: hash, manifest }: StoredManifest,
  place: string,
  archivedAt: number,
): UsageArchive {
  const { after, upTo, records, latestUse, usedAhead } = manifest
  return { after, upTo, records, latestUse, usedAhead, place, manifest: name, sha256: hash, archivedAt }
}
