import { randomUUID } from 'node:crypto'
import { hostname } from 'node:os'
import type { Command } from 'commander'
import { counted } from '../../core/accounts/in-words.ts'
import { type CloudSettings, cloudOptions } from '../../cloud/settings.ts'
import type { Store } from '../../cloud/storage/store.ts'
import type { ReadArchiveDeps } from '../../cloud/usage/archive/read-archive.ts'
import { CodedError } from '../../protocol/errors.ts'
import { timeArgument } from '../arguments.ts'
import { givingWay } from '../giving-way.ts'
import { INTERRUPTED, type Io } from '../io.ts'
import { writeLines } from '../lines.ts'
import { settingsOf } from '../service-settings.ts'
import { databaseIn, storeCommand } from './cloud.ts'

export function archiveCommand(io: Io): Command {
  const archive = storeCommand('archive')
    .description(
      'Moves usage records from the database of the cloud on this machine to archives. The cloud may run. A run that was interrupted is continued.',
    )
    .option('--to <place>', 'directory or s3://bucket/prefix (default: usage.archive)')
    .option(
      '--until <time>',
      'only records written before this time, such as 2026-05-01T08:00Z (default: now minus usage.retention)',
      timeArgument,
    )
    .action(async (flags: { to?: string; until?: number }) => {
      const settings = settingsOf(archive, cloudOptions, io)
      const place = flags.to ?? settings.usage.archive
      if (place === null) throw new CodedError('USAGE', 'Give --to, or the setting usage.archive.')
      const { retention } = settings.usage
      const before = flags.until ?? (retention === 0 ? null : io.now() - retention)
      if (before === null) throw new CodedError('USAGE', 'Give --until, or the setting usage.retention.')
      await writeArchives(settings, place, before, io)
    })
  archive
    .command('verify')
    .description('Checks the hashes, the sums and the sequence of all archives in a place.')
    .argument('<place>', 'directory or s3://bucket/prefix')
    .action(async (place: string) => verify(await archiveAt(place, settingsOf(archive, cloudOptions, io)), io))
  return archive
}

async function writeArchives(settings: CloudSettings, place: string, before: number, io: Io): Promise<void> {
  const { archiveUsage } = await import('../../cloud/usage/archive/archive-usage.ts')
  const stop = io.stop()
  const target = await archiveAt(place, settings, stop)
  const store = await openStore(settings)
  try {
    const { archives, records } = await archiveUsage(
      {
        store,
        ...target,
        tenantId: settings.usage.tenantId,
        holder: `tallygate usage archive on ${hostname()}, process ${process.pid} (${randomUUID()})`,
        now: io.now,
        giveWay: givingWay(),
        isStopping: () => stop.aborted,
        onArchive: ({ manifest, records: some }) =>
          writeLines(io.stdout, [`${manifest}: ${counted(some, 'record', 'records')}`]),
      },
      before,
    )
    writeLines(io.stdout, [
      `${counted(records, 'record', 'records')} in ${counted(archives, 'archive', 'archives')} in ${target.place.name}.`,
    ])
  } catch (error) {
    if (!stop.aborted) throw error
  } finally {
    await store.close()
  }
  if (!stop.aborted) return
  io.stderr.write('Stopped. Run the command again to continue.\n')
  io.exitWith(INTERRUPTED)
}

async function openStore({ db, cells, dbPassword, dbStandby, store: { path } }: CloudSettings): Promise<Store> {
  if (db !== null) {
    const { openPostgresStore } = await import('../../cloud/storage/postgres/store.ts')
    return openPostgresStore({
      url: db,
      password: dbPassword?.reveal() ?? null,
      requiresStandby: dbStandby,
      onConnectionLost: () => undefined,
    })
  }
  if (cells !== null) throw new CodedError('USAGE', 'This cloud has cells: give --db with the URL of one, and --to.')
  const { openSqliteStore } = await import('../../cloud/storage/sqlite/store.ts')
  return openSqliteStore({ path: databaseIn(path), check: false, onBroken: () => undefined })
}

async function verify(archive: ReadArchiveDeps, io: Io): Promise<void> {
  const { verifyArchive } = await import('../../cloud/usage/archive/read-archive.ts')
  const { archives, files, records, range, continues, problems } = await verifyArchive(archive)
  const last = problems.at(-1)
  writeLines(io.stderr, problems.slice(0, -1))
  if (last !== undefined) throw new CodedError('ARCHIVE_DAMAGED', last)
  const { name } = archive.place
  if (range === null) throw new CodedError('ARCHIVE_UNAVAILABLE', `${name} contains no archive of usage records.`)
  const begin = continues === null ? 'from the first record' : `after ${range.after}, where ${continues} ends`
  const parts = [
    counted(archives, 'archive', 'archives'),
    counted(files, 'file', 'files'),
    `${counted(records, 'record', 'records')} ${begin}`,
  ]
  writeLines(io.stdout, [`${name} is whole: ${parts.join(', ')}, up to ${range.upTo}.`])
}

export async function archiveAt(
  place: string,
  { s3 }: Pick<CloudSettings, 's3'>,
  stop: AbortSignal = new AbortController().signal,
): Promise<ReadArchiveDeps> {
  const { openPlace } = await import('../../cloud/platform/archive/open-place.ts')
  const { zstd } = await import('../../cloud/platform/archive/compression.ts')
  return { place: openPlace(place, s3, stop), compression: zstd }
}
