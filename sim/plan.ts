/**
 * What one seed does, as data: the site, and everything that happens to it, each at its instant. A plan is drawn before
 * anything runs, so that leaving events out of it is all that it takes to look for a shorter one. Which kinds of faults a
 * seed has at all, and how many of them, is drawn first: a run with every fault at once hides what two of them would show.
 */
import type { Damage } from './device/disk.ts'
import type { Mishap } from './device/journal-thread.ts'
import type { Weather } from './world/network.ts'

/** POSIX ms at which every run begins. */
export const BEGIN = Date.UTC(2026, 2, 2, 6)

export const MINUTE = 60_000
export const HOUR = 60 * MINUTE

/** After the faults, so long may it take until everything is at rest. */
export const CALM_MS = 45 * MINUTE

export type Frequency = 'NONE' | 'DAILY' | 'WEEKLY' | 'MONTHLY' | 'YEARLY'

/** Whom a line item serves: all requesters, only those with the gold tier, or only those without it. */
export type Audience = 'ALL' | 'GOLD' | 'NOT_GOLD'

export interface LineItemPlan {
  readonly id: string
  /** Index of its instance. */
  readonly instance: number
  readonly state: 'DEPLOYED' | 'INACTIVE' | 'OBSOLETE' | 'DELETED'
  /** Whole tokens. */
  readonly quantity: number
  readonly overdraft: number | 'UNLIMITED'
  readonly frequency: Frequency
  readonly startsAt: number
  readonly endsAt: number
  /** Of its rate tables; null: those without a series. */
  readonly series: string | null
  readonly audience: Audience
  /** Whole tokens that the action for gold requesters may take; null: there is only the default action. */
  readonly goldAllocation: number | null
  /** Whole tokens per requester and day; null: none. */
  readonly limit: number | null
  /** Whole tokens that each device may spend above its grants while it cannot ask; 0: none. */
  readonly overspendCap: number
}

/** What becomes of change notifications. Probabilities are per message, times in ms. */
export interface PushWeather {
  readonly lost: number
  readonly doubled: number
  readonly late: number
  readonly lateMax: number
}

export interface SitePlan {
  readonly devices: number
  /** Each device serves all of them. */
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
  /** Some boards have no battery. */
  readonly noRtc: readonly boolean[]
  readonly driftPpm: readonly number[]
  readonly wallErrorMs: readonly number[]
  /** Devices that answer ahead of their disk, from blocks that are reserved there. */
  readonly reserved: readonly boolean[]
  /** Most whole tokens of a block. */
  readonly reservationMax: number
  /** Silence after which what a device holds is settled. */
  readonly settleAfterMs: number
  readonly settleAs: 'CHARGED' | 'RELEASED'
  /** Of sessions, at the twin and on the devices; null: `session.charge.period` counts. */
  readonly sessionIntervalMs: number | null
  /** How long devices keep delivered usage for a twin that is restored, and how long the twin asks them to. */
  readonly retentionMs: number
  readonly receiptMarginMs: number
  /** Processes of the twin. */
  readonly nodes: number
  /** Null: there is no push. */
  readonly push: PushWeather | null
}

export interface PlannedRequest {
  /** Absent: the first. */
  readonly instance?: number
  readonly item: string
  readonly count: number
  readonly requester: string
  readonly gold: boolean
}

export type Happening =
  | ({ readonly kind: 'request'; readonly device: number; readonly session: number | null } & PlannedRequest)
  | ({ readonly kind: 'cloud-request' } & PlannedRequest)
  | ({ readonly kind: 'cloud-session'; readonly slot: number; readonly close: boolean } & PlannedRequest)
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
      /** Answers up to it, 1 for the next. */
      readonly answers: number
      readonly afterMs: number
      readonly power: boolean
      readonly downMs: number
    }
  | { readonly kind: 'disk-full' | 'slow-disk' | 'suspend'; readonly device: number; readonly forMs: number }
  | { readonly kind: 'weather'; readonly device: number; readonly forMs: number; readonly weather: Weather }
  | {
      readonly kind: 'partition'
      readonly device: number
      readonly forMs: number
      readonly up: boolean
      readonly down: boolean
    }
  | { readonly kind: 'refused-segments' | 'newer-twin'; readonly device: number; readonly forMs: number }
  | { readonly kind: 'damage'; readonly device: number; readonly damage: Damage }
  /** More requests than one delivery holds entries. Those of many requesters are of as many accounts. */
  | ({
      readonly kind: 'crowd'
      readonly device: number
      readonly requests: number
      readonly requesters: number
    } & PlannedRequest)
  | { readonly kind: 'recovery-overridden' }
  | { readonly kind: 'clock-step'; readonly device: number; readonly ms: number }
  | { readonly kind: 'snapshot' | 'restore' | 'clone' | 'wipe' | 'revoke' | 'release'; readonly device: number }
  | { readonly kind: 'rotate-key'; readonly device: number; readonly by: 'TECHNICIAN' | 'ADMINISTRATOR' }
  | { readonly kind: 'twin-down' | 'node-down'; readonly forMs: number }
  /** Its wall clock jumps, and is put right after a while. */
  | { readonly kind: 'twin-clock'; readonly ms: number; readonly forMs: number }
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
  | { readonly kind: 'obsolete'; readonly lineItem: number; readonly deleteInMs: number; readonly mapInMs: number }
  | {
      readonly kind: 'configuration'
      readonly name: 'timezone.tolerant' | 'session.charge.period'
      readonly value: string
    }
  | { readonly kind: 'overspend-cap'; readonly lineItem: number; readonly cap: number }
  | { readonly kind: 'hold'; readonly device: number; readonly order: 'LOCK' | 'UNLOCK' | 'TERMINATE' }
  | { readonly kind: 'twin-backup' }
  | { readonly kind: 'twin-restore'; readonly downMs: number; readonly untold?: boolean }
  | ({
      readonly kind: 'device-session'
      readonly device: number
      readonly slot: number
      readonly order: 'REQUEST' | 'HEARTBEAT' | 'HALT' | 'CLOSE' | 'DISCONNECT'
      /** It ends with the connection of its application. */
      readonly isBound?: boolean
    } & PlannedRequest)

export interface PlannedEvent {
  /** After the begin, ms. */
  readonly at: number
  readonly what: Happening
}

export interface Plan {
  readonly seed: number
  readonly site: SitePlan
  /** In the order of their instants. */
  readonly events: readonly PlannedEvent[]
  /** How long faults last, ms. */
  readonly faultsMs: number
}

export const ITEMS = ['Print', 'Scan', 'Copy'] as const
export const RATES: Readonly<Record<(typeof ITEMS)[number], number>> = { Print: 1, Scan: 0.25, Copy: 2.5 }
