import type { GiveWay } from '../runtime/give-way.ts'
import type { NewestStep, NewestUsage, NumberedUsage } from '../storage/records.ts'

const STEPS_MAX = 50

interface NewestUsageDeps {
  readonly read: (range: NewestUsage) => Promise<NewestStep>
  /** Called between two steps. */
  readonly giveWay: GiveWay
}

/** Newest first, until the limit of records or of steps is reached. */
export async function newestUsage(
  { read, giveWay }: NewestUsageDeps,
  { limit, ...range }: NewestUsage,
  stepsMax = STEPS_MAX,
): Promise<NewestStep> {
  const records: NumberedUsage[] = []
  let { upTo } = range
  for (let steps = 1; ; steps += 1) {
    const step = await read({ ...range, upTo, limit: limit - records.length })
    records.push(...step.records)
    if (step.rest === null || records.length >= limit || steps === stepsMax) return { records, rest: step.rest }
    upTo = step.rest.upTo
    await giveWay()
  }
}
