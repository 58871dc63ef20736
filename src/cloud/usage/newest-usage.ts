import type { GiveWay } from '../runtime/give-way.ts'
import type { NewestStep, NewestUsage, NumberedUsage } from '../storage/records.ts'
import type { Store } from '../storage/store.ts'

const STEPS_MAX = 50

/** Newest first, until the limit is reached or many steps are taken. Nothing else waits for more than one step. */
export async function newestUsage(
  { store, giveWay }: { readonly store: Pick<Store, 'read'>; readonly giveWay: GiveWay },
  { limit, ...range }: NewestUsage,
): Promise<NewestStep> {
  const records: NumberedUsage[] = []
  let { upTo } = range
  for (let steps = 1; ; steps += 1) {
    const rest = { ...range, upTo, limit: limit - records.length }
    const step = await store.read((reader) => reader.usage.newest(rest))
    records.push(...step.records)
    if (step.rest === null || records.length >= limit || steps === STEPS_MAX) return { records, rest: step.rest }
    upTo = step.rest.upTo
    await giveWay()
  }
}
