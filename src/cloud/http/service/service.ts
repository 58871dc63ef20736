/** Every operation of the service API. */
import type { ShortageNotes } from '../../policy/decide-over-pools.ts'
import type { Policies } from '../../policy/load-policy.ts'
import type { AccessBatcher } from '../../service-api/request-access.ts'
import type { GiveWay } from '../../runtime/give-way.ts'
import type { Operation } from '../operation.ts'
import { accessRequestOperations } from './access-request.ts'
import { actionOperations } from './actions.ts'
import { conditionOperations } from './conditions.ts'
import { configurationOperations } from './configuration.ts'
import { consumptionLimitOperations } from './consumption-limits.ts'
import { instanceOperations } from './instances.ts'
import { type KeyOperationDeps, keyOperations } from './keys.ts'
import { lineItemOperations } from './line-items.ts'
import { rateTableOperations } from './rate-tables.ts'
import { sessionOperations } from './sessions.ts'
import { usageOperations, usageReportOperations } from './usage.ts'

export interface ServiceDeps extends KeyOperationDeps {
  readonly policies: Policies
  readonly batcher: AccessBatcher
  readonly shortages: ShortageNotes
  readonly newId: () => string
  readonly tenantId: string
  readonly giveWay: GiveWay
  readonly sessionIntervalMs: number | null
  readonly trustsClock: () => boolean
  /** {@link Moment.present} */
  readonly present: () => number
}

export function serviceOperations(deps: ServiceDeps): readonly Operation[] {
  const { store, newId } = deps
  return [
    ...instanceOperations(deps),
    ...lineItemOperations(store),
    ...actionOperations(store, newId),
    ...conditionOperations(store, newId),
    ...consumptionLimitOperations(store),
    ...rateTableOperations(store),
    ...configurationOperations(store),
    ...keyOperations(deps),
    ...accessRequestOperations(deps),
    ...sessionOperations(deps),
    ...usageOperations(deps),
    ...usageReportOperations(deps),
  ]
}
