/**
 * Writes usage records to archives and deletes them from the store. An archive is written in this sequence: plan in the
 * store, files, manifest, record in the store, deletion. A run that was killed is continued by the next one. One process
 * archives at a time; one that was thought dead cannot record.
 */
import { CodedError } from '../../../protocol/errors.ts'
import { CLOUD } from '../../storage/audit-records.ts'
import { recordChange } from '../../storage/audit.ts'
import type { GiveWay } from '../../runtime/give-way.ts'
import type { UsageArchive } from '../../storage/records.ts'
import type { Store, Transaction } from '../../storage/store.ts'
import { archiveLine } from '../usage-text.ts'
import {
  type ArchivedFile,
  type NamedRange,
  type StoredManifest,
  Tally,
  archiveOf,
  fileName,
  manifestBody,
  manifestName,
  manifestsIn,
  readManifest,
  sha256,
} from './manifest.ts'
import type { ArchivePlace, Compression } from './place.ts'

/** A report of a device comes whole, so there can be more. */
export interface ArchiveLimits {
  /** In one archive: what a killed run repeats at most. */
  readonly records: number
  /** In one file, before its compression. */
  readonly characters: number
  /** Read at a time. */
  readonly piece: number
}

const LIMITS: ArchiveLimits = { records: 1_000_000, characters: 16 * 1024 * 1024, piece: 500 }

/** How long a process that archives may be silent before another one takes over, ms. */
export const ARCHIVER_SILENT_MS_MAX = 60_000

export interface ArchiveUsageDeps {
  readonly store: Pick<Store, 'read' | 'transaction'>
  readonly place: ArchivePlace
  readonly compression: Compression
  readonly tenantId: string
  /** Unique name of this run, for people. */
  readonly holder: string
  readonly now: () => number
  readonly giveWay: GiveWay
  /** Checked between steps. */
  readonly isStopping: () => boolean
  readonly onArchive: (archive: UsageArchive) => void
  readonly limits?: ArchiveLimits
}

export interface ArchiveRun {
  readonly archives: number
  readonly records: number
}

/**
 * @param before POSIX ms: archives what was written before
 * @throws CodedError ARCHIVE_IN_USE, ARCHIVE_DIFFERS, ARCHIVE_DAMAGED, ARCHIVE_UNAVAILABLE
 */
export async function archiveUsage(deps: ArchiveUsageDeps, before: number): Promise<ArchiveRun> {
  const { store, holder, now, onArchive, isStopping } = deps
  await claim(deps)
  let [archives, records, finishedAt]: [number, number, number | null] = [0, 0, null]
  try {
    await deleteArchived(deps)
    while (!isStopping()) {
      const next = await planNext(deps, before)
      if (next === null) {
        finishedAt = now()
        break
      }
      const stored = next.manifest === null ? await write(deps, next) : await adopt(deps, next, next.manifest)
      const archive = archiveOf(stored, deps.place.name, now())
      const isRecorded = await asHolder(deps, async (tx) => {
        const needed = await tx.eventSinks.neededAfter()
        if (needed !== null && needed < archive.upTo) return false
        await tx.usageArchives.record(archive)
        const { after, upTo, place, manifest } = archive
        const detail = { after: String(after), upTo: String(upTo), records: archive.records, place, manifest }
        await recordChange(tx, now(), { action: 'ARCHIVE_USAGE', by: CLOUD, detail })
        return true
      })
      // An administrator has moved a sink back: the next run finds the archive.
      if (!isRecorded) break
      onArchive(archive)
      archives += 1
      records += archive.records
      await deleteArchived(deps)
    }
  } finally {
    // A store that fails here has failed before; the error of the work says more.
    await store.transaction((tx) => tx.usageArchives.release(holder, finishedAt)).catch(() => undefined)
  }
  return { archives, records }
}

