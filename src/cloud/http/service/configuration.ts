/** Configuration operations. Source: interface, Configuration. */
import { actingAs, identityOf } from '../../storage/audit.ts'
import { CodedError } from '../../../protocol/errors.ts'
import {
  CONFIGURATION,
  type ConfigurationValueWire,
  configurationBody,
  configurationProblem,
  configurationValues,
} from '../../../protocol/service/configuration.ts'
import type { ApiVersion } from '../../../protocol/service/status.ts'
import { type ConfigurationState, showConfiguration } from '../../policy/configuration.ts'
import { changeConfiguration } from '../../service-api/change-configuration.ts'
import type { Store } from '../../storage/store.ts'
import { type Operation, serviceOperation, ADMINISTRATORS } from '../operation.ts'

const place = {
  path: '/configuration',
  areas: ['provisioning/api'],
  principals: ADMINISTRATORS,
  cells: 'CONTROL',
  tag: 'Configuration',
} as const

export function configurationOperations(store: Store): readonly Operation[] {
  return [
    serviceOperation({
      ...place,
      id: 'gettenantconfigurations',
      summary: 'List the configuration values',
      answers: { 200: { description: 'All values of this API version.', body: configurationValues } },
      method: 'GET',
      handle: async ({ version }) => ({ status: 200, body: toWire(version, await store.read(showConfiguration)) }),
    }),
    serviceOperation({
      ...place,
      id: 'patchtenantconfigurations',
      role: 'rules',
      summary: 'Change configuration values',
      example: [{ name: 'timezone.tolerant', value: 'true' }],
      answers: { 200: { description: 'All values of this API version.', body: configurationValues } },
      method: 'PATCH',
      body: configurationBody,
      handle: async ({ body, version, principal, now }) => {
        for (const change of body) {
          const problem = configurationProblem(version, change)
          if (problem !== undefined) throw new CodedError('BAD_REQUEST', `body: ${problem}`)
        }
        return {
          status: 200,
          body: toWire(
            version,
            await changeConfiguration(actingAs(store, principal), body, identityOf(principal), now),
          ),
        }
      },
    }),
  ]
}

function toWire(version: ApiVersion, states: readonly ConfigurationState[]): readonly ConfigurationValueWire[] {
  const known = new Set(CONFIGURATION.filter(({ versions }) => versions.includes(version)).map(({ name }) => name))
  return states
    .filter(({ name }) => known.has(name))
    .map(({ name, value, changed }) => ({
      name,
      value,
      ...(changed === null ? {} : { modified: changed.modified, updatedBy: changed.updatedBy }),
    }))
}
