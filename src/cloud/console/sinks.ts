import { grouped } from '../../core/accounts/in-words.ts'
import { type Html, html } from '../../html/html.ts'
import { section } from '../../html/section.ts'
import type { EventSinkStateWire } from '../../protocol/edge/events.ts'
import { CodedError } from '../../protocol/errors.ts'
import { usageCursor } from '../../protocol/service/usage-export.ts'
import {
  discardDeadLetters,
  forgetSink,
  replayAfter,
  replayDeadLetters,
  retrySink,
  sinkState,
  sinkStates,
} from '../events/administer-sinks.ts'
import type { Store } from '../storage/store.ts'
import { mayCommand } from './device-commands.ts'
import { Inputs } from './inputs.ts'
import {
  type Page,
  type View,
  ROWS_SHOWN,
  confirmation,
  exactTimeOf,
  formTokenField,
  hrefOf,
  numeric,
  olderLink,
  positionOf,
  rowsOf,
  tableOf,
  timeOf,
} from './page.ts'

interface SinkCommand {
  readonly verb: string
  readonly effect: string
  /** What the user confirms; null: the command only sends what is due. */
  readonly confirmed: string | null
  readonly isOffered: (sink: EventSinkStateWire) => boolean
}

export const SINK_COMMANDS = {
  retry: {
    verb: 'Try now',
    effect: 'Ends the pause after the last attempt.',
    confirmed: null,
    isOffered: ({ failingSince }) => failingSince !== null,
  },
  'replay-dead-letters': {
    verb: 'Send dead letters again',
    effect: 'Sends the rejected events again, with the same ids.',
    confirmed: null,
    isOffered: ({ deadLetters }) => deadLetters > 0,
  },
  discard: {
    verb: 'Discard dead letters',
    effect: 'The sink never receives the rejected events.',
    confirmed: 'Yes, discard them',
    isOffered: ({ deadLetters }) => deadLetters > 0,
  },
  replay: {
    verb: 'Replay',
    effect:
      'Sends all events after a position again, with the same ids: the sequence of an event, or the cursor of a usage export. 0: all events.',
    confirmed: 'Yes, send them again',
    isOffered: ({ settings }) => settings !== null,
  },
  forget: {
    verb: 'Forget',
    effect:
      'Deletes the position of the sink and its dead letters. A sink that the settings have begins with the next event.',
    confirmed: 'Yes, forget it',
    isOffered: () => true,
  },
} as const satisfies Readonly<Record<string, SinkCommand>>

export type SinkCommandName = keyof typeof SINK_COMMANDS

const NO_SINKS = html`<p>
  There are no sinks. The settings of the cloud name them: <code>events.webhooks</code> and
  <code>events.nats_url</code>.
</p>`

export async function sinksPage(view: View): Promise<Page> {
  requireUnlimited(view)
  const sinks = await sinkStates(view.reader, view.sinks)
  const rows = sinks.map((sink) => [
    html`<a href="${hrefOf(view, `/sinks/${sink.name}`)}">${sink.name}</a>`,
    stateOf(sink),
    nextAttemptOf(view, sink),
    timeOf(sink.deliveredAt, view.now),
    grouped(sink.deadLetters),
    sink.problem ?? '',
  ])
  const columns = ['Sink', 'State', 'Next attempt', 'Last progress', numeric('Dead letters'), 'Problem']
  const content = sinks.length === 0 ? NO_SINKS : tableOf('Event sinks', columns, rows)
  return { title: 'Event sinks', content: section('list', 'Receivers of usage and alerts', content) }
}

