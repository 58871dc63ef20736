/** Every operation of the edge API: of devices with their own tokens, and of administrators. */
import type { Operation } from '../operation.ts'
import { type AdministerAccounts, accountOperations } from './accounts.ts'
import { type CallerDeps, callerOperations } from './caller.ts'
import { type OwnDevice, ownDeviceOperations } from './device.ts'
import { type AdministerDevices, deviceOperations } from './devices.ts'
import { enrollmentOperations } from './enrollment.ts'
import type { AdministerSinks } from '../../events/administer-sinks.ts'
import { eventOperations } from './events.ts'
import { importOperations } from './imports.ts'
import { type SweepDeps, sweepOperations } from './sweeps.ts'

export type EdgeDeps = Parameters<typeof enrollmentOperations>[0] &
  OwnDevice &
  AdministerDevices &
  AdministerAccounts &
  CallerDeps &
  AdministerSinks & { readonly sweeps: SweepDeps }

export function edgeOperations(deps: EdgeDeps): readonly Operation[] {
  return [
    ...enrollmentOperations(deps),
    ...ownDeviceOperations(deps),
    ...deviceOperations(deps),
    ...callerOperations(deps),
    ...sweepOperations(deps),
    ...accountOperations(deps),
    ...eventOperations(deps),
    ...importOperations(deps),
  ]
}
