/** Every operation of the service API. */
import type { CloudShortages } from '../../sync/grants/cloud-shortages.ts'
import type { Policies } from '../../policy/load-policy.ts'
import type { AccessBatcher } from '../../service-api/request-access.ts'
import type { Store } from '../../storage/store.ts'
import type { Route } from '../routes.ts'
import { accessRequestRoutes } from './access-request.ts'
import { actionRoutes } from './actions.ts'
import { conditionRoutes } from './conditions.ts'
import { configurationRoutes } from './configuration.ts'
import { consumptionLimitRoutes } from './consumption-limits.ts'
import { instanceRoutes } from './instances.ts'
import { keyRoutes } from './keys.ts'
import { lineItemRoutes } from './line-items.ts'
import { rateTableRoutes } from './rate-tables.ts'
import { sessionRoutes } from './sessions.ts'
import { usageRoutes } from './usage.ts'

export interface ServiceDeps {
  readonly store: Store
  readonly policies: Policies
  readonly batcher: AccessBatcher
  readonly shortages: CloudShortages
  readonly newId: () => string
  readonly keyDelayMs: number
  readonly tenantId: string
  readonly sessionIntervalMs: number | null
  readonly trustsClock: () => boolean
}

export function serviceRoutes({
  store,
  policies,
  batcher,
  shortages,
  newId,
  keyDelayMs,
  tenantId,
  sessionIntervalMs,
  trustsClock,
}: ServiceDeps): readonly Route[] {
  return [
    ...instanceRoutes(store, newId),
    ...lineItemRoutes(store),
    ...actionRoutes(store, newId),
    ...conditionRoutes(store, newId),
    ...consumptionLimitRoutes(store),
    ...rateTableRoutes(store),
    ...configurationRoutes(store),
    ...keyRoutes(store, keyDelayMs),
    ...accessRequestRoutes(batcher, newId),
    ...sessionRoutes({ store, policies, shortages, newId, sessionIntervalMs, trustsClock }),
    ...usageRoutes(store, tenantId),
  ]
}
