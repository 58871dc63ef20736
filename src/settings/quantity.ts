/** Amounts as one whole number with a mandatory unit, or `0`. */
export interface Quantity {
  /** Undefined for anything else. */
  readonly parse: (text: string) => number | undefined
  /** With the largest unit that gives a whole number: 90_000 ms are `90s`. */
  readonly format: (amount: number) => string
}

export const DURATION = quantity({ ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 })
export const BYTES = quantity({ B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 })

function quantity(units: Readonly<Record<string, number>>): Quantity {
  return {
    parse(text) {
      const [, digits, unit] = /^(\d{1,15})\s?([A-Za-z]*)$/.exec(text) ?? []
      if (digits === undefined || unit === undefined) return undefined
      if (unit === '') return Number(digits) === 0 ? 0 : undefined
      if (!Object.hasOwn(units, unit)) return undefined
      const amount = Number(digits) * (units[unit] ?? Number.NaN)
      return Number.isSafeInteger(amount) ? amount : undefined
    },
    format(amount) {
      if (amount === 0) return '0'
      const fitting = Object.entries(units).filter(([, size]) => amount % size === 0)
      const [unit, size] = fitting.at(-1) ?? ['', 1]
      return `${amount / size}${unit}`
    },
  }
}