async function claim({ store, holder, now }: ArchiveUsageDeps): Promise<void> {
  const at = now()
  const other = await store.transaction(async (tx) => {
    if (await tx.usageArchives.claim(holder, at, at - ARCHIVER_SILENT_MS_MAX)) return null
    return tx.usageArchives.archiving()
  })
  if (other !== null) throw inUse(other.holder, other.seenAt)
}

function inUse(holder: string | null, seenAt: number): CodedError {
  const until = new Date(seenAt + ARCHIVER_SILENT_MS_MAX).toISOString()
  return new CodedError(
    'ARCHIVE_IN_USE',
    `${holder ?? 'Another process'} archives the usage. If it has ended without notice, another process can archive after ${until}.`,
  )
}

/** @throws CodedError ARCHIVE_IN_USE if another process has taken over */
async function asHolder<T>(
  { store, holder, now }: ArchiveUsageDeps,
  work: (tx: Transaction) => Promise<T>,
): Promise<T> {
  return store.transaction(async (tx) => {
    if (!(await tx.usageArchives.hold(holder, now()))) {
      const { holder: other, seenAt } = await tx.usageArchives.archiving()
      throw inUse(other, seenAt)
    }
    return work(tx)
  })
}

async function deleteArchived(deps: ArchiveUsageDeps): Promise<void> {
  while (!deps.isStopping() && (await asHolder(deps, (tx) => tx.usageArchives.deleteSome()))) await deps.giveWay()
  while (!deps.isStopping() && (await asHolder(deps, (tx) => tx.usageArchives.giveSpaceBack()))) await deps.giveWay()
}

interface NextArchive {
  readonly after: bigint
  readonly upTo: bigint
  readonly previous: UsageArchive | null
  /** In the place already: of a run that was killed, or of a cloud that was restored from a backup since. */
  readonly manifest: string | null
}

/** Null: nothing is due. */
async function planNext(deps: ArchiveUsageDeps, before: number): Promise<NextArchive | null> {
  const { store, place, holder, limits = LIMITS } = deps
  const { previous, settled, needed, planned } = await asHolder(deps, async (tx) => ({
    previous: await tx.usageArchives.last(),
    settled: await tx.usage.settled(),
    needed: await tx.eventSinks.neededAfter(),
    planned: (await tx.usageArchives.archiving()).planned,
  }))
  // Sinks of events read later records.
  const end = needed !== null && needed < settled ? needed : settled
  const after = previous?.upTo ?? 0n
  const found = successorOf(previous, await manifestsOf(deps, previous), place)
  if (found !== undefined) {
    if (found.upTo > settled) throw differs(place, `${found.name} contains records that this cloud does not have`)
    return found.upTo > end ? null : { after, upTo: found.upTo, previous, manifest: found.name }
  }
  if (planned !== null && planned.place === place.name && planned.upTo > after) {
    return { after, upTo: planned.upTo, previous, manifest: null }
  }
  const range = { after, upTo: end, before, recordsMax: limits.records }
  const upTo = await store.read((reader) => reader.usageArchives.endOfNext(range))
  if (upTo === null) return null
  await asHolder(deps, (tx) => tx.usageArchives.plan(holder, place.name, upTo))
  return { after, upTo, previous, manifest: null }
}

/** The archives in the place. If there are any, they must be those of this cloud. */
async function manifestsOf({ place }: ArchiveUsageDeps, previous: UsageArchive | null): Promise<readonly NamedRange[]> {
  const found = manifestsIn(await place.list())
  const earlier = found.filter(({ upTo }) => previous !== null && upTo <= previous.upTo).at(-1)
  if (previous === null || earlier === undefined) return found
  const isSame =
    earlier.name === previous.manifest && (await readManifest(place, earlier.name)).sha256 === previous.sha256
  if (!isSame) throw differs(place, `its archive up to ${earlier.upTo} is not the last one of this cloud`)
  return found
}

function successorOf(
  previous: UsageArchive | null,
  found: readonly NamedRange[],
  place: ArchivePlace,
): NamedRange | undefined {
  const after = previous?.upTo ?? 0n
  const [next, ...others] = found.filter(({ upTo }) => upTo > after)
  if (next === undefined) return undefined
  if (next.after !== after || others.some((other) => other.after === after)) {
    throw differs(place, `${next.name} does not follow the last archive of this cloud`)
  }
  return next
}

