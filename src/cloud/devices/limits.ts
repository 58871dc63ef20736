export const EDGE_BODY_BYTES_MAX = 256 * 1024

/** How far the clocks of those who make tokens may differ. */
export const TOKEN_SKEW_S = 60

export const DEVICE_TOKEN_LIFETIME_S_MAX = 24 * 60 * 60

export const ENROLLMENT_TOKEN_LIFETIME_MS = 24 * 60 * 60_000

/** Keys that a device may register within {@link KEYS_WINDOW_MS}; each is kept forever. */
export const KEYS_PER_HOUR_MAX = 100
export const KEYS_WINDOW_MS = 60 * 60_000

export const DEVICES_PAGE = 100
export const DEVICES_PAGE_MAX = 1_000

/** Per epoch. The first evidence is kept: it shows how the contradiction began, and sending more cannot displace it. */
export const EVIDENCE_SEGMENTS_MAX = 64
export const EVIDENCE_BYTES_MAX = 32 * 1024 * 1024

/** Of all epochs of a device. */
export const EVIDENCE_OF_DEVICE_SEGMENTS_MAX = 512
export const EVIDENCE_OF_DEVICE_BYTES_MAX = 128 * 1024 * 1024

/** How far above the last known epoch a restored cloud accepts one. */
export const EPOCHS_FORGOTTEN_MAX = 10_000_000

/** Numbers that one attach skips at most. While the time of a restore is not known, each attach skips as many. */
export const EPOCHS_SKIPPED_MAX = 500_000

export const RECALLS_NOTIFIED_MAX = 32

export const SERVABLE_NOTIFIED_MAX = 32

export const RENEWALS_WATCHED_MAX = 1_000

export const SHORTAGES_FORGOTTEN_MAX = 1_000

export const LIMITED_AGAIN_MAX = 1_000

export const RECOVERY_SHOWN_MAX = 100

export const NOTIFICATIONS_PER_ROUND = 100

export const INSTANCES_PER_ROUND = 500

/** How often a node looks for notifications, and renews the claim of those that it is publishing. */
export const NOTIFICATION_LOOK_MS = 300

/** How long a node may publish what it has claimed without a renewal. Then another node continues. */
export const NOTIFICATION_CLAIM_MS = 600

/** Upper bound of rows of usage written after the backup from which a cloud was restored. */
export const USAGE_FORGOTTEN_ROWS_MAX = 1_000_000_000n

/** A restored cloud skips so many rows for each ms since 1970: two restores never use the same positions. */
export const USAGE_ROWS_PER_MS = 16n
