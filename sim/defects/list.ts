/** All deliberate defects. */
import type { Defect } from './defects.ts'

export const DEFECTS: readonly Defect[] = []

/** @throws Error for a name that there is not; null gives null */
export function defectNamed(name: string | null): Defect | null {
  if (name === null) return null
  const found = DEFECTS.find((defect) => defect.name === name)
  if (found === undefined) throw new Error(`there is no defect ${name}: ${DEFECTS.map((one) => one.name).join(', ')}`)
  return found
}
