export interface Latency {
  readonly p50: number
  readonly p99: number
  readonly max: number
}

/** Quantile of an ascending list (nearest rank); NaN if empty. */
export function quantile(ascending: ArrayLike<number>, share: number): number {
  const rank = Math.ceil(share * ascending.length)
  return ascending[Math.max(0, rank - 1)] ?? NaN
}

export function median(values: readonly number[]): number {
  return quantile(Float64Array.from(values).sort(), 0.5)
}

export function summarize(latencies: readonly number[]): Latency {
  const ascending = Float64Array.from(latencies).sort()
  return { p50: quantile(ascending, 0.5), p99: quantile(ascending, 0.99), max: quantile(ascending, 1) }
}