/** @throws CodedError NOT_FOUND */
export async function sinkPage(view: View): Promise<Page> {
  requireUnlimited(view)
  const name = view.params['sink'] ?? ''
  const sink = await sinkState(view.reader, view.sinks, name)
  const rows = [
    ['State', stateOf(sink)],
    ...(sink.failingSince === null ? [] : ([['Failing', timeOf(sink.failingSince, view.now)]] as const)),
    ...(sink.problem === null ? [] : ([['Problem', sink.problem]] as const)),
    ['Next attempt', nextAttemptOf(view, sink)],
    ['Last progress', timeOf(sink.deliveredAt, view.now)],
    ['Position', sink.position],
    ...(sink.settings === null ? [] : ([['Address', sink.settings.address]] as const)),
    ...(sink.settings === null ? [] : ([['Events', sink.settings.types.join(', ')]] as const)),
  ] as const
  return {
    title: `Event sink ${name}`,
    content: html`${section('state', 'State', rowsOf(rows))}
    ${section('dead-letters', `Dead letters: ${grouped(sink.deadLetters)}`, await deadLettersOf(view, name))}
    ${mayCommand(view) ? section('commands', 'Commands', commandsOf(view, sink)) : ''}`,
  }
}

async function deadLettersOf(view: View, name: string): Promise<Html> {
  const after = positionOf(view.query['after']) ?? 0n
  const found = await view.reader.eventSinks.deadLetters(name, after, ROWS_SHOWN + 1)
  const shown = found.slice(0, ROWS_SHOWN)
  const rows = shown.map(({ at, type, eventId, problem }) => [
    exactTimeOf(at),
    type,
    html`<code>${eventId}</code>`,
    problem,
  ])
  const last = String(shown.at(-1)?.position ?? 0n)
  const on = found.length > ROWS_SHOWN ? hrefOf(view, `/sinks/${name}`, { after: last }) : null
  return html`${tableOf('Events that the sink has rejected, oldest first', ['Rejected', 'Type', 'Id', 'Problem'], rows)}
  ${olderLink(on, 'Newer')}`
}

function commandsOf(view: View, sink: EventSinkStateWire): Html {
  const commands = Object.entries<SinkCommand>(SINK_COMMANDS).filter(([, { isOffered }]) => isOffered(sink))
  const inputs = new Inputs({})
  return html`${commands.map(
    ([name, { verb, effect, confirmed }]) =>
      html`<h3>${verb}</h3>
        <p>${effect}</p>
        <form method="post" action="${hrefOf(view, `/sinks/${sink.name}/${name}`)}">
          ${formTokenField(view)}
          ${name === 'replay' ? inputs.input({ name: 'after', label: 'After the position' }, html`required inputmode="numeric"`) : ''}
          ${confirmed === null ? '' : confirmation(confirmed)}
          <button ${confirmed === null ? '' : html`class="danger"`}>${verb}</button>
        </form>`,
  )}`
}

function stateOf({ settings, failingSince, behind }: EventSinkStateWire): Html {
  if (settings === null) return html`<span class="attention">not in the settings</span>`
  if (failingSince !== null) return html`<span class="refusing">failing</span>`
  return behind ? html`sending` : html`<span class="ok">up to date</span>`
}

function nextAttemptOf(view: View, { failingSince, retryAt }: EventSinkStateWire): Html {
  if (failingSince === null) return html`not needed`
  return retryAt === null || retryAt <= view.now ? html`now` : timeOf(retryAt, view.now)
}

/** @param at POSIX ms. @throws CodedError NOT_FOUND, BAD_REQUEST, CURSOR_UNKNOWN, USAGE_ARCHIVED */
export async function commandSink(
  store: Store,
  { name, sink, after }: { readonly name: SinkCommandName; readonly sink: string; readonly after: string | undefined },
  at: number,
): Promise<void> {
  if (name === 'retry') return retrySink({ store }, sink, at)
  if (name === 'replay-dead-letters') return replayDeadLetters({ store }, sink, at)
  if (name === 'discard') return discardDeadLetters({ store }, sink, at)
  if (name === 'forget') return forgetSink({ store }, sink, at)
  const position = usageCursor.safeParse(after?.trim())
  if (position.success) return replayAfter({ store }, sink, position.data, at)
  throw new CodedError('BAD_REQUEST', 'The position must be a whole number: go back and correct it.')
}

/** Events concern all instances. @throws CodedError INSTANCE_NOT_IN_SCOPE */
function requireUnlimited({ administrator }: View): void {
  if (administrator.scope === null) return
  throw new CodedError('INSTANCE_NOT_IN_SCOPE', 'Only an administrator of all instances may see sinks.')
}
