import type { EventGroup } from '../../protocol/edge/events.ts'
import type { OutgoingEvent } from './outgoing-event.ts'

/** Longest time for one request to a receiver. */
export const SEND_TIMEOUT_MS = 10_000

/** Longest time for a batch: the lease of the sink lasts so long after its start. */
export const BATCH_TIMEOUT_MS = 2 * SEND_TIMEOUT_MS

export interface Sink {
  readonly name: string
  readonly kind: 'webhook' | 'nats'
  /** For administrators: without secrets. */
  readonly address: string
  readonly groups: readonly EventGroup[]
  readonly batchMax: number
  /** @throws EventsRejected if the receiver will never take one of them; after other errors, the call is repeated */
  send(events: readonly OutgoingEvent[], signal: AbortSignal): Promise<void>
  close(): Promise<void>
}

export class EventsRejected extends Error {}

/** The receiver did not take the events, and may take them later. */
export class SinkUnavailable extends Error {
  /** Shortest pause, from `Retry-After`. 0: the receiver does not name one. */
  readonly waitMs: number

  constructor(problem: string, waitMs: number) {
    super(problem)
    this.waitMs = waitMs
  }
}
