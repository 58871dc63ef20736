/** Named deliberate defects: the simulator must find each one. */
import type { FaultKind } from '../draw/faults.ts'
import type { PlanOptions } from '../draw/plan.ts'
import type { DeviceDefects } from './device-defects.ts'
import type { TwinDefects } from './twin-defects.ts'

export interface Defect {
  readonly name: string
  readonly is: string
  /** Plan options, if it shows only under load. */
  readonly load?: Pick<PlanOptions, 'devices' | 'hours' | 'requests'>
  /** Faults that it needs to show. */
  readonly always?: readonly FaultKind[]
  /** Faults that would mask it. */
  readonly without?: readonly FaultKind[]
  readonly device?: () => Partial<DeviceDefects>
  readonly twin?: () => Partial<TwinDefects>
}
