/** The tenant's configuration. Source: interface, Configuration. */
import { CONFIGURATION, type ConfigurationName, chargePeriodMs } from '../../protocol/service/configuration.ts'
import type { ConfigurationValue } from '../storage/records.ts'
import type { Reader } from '../storage/store.ts'

export interface ConfigurationState {
  readonly name: ConfigurationName
  readonly value: string
  readonly changed: Pick<ConfigurationValue, 'modified' | 'updatedBy'> | null
}

export async function showConfiguration(reader: Reader): Promise<readonly ConfigurationState[]> {
  const stored = new Map((await reader.configuration.list()).map((value) => [value.name, value]))
  return CONFIGURATION.map(({ name, default: initial }): ConfigurationState => {
    const value = stored.get(name)
    return { name, value: value?.value ?? initial, changed: value ?? null }
  })
}

export async function chargeIntervalMs(reader: Reader): Promise<number> {
  const state = (await showConfiguration(reader)).find(({ name }) => name === 'session.charge.period')
  const interval = state === undefined ? undefined : chargePeriodMs(state.value)
  if (interval === undefined) throw new Error('invariant: session.charge.period has a valid value')
  return interval
}
