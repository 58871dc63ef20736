/** Sequence: plan in the store, files, manifest, record in the store, deletion. The next run continues a killed one. */
import { CodedError } from '../../../protocol/errors.ts'
import { CLOUD } from '../../storage/audit-records.ts'
import { recordChange } from '../../storage/audit.ts'
import type { UsageArchive } from '../../storage/records.ts'
import type { Store } from '../../storage/store.ts'
import { ArchiveClaim, type ArchiveClaimDeps } from './claim.ts'
import { type NamedRange, archiveOf, manifestsIn, readManifest } from './manifest.ts'
import type { ArchivePlace } from './place.ts'
import {
  type ArchiveLimits,
  type PlannedArchive,
  type WriteArchiveDeps,
  adoptArchive,
  differs,
  writeArchive,
} from './write-archive.ts'

const LIMITS: ArchiveLimits = { records: 1_000_000, characters: 16 * 1024 * 1024, piece: 500 }

export interface ArchiveUsageDeps extends ArchiveClaimDeps, Omit<WriteArchiveDeps, 'store' | 'claim' | 'limits'> {
  readonly store: Pick<Store, 'read' | 'transaction'>
  readonly onArchive: (archive: UsageArchive) => void
  readonly limits?: ArchiveLimits
}

interface Run extends Omit<ArchiveUsageDeps, 'limits'> {
  readonly claim: ArchiveClaim
  readonly limits: ArchiveLimits
}

/** @param before POSIX ms. @throws CodedError ARCHIVE_IN_USE, ARCHIVE_DIFFERS, ARCHIVE_DAMAGED, ARCHIVE_UNAVAILABLE */
export async function archiveUsage(deps: ArchiveUsageDeps, before: number) {
  const { now, onArchive, isStopping } = deps
  const claim = await ArchiveClaim.take(deps)
  const run: Run = { ...deps, claim, limits: deps.limits ?? LIMITS }
  let [archives, records, finishedAt]: [number, number, number | null] = [0, 0, null]
  try {
    await deleteArchived(run)
    while (!isStopping()) {
      const next = await planNext(run, before)
      if (next === null) {
        finishedAt = now()
        break
      }
      const stored =
        next.manifest === null ? await writeArchive(run, next) : await adoptArchive(run, next, next.manifest)
      const archive = archiveOf(stored, deps.place.name, now())
      // An administrator has moved a sink back: the next run finds the archive.
      if (!(await record(run, archive))) break
      onArchive(archive)
      archives += 1
      records += archive.records
      await deleteArchived(run)
    }
  } finally {
    // A store that fails here has failed before; the error of the work says more.
    await claim.release(finishedAt).catch(() => undefined)
  }
  return { archives, records }
}

/** Returns false if a sink of events needs some of its records. */
async function record({ claim, now }: Run, archive: UsageArchive): Promise<boolean> {
  return claim.transaction(async (tx) => {
    const needed = await tx.eventSinks.lockNeededAfter()
    if (needed !== null && needed < archive.upTo) return false
    await tx.usageArchives.record(archive)
    const { after, upTo, records, place, manifest } = archive
    const detail = { after: String(after), upTo: String(upTo), records, place, manifest }
    await recordChange(tx, now(), { action: 'ARCHIVE_USAGE', by: CLOUD, detail })
    return true
  })
}

async function deleteArchived({ claim, giveWay, isStopping }: Run): Promise<void> {
  while (!isStopping() && (await claim.transaction((tx) => tx.usageArchives.deleteSome()))) await giveWay()
  while (!isStopping() && (await claim.transaction((tx) => tx.usageArchives.giveSpaceBack()))) await giveWay()
}

interface NextArchive extends PlannedArchive {
  /** In the place already: of a run that was killed, or of a cloud that was restored from a backup since. */
  readonly manifest: string | null
}

async function planNext(run: Run, before: number): Promise<NextArchive | null> {
  const { place, holder, claim } = run
  // Before the check of the claim, so that it is complete.
  const manifests = manifestsIn(await place.list())
  const { previous, settled, needed, planned } = await claim.transaction(async (tx) => ({
    previous: await tx.usageArchives.last(),
    settled: await tx.usage.settled(),
    needed: await tx.eventSinks.neededAfter(),
    planned: (await tx.usageArchives.archiving()).planned,
  }))
  // Sinks of events read later records.
  const end = needed !== null && needed < settled ? needed : settled
  const after = previous?.upTo ?? 0n
  await compareLast(place, previous, manifests)
  const found = successorOf(previous, manifests, place)
  if (found !== undefined) {
    if (found.upTo > settled) throw differs(place, `${found.name} contains records that this cloud does not have`)
    return found.upTo > end ? null : { after, upTo: found.upTo, previous, manifest: found.name }
  }
  if (planned !== null && planned.place === place.name && planned.upTo > after) {
    return { after, upTo: planned.upTo, previous, manifest: null }
  }
  const upTo = await endOfNext(run, { after, upTo: end }, before)
  if (upTo === null) return null
  await claim.transaction((tx) => tx.usageArchives.plan(holder, place.name, upTo))
  return { after, upTo, previous, manifest: null }
}

/** The last position of the next archive, which is not after `upTo`; null: nothing is due. */
async function endOfNext(
  { store, claim, giveWay, limits }: Run,
  { after, upTo }: { readonly after: bigint; readonly upTo: bigint },
  before: number,
): Promise<bigint | null> {
  let [begin, end, count]: [bigint, bigint | null, number] = [after, null, 0]
  for (;;) {
    const from = begin
    const rows = await store.read((reader) => reader.usageArchives.written(from, upTo))
    await giveWay()
    await claim.renew()
    if (rows.length === 0) return end
    for (const { position, records, writeTime } of rows) {
      if (writeTime >= before || (end !== null && count + records > limits.records)) return end
      count += records
      end = position
      begin = position
    }
  }
}

/** If there are archives in the place, they must be those of this cloud. */
async function compareLast(
  place: ArchivePlace,
  previous: UsageArchive | null,
  found: readonly NamedRange[],
): Promise<void> {
  if (previous === null) return
  if (previous.place === place.name && !found.some(({ name }) => name === previous.manifest)) {
    throw new CodedError(
      'ARCHIVE_UNAVAILABLE',
      `${place.name} does not contain ${previous.manifest}, the last archive of this cloud. If the directory or the bucket is not connected, connect it. If the archives were moved, copy that file back, or use another place.`,
    )
  }
  const last = found.filter(({ upTo }) => upTo <= previous.upTo).at(-1)
  if (last === undefined) return
  const isSame = last.name === previous.manifest && (await readManifest(place, last.name)).sha256 === previous.sha256
  if (!isSame) throw differs(place, `its archive up to ${last.upTo} is not the last one of this cloud`)
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
