/** Every operation of the service API. */
import type { CloudShortages } from '../../../app/cloud-shortages.ts'
import type { Policies } from '../../../app/load-policy.ts'
import type { AccessDesk } from '../../../app/request-access.ts'
import type { Store } from '../../../app/store.ts'
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

export interface ServiceParts {
  readonly store: Store
  readonly policies: Policies
  readonly desk: AccessDesk
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
  desk,
  shortages,
  newId,
  keyDelayMs,
  tenantId,
  sessionIntervalMs,
  trustsClock,
}: ServiceParts): readonly Route[] {
  return [
    ...instanceRoutes(store, newId),
    ...lineItemRoutes(store),
    ...actionRoutes(store, newId),
    ...conditionRoutes(store, newId),
    ...consumptionLimitRoutes(store),
    ...rateTableRoutes(store),
    ...configurationRoutes(store),
    ...keyRoutes(store, keyDelayMs),
    ...accessRequestRoutes(desk, newId),
    ...sessionRoutes({ store, policies, shortages, newId, sessionIntervalMs, trustsClock }),
    ...usageRoutes(store, tenantId),
  ]
}
