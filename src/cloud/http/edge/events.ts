/** Events, and the sinks that receive them. */
import { z } from 'zod'
import {
  EVENT_TYPES,
  deadLetterList,
  eventList,
  eventSinkList,
  eventSinkState,
  replayRequest,
} from '../../../protocol/edge/events.ts'
import { usageCursor } from '../../../protocol/service/usage-export.ts'
import { plainText, uuidInLowerCase } from '../../../protocol/wire.ts'
import { DEVICES_PAGE, DEVICES_PAGE_MAX } from '../../devices/limits.ts'
import {
  type AdministerSinks,
  discardDeadLetters,
  findEvent,
  forgetSink,
  listDeadLetters,
  listEvents,
  replayAfter,
  replayDeadLetters,
  retrySink,
  showSinks,
  sinkState,
} from '../../events/administer-sinks.ts'
import { actingAs } from '../../storage/audit.ts'
import { type Operation, ADMINISTRATORS, edgeOperation, instanceId } from '../operation.ts'
import { wholeNumber } from './devices.ts'

const size = wholeNumber(DEVICES_PAGE_MAX).optional()

const eventsQuery = z
  .strictObject({
    id: plainText(1_000).min(1).optional(),
    instanceId: instanceId.optional(),
    deviceId: uuidInLowerCase.optional(),
    type: z.enum(EVENT_TYPES).optional(),
    before: usageCursor.optional(),
    size,
  })
  // Else an administrator of one instance could read the events of others.
  .refine((query) => query.id === undefined || Object.keys(query).length === 1, {
    path: ['id'],
    message: 'must be the only parameter',
  })

const deadLettersQuery = z.strictObject({ after: usageCursor.optional(), size })

const inSink = z.object({ sink: z.string().regex(/^[a-z0-9][a-z0-9-]{0,62}$/) })

const look = { method: 'GET', principals: ADMINISTRATORS, tag: 'Administration' } as const
const change = { principals: ADMINISTRATORS, role: 'operator', tag: 'Administration', params: inSink } as const

export function eventOperations(deps: AdministerSinks): readonly Operation[] {
  const stateOf = (name: string) => deps.store.read((reader) => sinkState(reader, deps.sinks, name))
  return [
    ...showOperations(deps),
    edgeOperation({
      ...change,
      method: 'POST',
      path: '/event-sinks/:sink/replay',
      body: replayRequest,
      id: 'replayEvents',
      summary: 'Send events to a sink again',
      description:
        'With `after`: all events after this position, which is the cursor of a usage export or the `sequence` of an event. With `deadLetters`: the events that the sink has rejected. Ids stay the same.',
      answers: { 200: { description: 'The sink.', body: eventSinkState } },
      errors: ['NOT_FOUND', 'CURSOR_UNKNOWN', 'USAGE_ARCHIVED'],
      handle: async ({ params: { sink }, body, principal, now }) => {
        const store = actingAs(deps.store, principal)
        if ('after' in body) await replayAfter({ store }, sink, body.after, now)
        else await replayDeadLetters({ store }, sink, now)
        return { status: 200, body: await stateOf(sink) }
      },
    }),
    edgeOperation({
      ...change,
      method: 'POST',
      path: '/event-sinks/:sink/retry',
      id: 'retryEventSink',
      summary: 'Try a failing sink now',
      description: 'Ends the pause after a failed attempt, on whichever node it was made.',
      answers: { 200: { description: 'The sink.', body: eventSinkState } },
      errors: ['NOT_FOUND'],
      handle: async ({ params: { sink }, principal, now }) => {
        await retrySink({ store: actingAs(deps.store, principal) }, sink, now)
        return { status: 200, body: await stateOf(sink) }
      },
    }),
    edgeOperation({
      ...change,
      method: 'DELETE',
      path: '/event-sinks/:sink/dead-letters',
      id: 'discardDeadLetters',
      summary: 'Discard the events that a sink has rejected',
      answers: { 200: { description: 'The sink.', body: eventSinkState } },
      errors: ['NOT_FOUND'],
      handle: async ({ params: { sink }, principal, now }) => {
        await discardDeadLetters({ store: actingAs(deps.store, principal) }, sink, now)
        return { status: 200, body: await stateOf(sink) }
      },
    }),
    edgeOperation({
      ...change,
      method: 'DELETE',
      path: '/event-sinks/:sink',
      id: 'forgetEventSink',
      summary: 'Forget how far a sink has got, and its dead letters',
      description: 'A sink that the settings still have begins with the next event.',
      answers: { 204: { description: 'The sink is forgotten.' } },
      errors: ['NOT_FOUND'],
      handle: async ({ params: { sink }, principal, now }) => {
        await forgetSink({ store: actingAs(deps.store, principal) }, sink, now)
        return { status: 204 }
      },
    }),
  ]
}

function showOperations(deps: AdministerSinks): readonly Operation[] {
  return [
    edgeOperation({
      ...look,
      path: '/events',
      query: eventsQuery,
      id: 'listEvents',
      summary: 'List events of line items and devices, newest first',
      description:
        'Usage is not listed: the export has it. With `id`: only the event with this id, which can be usage. `before` is the `next` of the page before.',
      answers: { 200: { description: 'One page.', body: eventList } },
      errors: ['NOT_FOUND'],
      handle: async ({ query: { id, size: limit = DEVICES_PAGE, ...filter } }) => {
        const { events, next } =
          id === undefined
            ? await listEvents(deps, filter, Math.max(1, limit))
            : { events: [await findEvent(deps, id)], next: null }
        // Numbers of usage stay exact.
        const text = `{"events":[${events.map(({ json }) => json).join(',')}],"next":${next === null ? 'null' : `"${next}"`}}`
        return { status: 200, text }
      },
    }),
    edgeOperation({
      ...look,
      path: '/event-sinks',
      id: 'listEventSinks',
      summary: 'List the sinks of events, and how far each has got',
      answers: { 200: { description: 'Also sinks that the settings do not have any more.', body: eventSinkList } },
      handle: async () => ({ status: 200, body: { sinks: await showSinks(deps) } }),
    }),
    edgeOperation({
      ...look,
      path: '/event-sinks/:sink/dead-letters',
      params: inSink,
      query: deadLettersQuery,
      id: 'listDeadLetters',
      summary: 'List the events that a sink has rejected, oldest first',
      answers: { 200: { description: 'One page.', body: deadLetterList } },
      errors: ['NOT_FOUND'],
      handle: async ({ params: { sink }, query: { after = 0n, size: limit = DEVICES_PAGE } }) => ({
        status: 200,
        body: await listDeadLetters(deps, sink, after, Math.max(1, limit)),
      }),
    }),
  ]
}
