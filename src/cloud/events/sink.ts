import type { EventGroup } from '../../protocol/edge/events.ts'
import type { OutgoingEvent } from './outgoing-event.ts'

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

/** The response of the receiver names the wait. */
export class ReceiverBusy extends Error {
  readonly waitMs: number

  constructor(problem: string, waitMs: number) {
    super(problem)
    this.waitMs = waitMs
  }
}
