/** Prints the next cursor after every record before it was written: a job that stores it gets each record once. */
import { EventEmitter, once } from 'node:events'
import { Service } from '../nouns/service.ts'
import { type Command, InvalidArgumentError, Option } from 'commander'
import { cloudOptions } from '../../cloud/settings.ts'
import { queryText } from '../../client/call.ts'
import { CodedError } from '../../protocol/errors.ts'
import { uuid } from '../../protocol/wire.ts'
import { USAGE_FORMATS, type UsageFormat, usageCursor, usageCursorHeader } from '../../protocol/service/usage-export.ts'
import { type AdministratorFlags, administrator, withAdministratorFlags } from '../administrator.ts'
import { timeArgument } from '../arguments.ts'
import type { Io, Output } from '../io.ts'
import { nounCommand } from '../nouns/command.ts'
import { foundSettings } from '../service-settings.ts'
import { archiveAt, archiveCommand } from './usage-archive.ts'
import { writeFileAtomically } from '../atomic-write.ts'

interface ExportFlags extends AdministratorFlags {
  readonly format: UsageFormat
  readonly instance?: string
  readonly from?: number
  readonly to?: number
  readonly after?: string
  readonly out?: string
  readonly fromArchive?: string
}

export function command(io: Io): Command {
  const usage = nounCommand('usage', io).description('Shows and exports usage records.')
  withAdministratorFlags(usage.command('export'))
    .description('Writes usage records, oldest first, and prints the cursor for the next export to stderr.')
    .addOption(new Option('--format <format>', 'output format').choices(USAGE_FORMATS).default('csv'))
    .option('--instance <name>', 'only records of this instance: its name or id')
    .option('--from <time>', 'only usage at or after this time, such as 2026-05-01T08:00Z', timeArgument)
    .option('--to <time>', 'only usage before this time', timeArgument)
    .option('--after <cursor>', 'only records written after the export that printed this cursor', cursorArgument)
    .option('--out <file>', 'output file, written atomically (default: stdout)')
    .option(
      '--from-archive <place>',
      'read the archive in this directory or s3:// address, without the cloud; --instance takes an id',
    )
    .action((flags: ExportFlags) => (flags.fromArchive === undefined ? exportUsage(flags, io) : readBack(flags, io)))
  return usage.addCommand(archiveCommand(io))
}

async function exportUsage(flags: ExportFlags, io: Io): Promise<void> {
  using client = await administrator(flags, io)
  const instanceId = flags.instance === undefined ? undefined : await new Service(client).instanceId(flags.instance)
  const { format, from, to, after } = flags
  const query = queryText({ format, instanceId, from, to, after })
  const call = { method: 'GET', path: `/provisioning/api/v1.1/usage?${query}` } as const
  const { headers, pieces } = await client.stream(call)
  const next = usageCursor.safeParse(headers[usageCursorHeader])
  if (!next.success) throw new CodedError('ANSWER_UNEXPECTED', `The response has no header ${usageCursorHeader}.`)
  await writeExport(flags, pieces, next.data, io)
}

async function readBack({ fromArchive = '', ...flags }: ExportFlags, io: Io): Promise<void> {
  const { exportArchive } = await import('../../cloud/usage/archive/read-archive.ts')
  const { instance } = flags
  if (instance !== undefined && !uuid.safeParse(instance).success) {
    throw new CodedError('USAGE', '--instance takes an id with --from-archive, because an archive contains no names.')
  }
  const { next, pieces } = await exportArchive(await archiveAt(fromArchive, foundSettings(cloudOptions, io)), {
    after: flags.after === undefined ? 0n : BigInt(flags.after),
    instanceId: instance?.toLowerCase() ?? null,
    from: flags.from ?? null,
    to: flags.to ?? null,
    format: flags.format,
  })
  await writeExport(flags, pieces, next, io)
}

async function writeExport(
  { out }: Pick<ExportFlags, 'out'>,
  pieces: AsyncIterable<string | Buffer>,
  next: bigint,
  io: Io,
): Promise<void> {
  if (out === undefined) await writeOut(io.stdout, pieces)
  else await writeFileAtomically(out, pieces)
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
