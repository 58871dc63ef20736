/**
 * The rungs that stand before every decision on the device: nobody holds it back, it belongs to a cloud, serves the
 * instance, has its rules, they may still be used, and what is decided can be recorded. The first that fails names the code.
 */
import type { ClockReading } from '../../core/decision.ts'
import { heldBack } from '../../protocol/edge/device-hold.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { Ledger } from './ledger.ts'
import type { PolicyBoard, PolicyInForce } from './policy-board.ts'

export interface RulesParts {
  readonly ledger: Pick<Ledger, 'standing'>
  readonly policies: Pick<PolicyBoard, 'get' | 'hold' | 'isStale'>
  /** Who the device is, for a refusal that says why. */
  readonly topUps: {
    status(): {
      readonly deviceId: string | null
      readonly connected: boolean
      readonly policies: readonly { readonly instanceId: string }[]
    }
  }
}

/**
 * @param instanceId in lower case
 * @throws CodedError DEVICE_LOCKED, DEVICE_TERMINATED, NOT_ENROLLED, INSTANCE_UNKNOWN, POLICY_MISSING, POLICY_STALE, STOPPING, NOT_ATTACHED
 */
export function requireRules(
  { ledger, policies, topUps }: RulesParts,
  instanceId: string,
  reading: ClockReading,
): PolicyInForce {
  if (policies.hold !== null) throw heldBack(policies.hold)
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
  requireStanding(ledger)
  return policy
}

/** @throws CodedError STOPPING, NOT_ATTACHED */
export function requireStanding(ledger: RulesParts['ledger']): void {
  const standing = ledger.standing()
  if (standing === 'ATTACHED') return
  throw standing === 'BROKEN'
    ? new CodedError('STOPPING', 'the agent is about to start again')
    : new CodedError('NOT_ATTACHED', 'the device must attach to the cloud first')
}
