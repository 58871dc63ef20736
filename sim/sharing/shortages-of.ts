import type { ShortTimes, Shortage, Shortages } from '../../src/cloud/storage/device-records.ts'

/** What the store reads of the shortages of one account. */
export function shortagesOf(all: readonly Shortage[], times: ShortTimes, who: string): Shortages {
  const noted = all.filter(({ at }) => at > times.since && at <= times.until)
  const others = noted.filter((shortage) => shortage.who !== who && shortage.recalledAt !== null)
  const short = others.filter(({ keep, at }) => keep !== null && at > times.shortSince)
  const recalled = others.map(({ recalledAt }) => recalledAt ?? 0)
  return {
    own: noted.find((shortage) => shortage.who === who),
    othersLacking: short.reduce((sum, { lacking }) => sum + lacking, 0n),
    othersRecalledAt: recalled.length === 0 ? null : Math.max(...recalled),
  }
}
