/** Paths of the device's keys: the state directory, or the paths that the operator provides. */
import { join } from 'node:path'
import type { AgentSettings } from '../../settings.ts'
import type { KeyFilesOptions } from './key-file.ts'

/** The key that the agent generates if none is provided. */
export function ownKeyFile({ state }: Pick<AgentSettings, 'state'>): string {
  return join(state.directory, 'device.key')
}

export function keyFilesOf({ state, device }: Pick<AgentSettings, 'state' | 'device'>): KeyFilesOptions {
  if (device.keyFile !== null) return { path: device.keyFile, nextPath: device.nextKeyFile, create: false }
  const path = ownKeyFile({ state })
  return { path, nextPath: `${path}.next`, create: true }
}
