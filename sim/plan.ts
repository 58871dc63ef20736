/**
 * A seed's plan as data, drawn before the run so that events can be removed to shorten it. The kinds of faults are
 * drawn first: all at once would mask each other.
 */
import type { Damage } from './device/disk.ts'
import type { ConditionName } from './conditions.ts'
import type { Mishap } from './device/journal-runner.ts'
import type { LogCall } from './device/volatile-memory.ts'
import type { Weather } from './world/network.ts'

export const BEGIN = Date.UTC(2026, 2, 2, 6)

export const MINUTE = 60_000
export const HOUR = 60 * MINUTE

export const CALM_MS = 45 * MINUTE

export type Frequency = 'NONE' | 'DAILY' | 'WEEKLY' | 'MONTHLY' | 'YEARLY'

export type Audience = 'ALL' | 'GOLD' | 'NOT_GOLD'

/** Default actions, without a condition, are the last ones. */
export interface ActionPlan {
  readonly effect: 'ALLOW' | 'DENY'
  readonly condition: ConditionName | null
  /** Whole tokens; null: no cap. */
  readonly allocation: number | null
}

export interface LineItemPlan {
  readonly id: string
  readonly instance: number
  readonly state: 'DEPLOYED' | 'INACTIVE' | 'OBSOLETE' | 'DELETED'
  /** Whole tokens. */
  readonly quantity: number
  readonly overdraft: number | 'UNLIMITED'
  readonly frequency: Frequency
  readonly startsAt: number
  readonly endsAt: number
  /** Of its rate tables; null: tables without a series. */
  readonly series: string | null
  readonly audience: Audience
  /** Whole tokens of the gold action; null: only the default action. */
  readonly goldAllocation: number | null
  /** Instead of those that follow from audience and gold allocation. */
  readonly actions?: readonly ActionPlan[]
  /** Whole tokens per requester and day; null: none. */
  readonly limit: number | null
  /** Whole tokens per device without contact; 0: none. */
  readonly overspendCap: number
}

/** Probabilities per change notification; times in ms. */
export interface PushWeather {
  readonly lost: number
  readonly doubled: number
  readonly late: number
  readonly lateMax: number
}

export interface SitePlan {
  readonly devices: number
  readonly instances: number
  readonly lineItems: readonly LineItemPlan[]
  readonly grantLifetimeMs: number
  readonly grantHorizonMs: number
  readonly policyUsableMs: number
  readonly syncEveryMs: number
  readonly startingGrant: number
  readonly batch: number
  readonly backoffMaxMs: number
  readonly returnOnStop: boolean
  readonly undecidedClock: 'allow' | 'refuse'
  readonly noRtc: readonly boolean[]
  readonly driftPpm: readonly number[]
  readonly wallErrorMs: readonly number[]
  readonly reserved: readonly boolean[]
  readonly reservationMax: number
  readonly settleAfterMs: number
  readonly settleAs: 'CHARGED' | 'RELEASED'
  /** For cloud and device sessions; null: `session.charge.period`. */
  readonly sessionIntervalMs: number | null
  /** How long devices keep delivered entries, and how long the cloud requires it. */
  readonly retentionMs: number
  readonly receiptMarginMs: number
  readonly nodes: number
  /** Null: no push. */
  readonly push: PushWeather | null
}

export interface PlannedRequest {
  readonly instance?: number
  readonly item: string
  readonly count: number
  readonly requester: string
  readonly gold: boolean
  /** Items after the first. */
  readonly more?: readonly { readonly item: string; readonly version?: string; readonly count: number }[]
  /** Default: by `gold`. */
  readonly dictionary?: Readonly<Record<string, unknown>>
}

