/** Writes the files and the manifest of one archive, or compares those that an earlier run has left with the store. */
import type { GiveWay } from '../../runtime/give-way.ts'
import { CodedError } from '../../../protocol/errors.ts'
import type { NumberedUsage, UsageArchive } from '../../storage/records.ts'
import type { Store } from '../../storage/store.ts'
import { archiveLine, readArchiveLine } from '../usage-text.ts'
import type { ArchiveClaim } from './claim.ts'
import {
  type ArchivedFile,
  type NamedRange,
  type StoredManifest,
  Tally,
  damaged,
  fileName,
  filesOf,
  manifestBody,
  manifestName,
  readManifest,
  sha256,
} from './manifest.ts'
import type { ArchivePlace, Compression } from './place.ts'
import { readText } from './read-archive.ts'

/** A row of the store comes whole, so there can be more. */
export interface ArchiveLimits {
  /** In one archive: what a killed run repeats at most. */
  readonly records: number
  /** In one file, before its compression. */
  readonly characters: number
  readonly piece: number
}

export interface WriteArchiveDeps {
  readonly store: Pick<Store, 'read'>
  readonly claim: Pick<ArchiveClaim, 'check' | 'renew'>
  readonly place: ArchivePlace
  readonly compression: Compression
  readonly tenantId: string
  readonly giveWay: GiveWay
  readonly isStopping: () => boolean
  readonly limits: ArchiveLimits
}

export interface PlannedArchive {
  readonly after: bigint
  readonly upTo: bigint
  readonly previous: UsageArchive | null
}

/** @throws CodedError ARCHIVE_IN_USE, ARCHIVE_DIFFERS, ARCHIVE_DAMAGED, ARCHIVE_UNAVAILABLE, STOPPING */
export async function writeArchive(
  deps: WriteArchiveDeps,
  { after, upTo, previous }: PlannedArchive,
): Promise<StoredManifest> {
  const { place, claim, limits } = deps
  const files: ArchivedFile[] = []
  const tally = new Tally()
  let [text, records, at] = ['', 0, after]
  const write = async (last: bigint): Promise<void> => {
    const name = fileName(at, last)
    const body = await keepFile(deps, name, text)
    files.push({ name, records, bytes: body.length, sha256: sha256(body) })
    ;[text, records, at] = ['', 0, last]
  }
  let end = after
  for await (const piece of piecesOf(deps, { after, upTo, tally })) {
    text += piece.lines.join('')
    records += piece.lines.length
    end = piece.last
    if (text.length >= limits.characters) await write(end)
  }
  if (records > 0) await write(end)
  const body = manifestBody({ after, upTo, ...tally.totals(), previous: named(previous), files })
  const name = manifestName(after, upTo)
  // What was read is whole: a process that takes over deletes it later.
  await claim.check()
  const isNew = await place.create(name, body)
  const stored = await readManifest(place, name)
  if (stored.sha256 === sha256(body)) return stored
  if (isNew) throw damaged(place, `it does not return ${name} as it was written`)
  await claim.check()
  throw differs(place, `${name} describes other files`)
}

/** Compares an archive that is there already with the store. @throws CodedError as {@link writeArchive} */
export async function adoptArchive(
  deps: WriteArchiveDeps,
  { after, upTo, previous }: PlannedArchive,
  name: string,
): Promise<StoredManifest> {
  const { place } = deps
  const stored = await readManifest(place, name)
  const { manifest } = stored
  if (JSON.stringify(manifest.previous) !== JSON.stringify(named(previous))) {
    throw differs(place, `${name} follows another archive`)
  }
  const tally = new Tally()
  let at = after
  for (const file of filesOf(manifest)) {
    if (file.after !== at || file.upTo > upTo) throw damaged(place, `${name} names ${file.name} out of sequence`)
    await compareFile(deps, file, tally)
    at = file.upTo
  }
  const rest = await piecesOf(deps, { after: at, upTo, tally }).next()
  if (rest.done !== true) throw differs(place, `${name} has no file with the records up to ${rest.value.last}`)
  if (!tally.fits(manifest)) throw differs(place, `${name} has other sums than this cloud in its range`)
  return stored
}

async function compareFile(deps: WriteArchiveDeps, file: ArchivedFile & NamedRange, tally: Tally): Promise<void> {
  const { place, claim } = deps
  const { after, upTo } = file
  const text = await readText(deps, file)
  await claim.renew()
  let [at, records] = [0, 0]
  for await (const { lines, last } of piecesOf(deps, { after, upTo, tally })) {
    const piece = lines.join('')
    if (!text.startsWith(piece, at))
      throw differs(place, `${file.name} has other records than this cloud up to ${last}`)
    at += piece.length
    records += lines.length
  }
  if (at !== text.length || records !== file.records) {
    throw differs(place, `${file.name} has records that this cloud does not have`)
  }
}

function named(previous: UsageArchive | null): { readonly manifest: string; readonly sha256: string } | null {
  return previous === null ? null : { manifest: previous.manifest, sha256: previous.sha256 }
}

/** Records of the store. The tally adds them up. */
async function* piecesOf(
  { store, claim, giveWay, isStopping, tenantId, limits: { piece } }: WriteArchiveDeps,
  { after, upTo, tally }: Pick<PlannedArchive, 'after' | 'upTo'> & { readonly tally: Tally },
): AsyncGenerator<{ readonly lines: readonly string[]; readonly last: bigint }> {
  for (let at = after; at < upTo;) {
    const range = { after: at, upTo, instanceId: null, from: null, to: null, limit: piece }
    const { records, end } = await store.read((reader) => reader.usage.range(range))
    await giveWay()
    await claim.renew()
    if (isStopping()) throw new CodedError('STOPPING', 'The archive is not complete. The next run continues it.')
    const lines = records.map((numbered) => {
      tally.add(numbered.record)
      const line = archiveLine(tenantId, numbered)
      if (!isReadable(line, numbered)) throw new Error(`invariant: the archive can read ${line}`)
      return line
    })
    const last = records.at(-1)?.position
    if (last !== undefined) yield { lines, last }
    at = end
  }
}

function isReadable(line: string, { position, record }: NumberedUsage): boolean {
  const read = readArchiveLine(line.slice(0, -1))
  return (
    line.indexOf('\n') === line.length - 1 &&
    read?.position === position &&
    read.instanceId === record.instanceId &&
    read.activationId === record.activationId &&
    read.usageTime === record.usageTime &&
    read.writeTime === record.writeTime &&
    read.tokens === record.tokens
  )
}

/** Unless an earlier run has written the same text. Returns the content in the place. */
async function keepFile({ place, claim, compression }: WriteArchiveDeps, name: string, text: string): Promise<Buffer> {
  // The text is whole: a process that takes over deletes its records later.
  await claim.check()
  let found = await place.get(name)
  if (found === null) {
    const body = await compression.compress(text)
    await place.create(name, body)
    await claim.renew()
    found = await place.get(name)
    if (found?.equals(body) === true) return found
    // Another process may have taken over.
    await claim.check()
  }
  if (found === null) throw damaged(place, `it does not return ${name}, which was written`)
  const stored = await compression.decompress(found).catch((cause: unknown) => {
    throw damaged(place, `${name} cannot be decompressed (${String(cause)}). No archive needs it yet: delete it`)
  })
  if (stored !== text) throw differs(place, `${name} contains other records than this cloud`)
  return found
}

export function differs({ name }: ArchivePlace, why: string): CodedError {
  return new CodedError('ARCHIVE_DIFFERS', `${name} contains archives of another cloud, or of another history: ${why}.`)
}
