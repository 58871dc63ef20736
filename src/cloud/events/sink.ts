import type { EventGroup } from '../../protocol/edge/events.ts'
import type { OutgoingEvent } from './outgoing-event.ts'

export interface Sink {
  readonly name: string
  readonly kind: 'webhook' | 'nats'
  /** For administrators: without secrets. */
  readonly address: string
  readonly groups: readonly EventGroup[]
  /** Events per call of `send`. */
  readonly batchMax: number
  /**
   * Resolves when the receiver has acknowledged all of them.
   * @throws EventsRejected if it will never take one of them; other errors are outages: the call is repeated
   */
  send(events: readonly OutgoingEvent[], signal: AbortSignal): Promise<void>
  close(): Promise<void>
}

/** The message says why, for administrators. */
export class EventsRejected extends Error {}
