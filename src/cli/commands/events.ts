import { Command, InvalidArgumentError } from 'commander'
import { z } from 'zod'
import { EVENT_TYPES, deadLetterList, eventSinkList, eventSinkState } from '../../protocol/edge/events.ts'
import { type Call, queryText } from '../../client/call.ts'
import { grouped } from '../../core/accounts/in-words.ts'
import { CodedError } from '../../protocol/errors.ts'
import { type AdministratorFlags, administrator, withAdministratorFlags } from '../administrator.ts'
import { wholeNumberArgument } from '../arguments.ts'
import { type ConfirmFlags, isConfirmed, withConfirmation } from '../confirm.ts'
import { examples } from '../examples.ts'
import type { Io } from '../io.ts'
import { instantText, jsonLine, table, writeLines } from '../lines.ts'
import { type ListFlags, widthFor, withListOptions } from '../lists.ts'
import type { Service } from '../nouns/service.ts'

type SinkFlags = AdministratorFlags & ListFlags

interface EventFlags extends SinkFlags {
  readonly instance?: string
  readonly device?: string
  readonly type?: string
  readonly before?: string
  readonly limit: number
}

interface ReplayFlags extends AdministratorFlags {
  readonly after?: string
  readonly deadLetters?: true
}

const SINKS = '/edge/api/v1/event-sinks'

/** The cloud's maximum page size. */
const PAGE_MAX = 1_000

export function command(io: Io): Command {
  const events = new Command('events').description(
    'Shows events of the cloud, and sends them to sinks again. The settings of the cloud name the sinks.',
  )
  const named = (name: string): Command => withAdministratorFlags(events.command(name))
  const listed = named('list')
    .description('Lists events of line items and devices, newest first. Usage is not listed: see tallygate usage.')
    .option('--instance <name>', 'only events of this instance: its name or id')
    .option('--device <name>', 'only events of this device: its name or id')
    .option('--type <type>', 'only this type, such as device.enrolled', typeArgument)
    .option('--limit <n>', 'maximum number of events', wholeNumberArgument(1, PAGE_MAX), 100)
    .option('--before <position>', 'only events before those of the list that printed this position', positionArgument)
  withListOptions(listed).action((flags: EventFlags) => list(flags, io))
  named('show')
    .description('Shows an event as sinks receive it, in JSON. It can be usage.')
    .argument('<id>', 'id of the event')
    .action((id: string, flags: AdministratorFlags) => show(id, flags, io))
  withListOptions(named('sinks'))
    .description('Lists sinks, how far each has got, and why it fails.')
    .action((flags: SinkFlags) => sinks(flags, io))
  withListOptions(named('dead-letters'))
    .description('Lists events that a sink has rejected, oldest first.')
    .argument('<sink>', 'name of the sink')
    .action((sink: string, flags: SinkFlags) => deadLetters(sink, flags, io))
  named('replay')
    .description('Sends events to a sink again, with the same ids.')
    .argument('<sink>', 'name of the sink')
    .option(
      '--after <position>',
      'all events after this position: the sequence of an event, or the cursor of a usage export; 0: all',
      positionArgument,
    )
    .option('--dead-letters', 'the events that the sink has rejected')
    .option('--json', 'print one JSON document')
    .action((sink: string, flags: ReplayFlags) => replay(sink, flags, io))
  named('retry')
    .description('Tries a failing sink now, without the pause after its last attempt.')
    .argument('<sink>', 'name of the sink')
    .option('--json', 'print one JSON document')
    .action((sink: string, flags: AdministratorFlags) =>
      changeSink({ method: 'POST', path: `${sinkPath(sink)}/retry` }, flags, io),
    )
  withConfirmation(named('discard'))
    .description('Discards the events that a sink has rejected.')
    .argument('<sink>', 'name of the sink')
    .option('--json', 'print one JSON document')
    .action((sink: string, flags: AdministratorFlags & ConfirmFlags) => discard(sink, flags, io))
  withConfirmation(named('forget'))
    .description(
      'Forgets a sink that was removed from the settings. One that is still there begins with the next event.',
    )
    .argument('<sink>', 'name of the sink')
    .action((sink: string, flags: AdministratorFlags & ConfirmFlags) => forget(sink, flags, io))
  return examples(events, [
    'tallygate events list --type line-item.low',
    'tallygate events sinks',
    'tallygate events retry billing',
    'tallygate events replay billing --dead-letters',
  ])
}

type Event = Readonly<Record<string, unknown>>

async function list(flags: EventFlags, io: Io): Promise<void> {
  using service = await administrator(flags, io)
  const query = queryText({
    instanceId: flags.instance === undefined ? undefined : await service.instanceId(flags.instance),
    deviceId: flags.device === undefined ? undefined : await service.deviceId(flags.device),
    type: flags.type,
    before: flags.before,
    size: flags.limit,
  })
  const { events, next } = await eventsAt(service, query)
  const rows = events.map(({ time, type, subject, id }) => [time, type, subject, id].map(String))
  const lines = table(['AT', 'TYPE', 'SUBJECT', 'ID'], rows, 'No events.', widthFor(flags, io))
  writeLines(io.stdout, flags.json === true ? events.map(jsonLine) : lines)
  if (next !== null) io.stderr.write(`There are more events: repeat the command with --before ${next}\n`)
}

