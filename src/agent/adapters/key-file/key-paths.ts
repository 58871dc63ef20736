/** Where the keys of a device are, by its settings: in its state directory, or wherever its operator provides them. */
import { join } from 'node:path'
import type { AgentSettings } from '../../settings.ts'
import type { KeyFilesOptions } from './key-file.ts'

/** Made by the agent itself, unless a key is provided. */
export function ownKeyFile({ state }: Pick<AgentSettings, 'state'>): string {
  return join(state.directory, 'device.key')
}

export function keyFilesOf({ state, device }: Pick<AgentSettings, 'state' | 'device'>): KeyFilesOptions {
  if (device.keyFile !== null) return { path: device.keyFile, nextPath: device.nextKeyFile, create: false }
  const path = ownKeyFile({ state })
  return { path, nextPath: `${path}.next`, create: true }
}
