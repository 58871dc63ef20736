import type { ClockReading } from '../../core/rules/decision.ts'
import { suspendedError } from '../../protocol/edge/device-suspension.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { Ledger } from '../ledger/ledger.ts'
import type { ActivePolicies, PolicyInForce } from '../policy/active-policies.ts'

export interface RulesDeps {
  readonly ledger: Pick<Ledger, 'status'>
  readonly policies: Pick<ActivePolicies, 'get' | 'suspension' | 'isStale'>
  readonly topUps: {
    status(): {
      readonly deviceId: string | null
      readonly connected: boolean
      readonly policies: readonly { readonly instanceId: string }[]
    }
  }
}

/**
 * Checks in the sequence of the codes.
 *
 * @param instanceId in lower case
 * @throws CodedError DEVICE_LOCKED, DEVICE_TERMINATED, NOT_ENROLLED, INSTANCE_UNKNOWN, POLICY_MISSING, POLICY_STALE,
 * STOPPING, NOT_ATTACHED
 */
export function requireRules(
  { ledger, policies, topUps }: RulesDeps,
  instanceId: string,
  reading: ClockReading,
): PolicyInForce {
  if (policies.suspension !== null) throw suspendedError(policies.suspension)
  const policy = policies.get(instanceId)
  if (policy === undefined) {
    const { deviceId, policies: served } = topUps.status()
    if (deviceId === null) throw new CodedError('NOT_ENROLLED', 'this device is not enrolled yet')
    if (!served.some((each) => each.instanceId.toLowerCase() === instanceId)) {
      throw new CodedError('INSTANCE_UNKNOWN', `this device does not serve the instance ${instanceId}`)
    }
    throw new CodedError('POLICY_MISSING', `the rules of the instance ${instanceId} have not arrived yet`)
  }
  if (policies.isStale(policy, reading)) {
    throw new CodedError('POLICY_STALE', `revision ${policy.document.revision} was last confirmed too long ago`)
  }
  requireAttached(ledger)
  return policy
}

/** @throws CodedError STOPPING, NOT_ATTACHED */
export function requireAttached(ledger: RulesDeps['ledger']): void {
  const status = ledger.status()
  if (status === 'ATTACHED') return
  throw status === 'BROKEN'
    ? new CodedError('STOPPING', 'the agent is about to start again')
    : new CodedError('NOT_ATTACHED', 'the device must attach to the cloud first')
}
