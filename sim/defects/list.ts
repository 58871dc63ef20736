/** All deliberate defects: each skips or breaks a rule of the protocol. */
import type { PlanOptions } from '../draw/plan.ts'
import type { Defect } from './defects.ts'
import { CELL_DEFECTS } from './of-cells.ts'
import { CLOCK_DEFECTS } from './of-clocks.ts'
import { DECISION_DEFECTS } from './of-decisions.ts'
import { DEVICE_DEFECTS } from './of-device.ts'
import { EXPORT_DEFECTS } from './of-exports.ts'
import { TOKEN_DEFECTS } from './of-tokens.ts'
import { TWIN_DEFECTS } from './of-twin.ts'

export const DEFECTS: readonly Defect[] = [
  ...DEVICE_DEFECTS,
  ...TWIN_DEFECTS,
  ...EXPORT_DEFECTS,
  ...TOKEN_DEFECTS,
  ...CLOCK_DEFECTS,
  ...DECISION_DEFECTS,
  ...CELL_DEFECTS,
]

/** @throws Error for an unknown name; null gives null */
export function defectNamed(name: string | null): Defect | null {
  if (name === null) return null
  const found = DEFECTS.find((defect) => defect.name === name)
  if (found === undefined) throw new Error(`there is no defect ${name}: ${DEFECTS.map((one) => one.name).join(', ')}`)
  return found
}

/** Adds faults that the defect needs and removes those that would mask it. */
export function withNeeds(options: PlanOptions, name: string | null): PlanOptions {
  const { always = [], without = [], load } = defectNamed(name) ?? {}
  return {
    ...options,
    ...load,
    always: [...(options.always ?? []), ...always],
    without: [...(options.without ?? []), ...without],
  }
}
