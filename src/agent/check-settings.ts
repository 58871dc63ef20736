/** What settings must be together, beyond the form of each one. */
import { CodedError } from '../protocol/errors.ts'
import type { AgentSettings } from './settings.ts'

/** @throws CodedError CONFIG_INVALID */
export function requireConsistent({ grants, device, proxy }: AgentSettings): void {
  if (grants.starting === 0 && grants.topUpDeadline === 0) {
    throw invalid(
      'grants.starting is 0 and grants.top_up_deadline is 0ms: the device would never receive tokens. Set grants.starting to what it receives in advance, or grants.top_up_deadline to the time for which a request may wait, such as 2s.',
    )
  }
  // An administrator would rely on settings that have no effect.
  if (device.nextKeyFile !== null && device.keyFile === null) {
    throw invalid('device.next_key_file needs device.key_file: without it, the agent generates the next key.')
  }
  if (proxy.credentials !== null && proxy.url === null) {
    throw invalid(
      'proxy.credentials_file needs proxy.url. For a proxy of the environment, write name and password into its address.',
    )
  }
}

function invalid(message: string): CodedError {
  return new CodedError('CONFIG_INVALID', message)
}
