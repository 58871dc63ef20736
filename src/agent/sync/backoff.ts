/** Full jitter: a fleet that lost the cloud at once does not return at once. The cloud's Retry-After is a minimum. */
export interface BackoffLimits {
  readonly baseMs: number
  readonly capMs: number
}

/** Longest wait by a Retry-After, ms. Responses with it are unsigned: anyone on the network can send one. */
export const RETRY_AFTER_MAX_MS = 5 * 60_000

/** @param fraction uniform in [0, 1) */
export function backoff(
  failures: number,
  retryAfterMs: number,
  fraction: number,
  { baseMs, capMs }: BackoffLimits,
): number {
  const spread = Math.min(capMs, baseMs * 2 ** Math.min(failures - 1, 30))
  return Math.min(retryAfterMs, RETRY_AFTER_MAX_MS) + Math.floor(fraction * spread)
}
