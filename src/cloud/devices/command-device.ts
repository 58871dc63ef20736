import { actingAs } from '../storage/audit.ts'
import type { Actor } from '../storage/audit-records.ts'
import type { Store } from '../storage/store.ts'
import { type DeviceCommands, releaseDevice, revokeDevice, rotateDeviceKey } from './devices.ts'
import { type SuspendDevice, suspendDevice } from './suspend-device.ts'

export type DeviceCommandDeps = { readonly store: Store } & DeviceCommands &
  SuspendDevice & {
    /** Called after a revocation to close the device's connections. */
    readonly onRevoked: (deviceId: string) => void
  }

type Run = (deps: DeviceCommandDeps, deviceId: string) => Promise<void>

const RUN = {
  lock: (deps, deviceId) => suspendDevice(deps, deviceId, 'LOCK'),
  unlock: (deps, deviceId) => suspendDevice(deps, deviceId, 'UNLOCK'),
  terminate: (deps, deviceId) => suspendDevice(deps, deviceId, 'TERMINATE'),
  revoke: async (deps, deviceId) => {
    await revokeDevice(deps, deviceId)
    deps.onRevoked(deviceId)
  },
  'rotate-key': rotateDeviceKey,
  release: releaseDevice,
} as const satisfies Readonly<Record<string, Run>>

export type DeviceCommandName = keyof typeof RUN

/** @throws CodedError NOT_FOUND, CONFLICT if the device cannot do this in its state */
export async function commandDevice(deps: DeviceCommandDeps, name: DeviceCommandName, deviceId: string): Promise<void> {
  await RUN[name](deps, deviceId)
}

/** The changes are the caller's in the audit. */
export function actingOn<Deps extends DeviceCommandDeps>(deps: Deps, actor: Actor): Deps {
  const store = actingAs(deps.store, actor)
  return { ...deps, store, sessions: { ...deps.sessions, store } }
}
