/** Deliberate defects, each by its name: a simulator that finds none of them would prove nothing. */
import type { FaultKind } from '../draw/faults.ts'
import type { PlanOptions } from '../draw/plan.ts'
import type { DeviceDefects } from './device-defects.ts'
import type { TwinDefects } from './twin-defects.ts'

export interface Defect {
  readonly name: string
  /** What is wrong, in words. */
  readonly is: string
  /** Of the plans, where it shows only under load. */
  readonly load?: Pick<PlanOptions, 'devices' | 'hours' | 'requests'>
  /** Faults without which it cannot show. */
  readonly always?: readonly FaultKind[]
  /** Faults that would excuse it. */
  readonly without?: readonly FaultKind[]
  /** Made anew for each device. */
  readonly device?: () => Partial<DeviceDefects>
  readonly twin?: () => Partial<TwinDefects>
}