async function show(id: string, flags: AdministratorFlags, io: Io): Promise<void> {
  using service = await administrator(flags, io)
  const { events } = await eventsAt(service, queryText({ id }))
  writeLines(io.stdout, events.map(jsonLine))
}

/** Numbers stay as they are. */
async function eventsAt(service: Service, query: string) {
  const answer = await service.get(`/edge/api/v1/events?${query}`)
  return z.object({ events: z.array(z.custom<Event>()), next: z.string().nullable() }).parse(answer)
}

type Sink = z.infer<typeof eventSinkState>

async function sinks(flags: SinkFlags, io: Io): Promise<void> {
  using service = await administrator(flags, io)
  const { sinks: all } = await service.json({ method: 'GET', path: SINKS }, eventSinkList)
  writeLines(io.stdout, flags.json === true ? all.map(jsonLine) : sinkTable(all, widthFor(flags, io)))
}

function sinkTable(all: readonly Sink[], widthMax?: number): readonly string[] {
  const rows = all.map((sink) => [
    sink.name,
    sink.settings?.kind ?? '-',
    stateOf(sink),
    sink.failingSince === null ? '-' : retryText(sink.retryAt),
    instantText(sink.deliveredAt),
    grouped(sink.deadLetters),
    sink.position,
    sink.problem ?? '',
  ])
  const head = ['SINK', 'KIND', 'STATE', 'NEXT ATTEMPT', 'LAST PROGRESS', 'DEAD LETTERS', 'POSITION', 'PROBLEM']
  return table(head, rows, 'No sinks: name them in the settings (events.webhooks, events.nats_url).', widthMax)
}

function stateOf({ settings, failingSince, behind }: Sink): string {
  if (settings === null) return 'not in the settings'
  if (failingSince !== null) return `failing since ${new Date(failingSince).toISOString()}`
  return behind ? 'sending' : 'up to date'
}

function retryText(retryAt: number | null): string {
  return retryAt === null ? 'now' : new Date(retryAt).toISOString()
}

async function deadLetters(sink: string, flags: SinkFlags, io: Io): Promise<void> {
  using service = await administrator(flags, io)
  const rows: z.infer<typeof deadLetterList>['deadLetters'] = []
  for (let next: string | null = '0'; next !== null;) {
    const path = `${sinkPath(sink)}/dead-letters?after=${next}&size=${PAGE_MAX}`
    const page: z.infer<typeof deadLetterList> = await service.json({ method: 'GET', path }, deadLetterList)
    rows.push(...page.deadLetters)
    next = page.next
  }
  const cells = rows.map(({ at, type, eventId, problem }) => [new Date(at).toISOString(), type, eventId, problem])
  const lines = table(['AT', 'TYPE', 'ID', 'PROBLEM'], cells, 'No dead letters.', widthFor(flags, io))
  writeLines(io.stdout, flags.json === true ? rows.map(jsonLine) : lines)
}

async function replay(sink: string, { after, deadLetters: dead, ...flags }: ReplayFlags, io: Io): Promise<void> {
  if ((after === undefined) === (dead === undefined)) {
    throw new CodedError('USAGE', 'Give either --after or --dead-letters.')
  }
  const body = after === undefined ? { deadLetters: true } : { after: String(BigInt(after)) }
  using service = await administrator(flags, io)
  const state = await service.json({ method: 'POST', path: `${sinkPath(sink)}/replay`, body }, eventSinkState)
  writeLines(io.stdout, flags.json === true ? [jsonLine(state)] : sinkTable([state]))
}

async function changeSink(call: Call, flags: AdministratorFlags, io: Io): Promise<void> {
  using service = await administrator(flags, io)
  const state = await service.json(call, eventSinkState)
  writeLines(io.stdout, flags.json === true ? [jsonLine(state)] : sinkTable([state]))
}

async function discard(sink: string, flags: AdministratorFlags & ConfirmFlags, io: Io): Promise<void> {
  const consequence = `The events that the sink ${sink} has rejected cannot be sent again.`
  if (!(await isConfirmed(consequence, 'discard', flags, io))) return
  await changeSink({ method: 'DELETE', path: `${sinkPath(sink)}/dead-letters` }, flags, io)
}

async function forget(sink: string, flags: AdministratorFlags & ConfirmFlags, io: Io): Promise<void> {
  const consequence = `The position of the sink ${sink} and the events that it has rejected will be deleted.`
  if (!(await isConfirmed(consequence, 'forget', flags, io))) return
  using service = await administrator(flags, io)
  await service.send({ method: 'DELETE', path: sinkPath(sink) })
  writeLines(io.stdout, [`The sink ${sink} is forgotten.`])
}

function sinkPath(name: string): string {
  return `${SINKS}/${encodeURIComponent(name)}`
}

function positionArgument(text: string): string {
  if (/^\d{1,19}$/.test(text)) return String(BigInt(text))
  throw new InvalidArgumentError('Use a position, which is a whole number.')
}

function typeArgument(text: string): string {
  const name = text.replace(/^tallygate\./, '')
  if (EVENT_TYPES.some((each) => each === name)) return name
  throw new InvalidArgumentError(`Use one of ${EVENT_TYPES.join(', ')}.`)
}
