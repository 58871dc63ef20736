/** Durations and sizes: one whole number with a mandatory unit. */
const DURATION_UNITS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 }
const BYTE_UNITS = { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 }

/** Milliseconds of `250ms`, `30s`, `5m`, `24h`, `7d` or `0`. Undefined for anything else. */
export function parseDuration(text: string): number | undefined {
  return parse(text, DURATION_UNITS)
}

/** Formats with the largest unit that gives a whole number: 90_000 is `90s`. */
export function formatDuration(ms: number): string {
  return format(ms, DURATION_UNITS)
}

/** Bytes of `512B`, `64KiB`, `1MiB`, `2GiB` or `0`. Undefined for anything else. */
export function parseBytes(text: string): number | undefined {
  return parse(text, BYTE_UNITS)
}

export function formatBytes(bytes: number): string {
  return format(bytes, BYTE_UNITS)
}

function parse(text: string, units: Readonly<Record<string, number>>): number | undefined {
  const [, digits, unit] = /^(\d{1,15})\s?([A-Za-z]*)$/.exec(text) ?? []
  if (digits === undefined || unit === undefined) return undefined
  if (unit === '') return Number(digits) === 0 ? 0 : undefined
  if (!Object.hasOwn(units, unit)) return undefined
  const amount = Number(digits) * (units[unit] ?? Number.NaN)
  return Number.isSafeInteger(amount) ? amount : undefined
}

function format(amount: number, units: Readonly<Record<string, number>>): string {
  if (amount === 0) return '0'
  const fitting = Object.entries(units).filter(([, size]) => amount % size === 0)
  const [unit, size] = fitting.at(-1) ?? ['', 1]
  return `${amount / size}${unit}`
}
