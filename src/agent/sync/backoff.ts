/**
 * How long to wait before the next attempt: full jitter, so that a fleet that lost the cloud in the same moment does not
 * come back in the same moment. What the cloud asks for is a floor, spread upwards.
 */
export interface BackoffLimits {
  /** Longest wait before the second attempt. */
  readonly baseMs: number
  /** Longest wait ever, unless the cloud asks for more. */
  readonly capMs: number
}

/** No cloud is obeyed beyond this. */
export const RETRY_AFTER_MAX_MS = 60 * 60_000

/**
 * @param failures how many attempts have failed in a row, 1 or more
 * @param retryAfterMs what the cloud asked for; 0 when it did not
 * @param fraction uniform in [0, 1)
 */
export function backoff(
  failures: number,
  retryAfterMs: number,
  fraction: number,
  { baseMs, capMs }: BackoffLimits,
): number {
  const spread = Math.min(capMs, baseMs * 2 ** Math.min(failures - 1, 30))
  return Math.min(retryAfterMs, RETRY_AFTER_MAX_MS) + Math.floor(fraction * spread)
}
