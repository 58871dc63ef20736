/** Every limit of the link, with its unit, and what holds where the settings say nothing else. */

export interface LinkOptions {
  /** Longest time between two segments, ms; the cloud may ask for less. */
  readonly syncEveryMs: number
  /** A session without a sign of life for so long gets a heartbeat, ms. */
  readonly heartbeatEveryMs: number
  /** The cloud is asked for the state of a session at least so often, ms. */
  readonly sessionCheckEveryMs: number
  /** So many entries are sent before the time is up. */
  readonly batchEntries: number
  /** Longest wait before a failed round is tried again for the first time, ms; it doubles from there. */
  readonly backoffBaseMs: number
  readonly backoffCapMs: number
  /** Give all room back to the pool at a clean stop. */
  readonly returnUnusedOnStop: boolean
  /** How long a clean stop may take to say goodbye to the cloud, ms. */
  readonly stopTimeoutMs: number
  /** Name and version of the software, for the administrator; at most 64 characters. */
  readonly software: string
}

export const LINK_DEFAULTS: Omit<LinkOptions, 'software'> = {
  syncEveryMs: 5 * 60_000,
  heartbeatEveryMs: 15 * 60_000,
  sessionCheckEveryMs: 60 * 60_000,
  batchEntries: 1_000,
  backoffBaseMs: 1_000,
  backoffCapMs: 5 * 60_000,
  returnUnusedOnStop: false,
  stopTimeoutMs: 2_000,
}

/** Plans of one round; a round that needs more leaves the rest to the next one. */
export const PLANS_PER_ROUND_MAX = 64

/** Requests that wait for a grant at the same time; more do not wait. */
export const WAITING_REQUESTS_MAX = 10_000

/** Rounds by the timer come up to this part of their interval early, so that devices that began together drift apart. */
export const EARLY_PART = 1 / 4

/** Shortest time between two rounds that somebody other than a waiting request or a change notification has asked for, ms. */
export const ROUND_GAP_MS = 1_000

/** Shortest time between two rounds for change notifications, ms. */
export const NOTIFICATION_GAP_MS = 50

/** Rounds for change notifications that may come that close together; beyond them there is one in each {@link ROUND_GAP_MS}. */
export const NOTIFICATION_BURST = 10

/** Shortest time between two rounds for waiting requests, ms. */
export const REQUEST_GAP_MS = 50

/** Rounds for waiting requests that may come that close together; beyond them there is one in each {@link ROUND_GAP_MS}. */
export const REQUEST_BURST = 10

/** The cloud cannot ask for more than one segment in this time, ms. */
export const SYNC_EVERY_MIN_MS = 1_000

/** A segment that the cloud could not read so often is given up, once it has been refused for {@link REFUSED_FOR_MIN_MS}. */
export const REFUSALS_MAX = 10

/** Shorter than this, ms, and the cloud may only have older software than the device for a while. */
export const REFUSED_FOR_MIN_MS = 60 * 60_000
