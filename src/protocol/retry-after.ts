/**
 * The wait that a Retry-After header asks for, ms: seconds or an HTTP date. Undefined for anything else.
 * @param now POSIX ms, of the clock to which a date refers. NaN: unknown, so a date is ignored
 */
export function retryAfterMs(header: string | undefined, now: number): number | undefined {
  if (header === undefined) return undefined
  if (/^\d{1,9}$/.test(header)) return Number(header) * 1_000
  const wait = Date.parse(header) - now
  return Number.isNaN(wait) ? undefined : Math.max(0, wait)
}
