/**
 * Shortens a failing plan: drops events after the failure, then groups, then single events. Each attempt is a complete
 * run, so the result fails by itself.
 */
import type { Plan, PlannedEvent } from './plan.ts'
import type { RunResult } from './run.ts'

/**
 * @param fails runs a plan; undefined if it does not fail in the same way
 * @param attemptsMax maximum runs
 */
export async function shrink(
  plan: Plan,
  result: RunResult,
  fails: (plan: Plan) => Promise<RunResult | undefined>,
  attemptsMax: number,
): Promise<{ readonly plan: Plan; readonly result: RunResult }> {
  let best = { plan, result }
  let attempts = 0
  const attempt = async (events: readonly PlannedEvent[], faultsMs = best.plan.faultsMs): Promise<boolean> => {
    if (attempts >= attemptsMax) return false
    attempts += 1
    const candidate = { ...best.plan, events, faultsMs }
    const failed = await fails(candidate)
    if (failed === undefined) return false
    best = { plan: candidate, result: failed }
    return true
  }

  const { at = 0 } = result.violation ?? {}
  const before = plan.events.filter((event) => event.at <= at)
  if (before.length < plan.events.length) await attempt(before, Math.min(plan.faultsMs, at + 1))
  for (let size = Math.ceil(best.plan.events.length / 2); size >= 1; size = size === 1 ? 0 : Math.ceil(size / 2)) {
    for (let from = 0; from < best.plan.events.length && attempts < attemptsMax;) {
      const { events } = best.plan
      const without = [...events.slice(0, from), ...events.slice(from + size)]
      if (!(await attempt(without))) from += size
    }
  }
  return best
}
