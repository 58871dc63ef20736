/** Prints the next cursor after every record before it was written: a job that stores it gets each record once. */
import { EventEmitter, once } from 'node:events'
import type { ExportedUsage, Service } from '../nouns/service.ts'
import { type Command, InvalidArgumentError, Option } from 'commander'
import { cloudOptions } from '../../cloud/settings.ts'
import { CodedError } from '../../protocol/errors.ts'
import { uuid } from '../../protocol/wire.ts'
import { USAGE_FORMATS, type UsageFormat, usageCursor } from '../../protocol/service/usage-export.ts'
import { type AdministratorFlags, administrator, withAdministratorFlags } from '../administrator.ts'
import { requireRange, timeArgument } from '../arguments.ts'
import type { Io, Output } from '../io.ts'
import { namesFor, nounCommand } from '../nouns/command.ts'
import { writeLines } from '../lines.ts'
import { foundSettings } from '../service-settings.ts'
import { archiveAt, archiveCommand } from './usage-archive.ts'
import { TOTALS_BY, type TotalsColumn, totalJson, totalsColumns, totalsOf, totalsTable } from './usage-totals.ts'
import { writeFileAtomically } from '../atomic-write.ts'

interface RecordsFlags extends AdministratorFlags {
  readonly instance?: string
  readonly since?: number
  readonly until?: number
  readonly after?: string
  readonly fromArchive?: string
}

interface ExportFlags extends RecordsFlags {
  readonly format: UsageFormat
  readonly out?: string
}

interface TotalsFlags extends RecordsFlags {
  readonly by: readonly TotalsColumn[]
}

export function command(io: Io): Command {
  const usage = nounCommand('usage', io).description('Shows, adds up and exports usage records.')
  withRecordsFlags(usage.command('export'))
    .description('Writes usage records, oldest first, and prints the cursor for the next export to stderr.')
    .addOption(new Option('--format <format>', 'output format').choices(USAGE_FORMATS).default('csv'))
    .option('--out <file>', 'output file, written atomically (default: stdout)')
    .action((flags: ExportFlags) =>
      withRecords(flags, flags.format, io, async ({ next, pieces }) => writeExport(flags, pieces, next, io)),
    )
  withRecordsFlags(usage.command('totals'))
    .description(
      'Adds up the tokens of usage records, such as those of a month. Usage that a device delivers later counts at the time of its use.',
    )
    .addOption(
      new Option('--by <columns>', 'a total for each account, instance, line-item, item, requester or device')
        .argParser(totalsColumns)
        .default(TOTALS_BY, TOTALS_BY.join(',')),
    )
    .option('--json', 'print one JSON document per line for each total, with exact amounts')
    .action((flags: TotalsFlags) =>
      withRecords(flags, 'ndjson', io, async (records, service) => printTotals(flags, records, service, io)),
    )
  return usage.addCommand(archiveCommand(io))
}

function withRecordsFlags(command: Command): Command {
  return withAdministratorFlags(command)
    .option('--instance <name>', 'only records of this instance: its name or id')
    .option('--since <time>', 'only usage at or after this time, such as 2026-05-01T08:00Z', timeArgument)
    .option('--until <time>', 'only usage before this time', timeArgument)
    .option('--after <cursor>', 'only records written after the command that printed this cursor', cursorArgument)
    .option(
      '--from-archive <place>',
      'read the archive in this directory or s3:// address, without the cloud; --instance takes an id',
    )
}

/** @param use gets no service for an archive */
async function withRecords(
  flags: RecordsFlags,
  format: UsageFormat,
  io: Io,
  use: (records: ExportedUsage, service: Service | null) => Promise<void>,
): Promise<void> {
  requireRange(flags)
  if (flags.fromArchive !== undefined) return use(await archivedRecords(flags.fromArchive, flags, format, io), null)
  using service = await administrator(flags, io)
  const instanceId = flags.instance === undefined ? null : await service.instanceId(flags.instance)
  const { since: from, until: to, after } = flags
  await use(await service.exportUsage({ format, instanceId, from, to, after }), service)
}

async function archivedRecords(
  place: string,
  { instance, after, since, until }: RecordsFlags,
  format: UsageFormat,
  io: Io,
): Promise<ExportedUsage> {
  const { exportArchive } = await import('../../cloud/usage/archive/read-archive.ts')
  if (instance !== undefined && !uuid.safeParse(instance).success) {
    throw new CodedError('USAGE', '--instance takes an id with --from-archive, because an archive contains no names.')
  }
  return exportArchive(await archiveAt(place, foundSettings(cloudOptions, io)), {
    after: after === undefined ? 0n : BigInt(after),
    instanceId: instance?.toLowerCase() ?? null,
    from: since ?? null,
    to: until ?? null,
    format,
  })
}

async function printTotals(
  { by, json }: TotalsFlags,
  { pieces, next }: ExportedUsage,
  service: Service | null,
  io: Io,
): Promise<void> {
  const totals = await totalsOf(pieces, by)
  // The cloud has the rest.
  if (service === null) printCursor(next, io)
  if (json === true) {
    writeLines(io.stdout, totals.map(totalJson))
    return
  }
  const lists = (
    [
      ['instance', 'instances'],
      ['device', 'devices'],
    ] as const
  )
    .filter(([column]) => totals.length > 0 && by.includes(column))
    .map(([, list]) => list)
  const names = service === null ? new Map<string, string>() : await namesFor(new Set(lists), service)
  writeLines(io.stdout, totalsTable(totals, by, names))
}

async function writeExport(
  { out }: Pick<ExportFlags, 'out'>,
  pieces: AsyncIterable<string | Buffer>,
  next: bigint,
  io: Io,
): Promise<void> {
  if (out === undefined) await writeOut(io.stdout, pieces)
  else await writeFileAtomically(out, pieces)
  printCursor(next, io)
}

function printCursor(next: bigint, io: Io): void {
  io.stderr.write(`next cursor: ${next}\n`)
}

/** Respects backpressure. */
async function writeOut(output: Output, pieces: AsyncIterable<string | Buffer>): Promise<void> {
  const decoder = new TextDecoder()
  for await (const piece of pieces) {
    const text = typeof piece === 'string' ? piece : decoder.decode(piece, { stream: true })
    if (output.write(text) === false && output instanceof EventEmitter) await once(output, 'drain')
  }
}

function cursorArgument(text: string): string {
  if (usageCursor.safeParse(text).success) return text
  throw new InvalidArgumentError('Use the cursor that a previous export printed.')
}
