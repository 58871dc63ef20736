/**
 * Fetches newer rules, checks them, stores them, and only then puts them in force. A refused document becomes a health
 * condition and does not end the round, so usage is still delivered.
 */
import { learnKeys } from '../keys/learn-keys.ts'
import { identityOf, type PolicyMemory } from '../sync/memory.ts'
import { call, endsRound, type StepContext, type StepResult } from '../sync/step.ts'
import { distinctKeys, Trust } from '../keys/trust.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { StoredPolicy } from '../ledger/journal.ts'
import { acceptPolicy } from './accept-policy.ts'

export async function fetchPolicy(context: StepContext, instanceId: string): Promise<StepResult> {
  const { cloud, memory, health, log, signal, options } = context
  const identity = identityOf(memory)
  const held = memory.policies.get(instanceId)
  if (held === undefined) throw new Error('invariant: only a policy of an own instance is fetched')
  held.tried = true
  try {
    const request = { instanceId, knownRevision: held.applied, engine: options.engine }
    const answer = await call(context, () => cloud.policy(identity, request, signal))
    if (answer.kind === 'DOCUMENT') await takeDocument(context, instanceId, held, answer.document)
    health.clear(policySubject(instanceId))
  } catch (error) {
    if (!(error instanceof CodedError) || endsRound(error) || error.code === 'NOT_RECORDED') throw error
    const { code } = error
    if (health.raise(policySubject(instanceId), error)) log.warn({ instanceId, code, ...error.details }, error.message)
  }
  return 'GO_ON'
}

export function policySubject(instanceId: string): string {
  return `policy ${instanceId}`
}

async function takeDocument(
  context: StepContext,
  instanceId: string,
  held: PolicyMemory,
  document: string,
): Promise<void> {
  const { journal, ledger, activePolicies, memory, log, options } = context
  if ((await memory.trust.open('policy', document)) === undefined) await learnKeys(context)
  const policy = await acceptPolicy(memory.trust, document, { instanceId, above: held.floor, engine: options.engine })
  const { revision } = policy.document
  const identity = identityOf(memory)
  // Rules of other instances may be signed by keys that this document drops. Keeps those keys, so that a restart
  // without the cloud can verify them.
  const others = [...memory.policies]
    .filter(([other]) => other !== instanceId)
    .flatMap(([, { signedBy }]) => (signedBy === null ? [] : [signedBy]))
  const trustedKeys = await distinctKeys([...policy.document.trustedKeys, ...others])
  const trust = await Trust.of(trustedKeys)
  await ledger.prepareRules(policy.compiled.policy)
  await journal.savePolicy({ instanceId, revision, document }, trustedKeys)
  memory.identity = { ...identity, trustedKeys }
  memory.trust = trust
  held.applied = revision
  held.floor = revision
  held.newest = Math.max(held.newest, revision)
  held.engine = policy.document.engine
  held.signedBy = policy.signedBy
  held.document = document
  held.shown = false
  activePolicies.put(policy)
  log.info({ instanceId, revision }, 'policy in force')
}

/**
 * Restores the rules in force after a restart. Each stored document is verified again, so a manipulated database has no
 * effect, and an upgraded agent uses only rules that its engine can use.
 */
export async function restorePolicies(
  {
    activePolicies,
    health,
    log,
    memory,
    options: { engine },
  }: Pick<StepContext, 'activePolicies' | 'health' | 'log' | 'memory' | 'options'>,
  stored: readonly StoredPolicy[],
): Promise<void> {
  for (const { instanceId, revision, document, confirmedAt } of stored) {
    const held = memory.policies.get(instanceId)
    if (held === undefined) continue
    try {
      const policy = await acceptPolicy(memory.trust, document, { instanceId, above: revision - 1, engine })
      held.applied = policy.document.revision
      held.floor = policy.document.revision
      const { engine: madeFor } = policy.document
      held.engine = madeFor
      held.signedBy = policy.signedBy
      held.document = document
      activePolicies.put(policy)
      if (madeFor !== engine.version) {
        const message = `the rules were made for engine ${madeFor}; this agent decides by them with engine ${engine.version}`
        log.info({ instanceId, revision, madeFor, engine: engine.version }, message)
      }
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
