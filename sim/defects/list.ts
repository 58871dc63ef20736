/**
 * All deliberate defects, each a rule of the protocol that is left out or broken at a seam. The sound parts are the
 * product's own; here stands only what is wrong.
 */
import type { PlanOptions } from '../draw/plan.ts'
import type { Defect } from './defects.ts'
import { DEVICE_DEFECTS } from './of-device.ts'
import { TOKEN_DEFECTS } from './of-tokens.ts'
import { TWIN_DEFECTS } from './of-twin.ts'

export const DEFECTS: readonly Defect[] = [...DEVICE_DEFECTS, ...TWIN_DEFECTS, ...TOKEN_DEFECTS]

/** @throws Error for a name that there is not; null gives null */
export function defectNamed(name: string | null): Defect | null {
  if (name === null) return null
  const found = DEFECTS.find((defect) => defect.name === name)
  if (found === undefined) throw new Error(`there is no defect ${name}: ${DEFECTS.map((one) => one.name).join(', ')}`)
  return found
}

/** With the faults that a defect needs to show, and without those that would excuse it. */
export function withNeeds(options: PlanOptions, name: string | null): PlanOptions {
  const { always = [], without = [], load } = defectNamed(name) ?? {}
  return {
    ...options,
    ...load,
    always: [...(options.always ?? []), ...always],
    without: [...(options.without ?? []), ...without],
  }
}
