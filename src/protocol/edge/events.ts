/** The administrator's view of events and of their sinks. A position is that of a usage record in exports. */
import { z } from 'zod'
import { usageCursor } from '../service/usage-export.ts'
import { instant } from '../wire.ts'

export const EVENT_TYPES = [
  'line-item.low',
  'line-item.exhausted',
  'device.enrolled',
  'device.key-changed',
  'device.locked',
  'device.unlocked',
  'device.terminated',
  'device.revoked',
  'device.forked',
  'device.settled',
] as const
export type EventType = (typeof EVENT_TYPES)[number]

export const EVENT_GROUPS = ['usage', 'line-item', 'device'] as const
export type EventGroup = (typeof EVENT_GROUPS)[number]

const cloudEvent = z
  .strictObject({
    specversion: z.literal('1.0'),
    /** With `source`, it identifies the event forever. */
    id: z.string(),
    source: z.string(),
    /** `tallygate.` and the type, such as `tallygate.usage` or `tallygate.device.enrolled`. */
    type: z.string(),
    subject: z.string(),
    time: z.string(),
    datacontenttype: z.literal('application/json'),
    /** Events with the same key are sent in order. */
    partitionkey: z.string(),
    /** Position as text of 19 digits. */
    sequence: z.string(),
    data: z
      .record(z.string(), z.unknown().meta({ description: 'JSON.' }))
      .meta({ description: 'Of usage: the fields of the usage export. Amounts of other events are tokens as text.' }),
  })
  .meta({ id: 'CloudEvent', description: 'CloudEvents 1.0 in JSON.' })

/** `GET .../edge/api/v1/events?...`, newest first, without usage. With `id`: that event, which can be usage. */
export const eventList = z
  .strictObject({ events: z.array(cloudEvent), next: z.string().nullable() })
  .meta({ id: 'EventList' })

export const eventSinkState = z
  .strictObject({
    name: z.string(),
    /** Null: the settings of this node do not have it. */
    settings: z
      .strictObject({
        kind: z.enum(['webhook', 'nats']),
        address: z.string(),
        types: z.array(z.enum(EVENT_GROUPS)),
      })
      .nullable(),
    /** Everything up to it is acknowledged, or a dead letter. */
    position: z.string(),
    /** The newest event of the cloud is after `position`, or dead letters wait for their replay. */
    behind: z.boolean(),
    /** When `position` last moved, also past events of types that the sink does not take, or a dead letter was sent again. */
    deliveredAt: instant.nullable(),
    failingSince: instant.nullable(),
    problem: z.string().nullable(),
    /** After a failed attempt: when the next one is due. Null, or in the past: now. */
    retryAt: instant.nullable(),
    deadLetters: z.int().min(0),
  })
  .meta({ id: 'EventSink' })
export type EventSinkStateWire = z.input<typeof eventSinkState>

/** `GET .../edge/api/v1/event-sinks`. */
export const eventSinkList = z.strictObject({ sinks: z.array(eventSinkState) }).meta({ id: 'EventSinkList' })

/** `GET .../edge/api/v1/event-sinks/{sink}/dead-letters?after=&size=`, oldest first; `next` is null on the last page. */
export const deadLetterList = z
  .strictObject({
    deadLetters: z.array(
      z.strictObject({
        position: z.string(),
        eventId: z.string(),
        type: z.string(),
        problem: z.string(),
        at: instant,
      }),
    ),
    next: z.string().nullable(),
  })
  .meta({ id: 'DeadLetterList' })
export type DeadLetterListWire = z.input<typeof deadLetterList>

/** `POST .../edge/api/v1/event-sinks/{sink}/replay`. */
export const replayRequest = z.union([
  z.strictObject({ after: usageCursor }),
  z.strictObject({ deadLetters: z.literal(true) }),
])
