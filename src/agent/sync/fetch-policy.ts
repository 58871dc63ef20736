/** Stores newer rules before it puts them in force. A refused document does not end the round: usage is delivered. */
import { learnKeys } from './learn-keys.ts'
import { identityOf, type PolicyMemory } from './memory.ts'
import { call, endsRound, raiseAndLog, type StepContext, type StepResult, unlessRefused } from './step.ts'
import { distinctKeys, formerKeys, Trust } from '../keys/trust.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { StoredPolicy } from '../ledger/journal.ts'
import { type AcceptedPolicy, acceptPolicy } from '../policy/accept-policy.ts'
import type { ActivePolicies } from '../policy/active-policies.ts'

export async function fetchPolicy(context: StepContext, instanceId: string): Promise<StepResult> {
  const { cloud, memory, health, signal, engine } = context
  const identity = identityOf(memory)
  const policyMemory = memory.policies.get(instanceId)
  if (policyMemory === undefined) throw new Error('invariant: only a policy of an own instance is fetched')
  policyMemory.tried = true
  const subject = policySubject(instanceId)
  const ends = (error: CodedError): boolean => endsRound(error) || error.code === 'NOT_RECORDED'
  await unlessRefused(context, { subject, instanceId, ends }, async () => {
    const request = { instanceId, knownRevision: policyMemory.applied, engine }
    const answer = await call(context, () => cloud.policy(identity, request, signal))
    if (answer.kind === 'DOCUMENT') await takeDocument(context, instanceId, policyMemory, answer.document)
    health.clear(subject)
  })
  return 'CONTINUE'
}

export function policySubject(instanceId: string): string {
  return `policy ${instanceId}`
}

async function takeDocument(
  context: StepContext,
  instanceId: string,
  policyMemory: PolicyMemory,
  document: string,
): Promise<void> {
  const { journal, ledger, activePolicies, memory, log, engine } = context
  if ((await memory.trust.open('policy', document)) === undefined) await learnKeys(context)
  const policy = await acceptPolicy(memory.trust, document, { instanceId, above: policyMemory.floor, engine })
  const { revision } = policy.document
  const identity = identityOf(memory)
  // Rules of other instances may be signed by keys that this document drops: a restart must still verify them.
  const others = [...memory.policies]
    .filter(([other]) => other !== instanceId)
    .flatMap(([, { signedBy }]) => (signedBy === null ? [] : [signedBy]))
  const trustedKeys = await distinctKeys([...policy.document.trustedKeys, ...others])
  const trust = await Trust.of(trustedKeys)
  await ledger.prepareRules(policy.compiled.policy)
  const keys = { trustedKeys, formerKeys: formerKeys(identity, trustedKeys) }
  await journal.savePolicy({ instanceId, revision, document }, keys)
  memory.identity = { ...identity, ...keys }
  memory.trust = trust
  policyMemory.newest = Math.max(policyMemory.newest, revision)
  putInForce(activePolicies, policyMemory, policy, document)
  log.info({ instanceId, revision }, 'policy in force')
}

function putInForce(
  activePolicies: ActivePolicies,
  policyMemory: PolicyMemory,
  policy: AcceptedPolicy,
  document: string,
): void {
  const { revision, engine } = policy.document
  const { signedBy } = policy
  const inForce: Partial<PolicyMemory> = {
    applied: revision,
    floor: revision,
    engine,
    signedBy,
    document,
    shown: false,
  }
  Object.assign(policyMemory, inForce)
  activePolicies.put(policy)
}

/** Verifies each stored document again: a manipulated database has no effect, and the engine may be another. */
export async function restorePolicies(context: StepContext, stored: readonly StoredPolicy[]): Promise<void> {
  const { activePolicies, log, memory, engine } = context
  for (const { instanceId, revision, document, confirmedAt } of stored) {
    const policyMemory = memory.policies.get(instanceId)
    if (policyMemory === undefined) continue
    try {
      const policy = await acceptPolicy(memory.trust, document, { instanceId, above: revision - 1, engine })
      putInForce(activePolicies, policyMemory, policy, document)
      const { engine: madeFor } = policy.document
      if (madeFor !== engine.version) {
        const message = `the rules were made for engine ${madeFor}; this agent decides by them with engine ${engine.version}`
        log.info({ instanceId, revision, madeFor, engine: engine.version }, message)
      }
      if (confirmedAt > 0) activePolicies.confirm({ time: confirmedAt, policies: [{ instanceId, revision }] })
    } catch (error) {
      if (!(error instanceof CodedError)) throw error
      // Accept the same revision again, but no older one.
      policyMemory.floor = revision - 1
      raiseAndLog(context, policySubject(instanceId), error, { instanceId })
    }
  }
}
