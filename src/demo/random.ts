/** Seeded random numbers, so that a seed reproduces a run. Not for secrets. */
export interface Random {
  /** Uniform in [0, 1). */
  fraction(): number
  /** Uniform integer from `min` to `max`, inclusive. */
  between(min: number, max: number): number
  pick<T>(from: readonly T[]): T
  weighted<T>(from: readonly (readonly [weight: number, value: T])[]): T
}

/** Mulberry32. */
export function seeded(seed: number): Random {
  let state = seed >>> 0
  const fraction = (): number => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
  const weighted = <T>(from: readonly (readonly [number, T])[]): T => {
    let left = fraction() * from.reduce((sum, [weight]) => sum + weight, 0)
    for (const [weight, value] of from) {
      left -= weight
      if (left < 0) return value
    }
    throw new RangeError('the list to choose from is empty')
  }
  return {
    fraction,
    between: (min, max) => min + Math.floor(fraction() * (max - min + 1)),
    pick: (from) => weighted(from.map((value) => [1, value] as const)),
    weighted,
  }
}
