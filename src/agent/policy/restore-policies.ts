/**
 * Restores the rules in force after a restart. Each stored document is verified again, so a manipulated database has no
 * effect.
 */
import { CodedError } from '../../protocol/errors.ts'
import type { StoredPolicy } from '../ledger/journal.ts'
import { acceptPolicy } from './accept-policy.ts'
import { policySubject } from './fetch-policy.ts'
import type { StepContext } from '../sync/step.ts'

export async function restorePolicies(
  { activePolicies, health, log, memory }: Pick<StepContext, 'activePolicies' | 'health' | 'log' | 'memory'>,
  stored: readonly StoredPolicy[],
): Promise<void> {
  for (const { instanceId, revision, document, confirmedAt } of stored) {
    const held = memory.policies.get(instanceId)
    if (held === undefined) continue
    try {
      const policy = await acceptPolicy(memory.trust, document, instanceId, revision - 1)
      held.applied = policy.document.revision
      held.floor = policy.document.revision
      held.signedBy = policy.signedBy
      held.document = document
      activePolicies.put(policy)
      activePolicies.confirm({ time: confirmedAt, policies: [{ instanceId, revision }] })
    } catch (error) {
      if (!(error instanceof CodedError)) throw error
      // Accept the same revision again, but no older one.
      held.floor = revision - 1
      health.raise(policySubject(instanceId), error)
      log.warn({ instanceId, code: error.code, ...error.details }, error.message)
    }
  }
}