export type Happening =
  | ({ readonly kind: 'request'; readonly device: number; readonly session: number | null } & PlannedRequest)
  /** With repetitions under one idempotency key, whether or not there was a response. */
  | ({ readonly kind: 'cloud-request'; readonly repeatAfterMs?: readonly number[] } & PlannedRequest)
  | ({
      readonly kind: 'cloud-session'
      readonly slot: number
      readonly close: boolean
      /** For a session that is opened first, if none is open. Default: opens one, or requests in the one that is open. */
      readonly order?: 'REQUEST' | 'HALT' | 'LOCK' | 'UNLOCK' | 'TERMINATE'
      /** A denied request ends the session. */
      readonly endsOnDeny?: boolean
      /** Sent every so often afterwards, ms. */
      readonly heartbeats?: { readonly count: number; readonly everyMs: number }
    } & PlannedRequest)
  | {
      readonly kind: 'session-command'
      readonly device: number
      readonly slot: number
      readonly command: 'LOCK' | 'UNLOCK' | 'TERMINATE'
    }
  | { readonly kind: 'kill' | 'power-cut' | 'stop'; readonly device: number; readonly downMs: number }
  | {
      readonly kind: 'trap'
      readonly device: number
      readonly skip: number
      readonly mishap: Mishap
      readonly power: boolean
      readonly downMs: number
    }
  | {
      readonly kind: 'death-after-answer'
      readonly device: number
      /** Answers to skip; 1: the next one. */
      readonly answers: number
      readonly afterMs: number
      readonly power: boolean
      readonly downMs: number
    }
  | { readonly kind: 'disk-full' | 'slow-disk' | 'suspend'; readonly device: number; readonly forMs: number }
  /** The volatile log has no space for these calls. */
  | {
      readonly kind: 'log-full'
      readonly device: number
      readonly calls: readonly LogCall[]
      readonly forMs: number
      /** The journal's disk too. */
      readonly isDiskFull: boolean
      /** The process is killed after so many requests that are not recorded; null: it is not. */
      readonly refusals: number | null
      readonly downMs: number
    }
  | { readonly kind: 'weather'; readonly device: number; readonly forMs: number; readonly weather: Weather }
  | {
      readonly kind: 'partition'
      readonly device: number
      readonly forMs: number
      readonly up: boolean
      readonly down: boolean
    }
  | { readonly kind: 'refused-segments' | 'newer-twin'; readonly device: number; readonly forMs: number }
  /** `isStrict`: for a time, the new engine does not work with the old one on the other side. */
  | { readonly kind: 'engine-upgrade'; readonly device: number; readonly isStrict: boolean; readonly forMs: number }
  | { readonly kind: 'twin-engine-upgrade'; readonly isStrict: boolean; readonly forMs: number }
  | { readonly kind: 'damage'; readonly device: number; readonly damage: Damage }
  /** More requests than one delivery can contain. Many requesters use many accounts. */
  | ({
      readonly kind: 'crowd'
      readonly device: number
      readonly requests: number
      readonly requesters: number
    } & PlannedRequest)
  | { readonly kind: 'recovery-overridden' }
  /** From now on, the cloud settles one silent device a day. An administrator confirms more, if it is paused. */
  | { readonly kind: 'settlement-limit' | 'settlement-confirmed' }
  /** An administrator confirms the cloud's clock, if it is in doubt. */
  | { readonly kind: 'clock-confirmed' }
  | { readonly kind: 'clock-step'; readonly device: number; readonly ms: number }
  | { readonly kind: 'snapshot' | 'restore' | 'clone' | 'wipe' | 'revoke' | 'release'; readonly device: number }
  /** Its service is ended, and it gets another token. `isOld`: one that was made before, which must not help it. */
  | { readonly kind: 're-enroll'; readonly device: number; readonly afterMs: number; readonly isOld: boolean }
  | { readonly kind: 'rotate-key'; readonly device: number; readonly by: 'TECHNICIAN' | 'ADMINISTRATOR' }
  /** Plans with `control-cell-down` have two cells: the site is in the other one. */
  | { readonly kind: 'twin-down' | 'node-down' | 'control-cell-down'; readonly forMs: number }
  /** Requests wait and share transactions. */
  | { readonly kind: 'twin-busy'; readonly waitMs: number; readonly forMs: number }
  /** The clock of the cloud, or of one of several nodes, jumps and is corrected later. */
  | { readonly kind: 'twin-clock'; readonly ms: number; readonly forMs: number; readonly node?: number }
  | {
      readonly kind: 'twin-trap'
      readonly skip: number
      readonly when: 'BEFORE' | 'AFTER'
      readonly power: boolean
      readonly downMs: number
    }
  | { readonly kind: 'quantity'; readonly lineItem: number; readonly quantity: number }
  | { readonly kind: 'allocation'; readonly lineItem: number; readonly allocation: number | null }
  | { readonly kind: 'limit'; readonly lineItem: number; readonly limit: number | null }
  | { readonly kind: 'end'; readonly lineItem: number; readonly inMs: number }
  | { readonly kind: 'state'; readonly lineItem: number; readonly state: 'DEPLOYED' | 'INACTIVE' }
  | {
      readonly kind: 'rates'
      readonly inMs: number
      readonly factor: number
      readonly series?: string | null
      readonly areFormulas?: boolean
    }
  | { readonly kind: 'overdraft'; readonly lineItem: number; readonly overdraft: number | 'UNLIMITED' }
  | { readonly kind: 'frequency'; readonly lineItem: number; readonly frequency: Frequency }
  | { readonly kind: 'series'; readonly lineItem: number; readonly series: string | null }
  | { readonly kind: 'audience'; readonly lineItem: number; readonly audience: Audience }
  | { readonly kind: 'actions'; readonly lineItem: number; readonly actions: readonly ActionPlan[] }
  | { readonly kind: 'obsolete'; readonly lineItem: number; readonly deleteInMs: number; readonly mapInMs: number }
  | {
      readonly kind: 'configuration'
      readonly name: 'timezone.tolerant' | 'session.charge.period'
      readonly value: string
    }
  | { readonly kind: 'cloud-reserve'; readonly lineItem: number; readonly tokens: number }
  | { readonly kind: 'overspend-cap'; readonly lineItem: number; readonly cap: number }
  | { readonly kind: 'hold'; readonly device: number; readonly order: 'LOCK' | 'UNLOCK' | 'TERMINATE' }
  /** `more`: whole tokens that were used at the source since the last one, less refunds there. */
  | {
      readonly kind: 'import'
      readonly lineItem: number
      readonly more: number
      readonly addUsed: boolean
      readonly lowerUsed: boolean
    }
  | { readonly kind: 'twin-backup' }
  /** `pieceMs`: time between two pieces of the work, in which devices deliver. */
  | { readonly kind: 'archive'; readonly pieceMs?: number }
  /** Of all since the last one. */
  | { readonly kind: 'usage-export' }
  /** Null: all instances. */
  | { readonly kind: 'usage-part'; readonly instance: number | null; readonly fromMs: number; readonly toMs: number }
  | { readonly kind: 'usage-report'; readonly instance: number | null; readonly pastDays: number }
  | { readonly kind: 'twin-restore'; readonly downMs: number; readonly untold?: boolean }
  | ({
      readonly kind: 'device-session'
      readonly device: number
      readonly slot: number
      readonly order: 'REQUEST' | 'HEARTBEAT' | 'HALT' | 'CLOSE' | 'DISCONNECT'
      /** Closes with its application's connection. */
      readonly isBound?: boolean
    } & PlannedRequest)

export interface PlannedEvent {
  readonly at: number
  readonly what: Happening
}

export interface Plan {
  readonly seed: number
  readonly site: SitePlan
  readonly segmentEntriesMax: number
  readonly events: readonly PlannedEvent[]
  readonly faultsMs: number
}

export const ITEMS = ['Print', 'Scan', 'Copy'] as const
export const RATES: Readonly<Record<(typeof ITEMS)[number], number>> = { Print: 1, Scan: 0.25, Copy: 2.5 }
