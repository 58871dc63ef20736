/**
 * A one-off access request: each item is granted or refused by itself, what is granted is charged once, and there is
 * nothing to return. Charge and usage records are committed before the answer. Source: contract, Non-session access request.
 */
import type { AccessRequest, Decision } from '../../core/decision.ts'
import { CodedError } from '../../protocol/errors.ts'
import { decideOverPools } from './decide-over-pools.ts'
import type { Policies } from './load-policy.ts'
import type { Store } from './store.ts'
import { usageOfDecision } from './usage-of-request.ts'

export interface AccessOrder {
  readonly instanceId: string
  readonly correlationId: string
  readonly request: AccessRequest
  /** JSON text of each item, in their order. */
  readonly metaData: readonly (string | null)[]
}

/** @throws CodedError NOT_FOUND when there is no such instance */
export async function requestAccess(
  store: Store,
  policies: Policies,
  order: AccessOrder,
  now: number,
): Promise<Decision> {
  const { instanceId, correlationId, request, metaData } = order
  return store.transaction(async (tx) => {
    const loaded = await policies.hold(tx, instanceId, now)
    if (loaded === undefined) throw new CodedError('NOT_FOUND', `There is no instance ${instanceId}.`)
    const { decision, before, changed } = await decideOverPools(tx, loaded, request, 'BEST_EFFORT', now)
    await tx.accounts.save(changed)
    const header = {
      correlationId,
      requester: request.requester,
      source: { kind: 'one-off' },
      operation: 'REQUEST',
      now,
    } as const
    await tx.usage.append(usageOfDecision(header, loaded, request, metaData, decision, before))
    return decision
  })
}
