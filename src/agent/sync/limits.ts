/** A round that needs more plans leaves the rest to the next round. */
export const PLANS_PER_ROUND_MAX = 64

/** Timer rounds start early by up to this fraction of the interval: devices that started together drift apart. */
export const EARLY_PART = 1 / 4

/** Shortest time between rounds, ms, except for waiting requests and change notifications. */
export const ROUND_GAP_MS = 1_000

/** Shortest wait after a failed round while requests lack tokens, ms. The longest one is twice as long, to spread devices. */
export const HASTENED_WAIT_MS = 5_000

export const NOTIFICATION_GAP_MS = 50

/** Number of rounds at that rate; then one per {@link ROUND_GAP_MS}. */
export const NOTIFICATION_BURST = 10

export const REQUEST_GAP_MS = 50

export const REQUEST_BURST = 10

export const SYNC_EVERY_MIN_MS = 1_000

/** Gives up a segment that the cloud could not read this often, but not before {@link REFUSED_FOR_MIN_MS}. */
export const REFUSALS_MAX = 10

/** In a shorter time, ms, the cloud may just run older software than the device. */
export const REFUSED_FOR_MIN_MS = 60 * 60_000

/** Shortest time between two changes of the broker's address that the cloud names in its answers, ms. */
export const BROKER_CHANGE_GAP_MS = 10 * 60_000