function differs({ name }: ArchivePlace, why: string): CodedError {
  return new CodedError('ARCHIVE_DIFFERS', `${name} contains archives of another cloud, or of another history: ${why}.`)
}

async function write(deps: ArchiveUsageDeps, { after, upTo, previous }: NextArchive): Promise<StoredManifest> {
  const { place, compression } = deps
  const files: ArchivedFile[] = []
  const tally = new Tally()
  for (let at = after; ;) {
    const { text, last, records } = await nextFile(deps, { after: at, upTo }, tally)
    if (records === 0) break
    const body = await compression.compress(text)
    const name = fileName(at, last)
    await putVerified(place, name, body)
    files.push({ name, records, bytes: body.length, sha256: sha256(body) })
    at = last
    await asHolder(deps, async () => undefined)
    if (deps.isStopping()) throw new CodedError('STOPPING', 'The archive is not complete. The next run continues it.')
  }
  const manifest = {
    after,
    upTo,
    ...tally.totals(),
    previous: previous === null ? null : { manifest: previous.manifest, sha256: previous.sha256 },
    files,
  }
  const name = manifestName(after, upTo)
  await putVerified(place, name, manifestBody(manifest))
  return readManifest(place, name)
}

interface FileRange {
  readonly after: bigint
  readonly upTo: bigint
}

async function nextFile(deps: ArchiveUsageDeps, { after, upTo }: FileRange, tally: Tally) {
  const lines: string[] = []
  let [last, characters] = [after, 0]
  const { characters: most, piece } = deps.limits ?? LIMITS
  while (characters < most) {
    const records = await recordsAfter(deps, last, upTo)
    for (const numbered of records) {
      const line = archiveLine(deps.tenantId, numbered)
      lines.push(line)
      characters += line.length
      tally.add(numbered.record)
      last = numbered.position
    }
    if (records.length < piece) break
  }
  return { text: lines.join(''), last, records: lines.length }
}

async function recordsAfter({ store, giveWay, limits = LIMITS }: ArchiveUsageDeps, after: bigint, upTo: bigint) {
  const range = { after, upTo, instanceId: null, from: null, to: null, limit: limits.piece }
  const records = await store.read((reader) => reader.usage.range(range))
  await giveWay()
  return records
}

/** @throws CodedError ARCHIVE_DAMAGED if the place returns other bytes */
async function putVerified(place: ArchivePlace, name: string, body: Buffer): Promise<void> {
  await place.put(name, body)
  const stored = await place.get(name)
  if (stored?.equals(body) !== true) {
    throw new CodedError('ARCHIVE_DAMAGED', `${place.name} does not return ${name} as it was written.`)
  }
}

/** Compares an archive that is there already with the store. */
async function adopt(
  deps: ArchiveUsageDeps,
  { after, upTo, previous }: NextArchive,
  name: string,
): Promise<StoredManifest> {
  const { place } = deps
  const stored = await readManifest(place, name)
  const { manifest } = stored
  if (manifest.previous?.sha256 !== previous?.sha256) throw differs(place, `${name} follows another archive`)
  for (const file of manifest.files) {
    const body = await place.get(file.name)
    if (body === null || sha256(body) !== file.sha256) {
      throw new CodedError('ARCHIVE_DAMAGED', `${file.name} in ${place.name} is missing or changed.`)
    }
    await asHolder(deps, async () => undefined)
  }
  const tally = new Tally()
  const { piece } = deps.limits ?? LIMITS
  for (let at = after; ;) {
    const records = await recordsAfter(deps, at, upTo)
    for (const { record } of records) tally.add(record)
    at = records.at(-1)?.position ?? at
    if (records.length < piece) break
  }
  if (!tally.fits(manifest)) throw differs(place, `${name} has other records than this cloud in its range`)
  return stored
}
