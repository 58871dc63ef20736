/**
 * A session: what is charged for, by whom, until when. It is paid in advance, interval by interval; what was paid and not
 * used is given back to where it came from.
 */
import type { AccountId } from './account.ts'
import type { Micro } from './amount.ts'
import type { RequestedItem, Requester } from './decision.ts'

/**
 * IDLE and ACTIVE are live. LOCKED is transient, while a charge runs; FAILED: a charge met an internal error;
 * DISCONNECTED: the link to an edge was lost; TERMINATED: closed, denied, out of tokens, or not heard of in time.
 */
export type SessionState = 'IDLE' | 'ACTIVE' | 'LOCKED' | 'TERMINATED' | 'FAILED' | 'DISCONNECTED'

export const LIVE_STATES: readonly SessionState[] = ['IDLE', 'ACTIVE']

/** An item of a session, with what its usage records carry on. */
export interface SessionItem extends RequestedItem {
  /** JSON text. */
  readonly metaData: string | null
}

/** The share of a charge that one line item paid, with every account that it was taken from. */
export interface HeldPart {
  readonly lineItemId: string
  readonly accounts: readonly AccountId[]
  readonly charged: Micro
}

export interface HeldItem {
  readonly item: SessionItem
  readonly parts: readonly HeldPart[]
}

/** What paid for the running interval. */
export interface IntervalCharge {
  readonly from: number
  readonly until: number
  readonly items: readonly HeldItem[]
}

export interface Session {
  readonly id: string
  readonly instanceId: string
  readonly state: SessionState
  readonly created: number
  /** Of the last granted request; automatic charges are made in its name. */
  readonly requester: Requester | null
  /** Null unless ACTIVE. */
  readonly charge: IntervalCharge | null
  /** Length of the intervals of the running timeline, ms; 0 unless ACTIVE. */
  readonly intervalMs: number
  /** A heartbeat must arrive before; null while none is needed. */
  readonly heartbeatDue: number | null
  /** 0: never. */
  readonly lastHeartbeat: number
  /** 0: never. */
  readonly lastAccessRequest: number
  /** When it came into its state. */
  readonly since: number
}
