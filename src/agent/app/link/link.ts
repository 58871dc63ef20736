/**
 * The device's side of everything that talks to the cloud. It runs one round at a time, woken by timer, hint, low water
 * or a waiting request, and carries no data from one round to the next but what is durable. It never decides an access
 * request, and the access path never waits for it, except in {@link Link.requestGrant} for as long as it says.
 */
import type { Want } from '../../../core/grant.ts'
import type { HealthCondition } from './health.ts'

/** Why somebody thinks that there is something to do. A reason says "look", never "what". */
export type WakeReason = 'timer' | 'hint' | 'low-water' | 'request' | 'enrolled' | 'operator'

export interface Link {
  /**
   * Verifies the stored policies, puts them in force and begins the rounds. Resolves without waiting for the cloud: a
   * device that cannot reach it starts all the same.
   */
  start(): Promise<void>
  /** Ends the round under way, closes the cloud sessions where it can, and stops. Idempotent. */
  stop(): Promise<void>
  /** Asks for a round. During a round it causes exactly one more, however often it is called. */
  wake(reason: WakeReason): void
  /**
   * Asks the cloud for what a waiting request needs. Resolves when a round that carried the wants has ended, whether it
   * brought anything or not, or after `deadlineMs`, or at once when the cloud is known to be out of reach. Never rejects:
   * the caller decides again by what the ledger then holds.
   */
  requestGrant(wants: readonly Want[], deadlineMs: number): Promise<void>
  status(): LinkStatus
}

export interface LinkStatus {
  readonly deviceId: string | null
  /** 0: not attached. */
  readonly incarnation: number
  readonly fenced: boolean
  /** The last exchange with the cloud got an answer. */
  readonly connected: boolean
  /** Best estimate of the last time at which the cloud answered, POSIX ms; null for never since the start. */
  readonly lastContactAt: number | null
  readonly lastSyncAt: number | null
  /** Entries that the cloud has not acknowledged. */
  readonly backlog: number
  readonly unacknowledgedSeq: number | null
  readonly policies: readonly {
    readonly instanceId: string
    /** Revision in force; 0 for none. */
    readonly applied: number
    /** Newest revision that the cloud has named; 0 when it has not. */
    readonly newest: number
  }[]
  readonly sessions: readonly {
    readonly instanceId: string
    readonly state: 'CLOSED' | 'OPEN' | 'LOCKED'
    readonly sessionId: string | null
  }[]
  readonly push: 'OFF' | 'CONNECTED' | 'DISCONNECTED'
  readonly rounds: { readonly done: number; readonly failed: number; readonly running: boolean }
  readonly hints: { readonly taken: number; readonly ignored: number }
  /** What a technician should know, oldest first. */
  readonly conditions: readonly HealthCondition[]
}
