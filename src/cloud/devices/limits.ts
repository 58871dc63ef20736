/** Limits of the edge part, each with its unit. */

/** Bodies of the other calls, bytes. */
export const EDGE_BODY_BYTES_MAX = 256 * 1024

/** How far the clock of whoever made a token may be off, seconds. */
export const TOKEN_SKEW_S = 60

/** Longest life of a token of a device, seconds. */
export const DEVICE_TOKEN_LIFETIME_S_MAX = 24 * 60 * 60

export const ENROLLMENT_TOKEN_LIFETIME_MS = 24 * 60 * 60_000

/** Keys that one device may have registered within {@link KEYS_WINDOW_MS}: each is kept for ever. */
export const KEYS_PER_HOUR_MAX = 100
export const KEYS_WINDOW_MS = 60 * 60_000

/** Devices on one page of the list. */
export const DEVICES_PAGE = 100
export const DEVICES_PAGE_MAX = 1_000

/**
 * Evidence of one epoch. The first is kept: it shows how the contradiction began, and a device cannot push it out by
 * sending more.
 */
export const EVIDENCE_SEGMENTS_MAX = 256
export const EVIDENCE_BYTES_MAX = 64 * 1024 * 1024

/** How far beyond the last known one an epoch may be that a restored twin learns of. */
export const EPOCHS_FORGOTTEN_MAX = 1_000_000

/** Devices that are notified at a time that tokens are recalled from them, those that hold most first. */
export const RECALLS_NOTIFIED_MAX = 32

/** Devices that are notified at a time that a pool has tokens for them again. */
export const SERVABLE_NOTIFIED_MAX = 32

/** How far beyond the last one listed the number of a period may be that a restored cloud learns of. */
export const PERIODS_FORGOTTEN_MAX = 10_000

/** Sessions of the cloud whose next charge is looked at ahead of time, those that are due first. */
export const RENEWALS_WATCHED_MAX = 1_000

/** Old shortages that are removed at a time. */
export const SHORTAGES_FORGOTTEN_MAX = 1_000

/** Accounts that have a limit again and are told to a device with one answer, at most. */
export const LIMITED_AGAIN_MAX = 1_000

/** Epochs, and accounts, that are named when an administrator asks how far the recovery is. */
export const RECOVERY_SHOWN_MAX = 100

/** Change notifications that one round of publishing takes from the outbox. */
export const NOTIFICATIONS_PER_ROUND = 100

/** Instances that are announced to a broker at a time. */
export const INSTANCES_PER_ROUND = 500

/** How long a node keeps change notifications to itself while it publishes them, ms. */
export const NOTIFICATION_CLAIM_MS = 30_000

/** Usage records that a twin can have written after the backup from which it was restored, at most. */
export const USAGE_FORGOTTEN_MAX = 1_000_000_000n

/** Orders that wait for sessions that one device has not told of. */
export const SESSION_COMMANDS_MAX = 1_000
