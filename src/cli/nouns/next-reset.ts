/** The end of the current period in UTC, POSIX ms; weeks begin on Monday. Undefined for an unknown frequency. */
export function nextReset(frequency: unknown, now: number): number | undefined {
  const date = new Date(now)
  const [year, month, day] = [date.getUTCFullYear(), date.getUTCMonth(), date.getUTCDate()]
  switch (frequency) {
    case 'DAILY':
      return Date.UTC(year, month, day + 1)
    case 'WEEKLY':
      return Date.UTC(year, month, day + 7 - ((date.getUTCDay() + 6) % 7))
    case 'MONTHLY':
      return Date.UTC(year, month + 1, 1)
    case 'YEARLY':
      return Date.UTC(year + 1, 0, 1)
    default:
      return undefined
  }
}
