/** Checks a policy document in sequence; the first failure names the code. */
import { z } from 'zod'
import type { Engine } from '../../core/engine.ts'
import { compilePolicy, danglingConditions } from '../../core/rules/compile.ts'
import { engineVersion, requireEnginesFit } from '../../protocol/edge/engines.ts'
import { policyDocument, policyOf } from '../../protocol/edge/policy-document.ts'
import { CodedError, firstProblem } from '../../protocol/errors.ts'
import { type PublicJwk, thumbprint } from '../../protocol/signing.ts'
import type { PolicyInForce } from './active-policies.ts'
import type { Trust } from '../keys/trust.ts'

export interface AcceptedPolicy extends PolicyInForce {
  readonly signedBy: PublicJwk
}

export interface PolicyTerms {
  readonly instanceId: string
  /** The revision that the document must exceed; 0: any. */
  readonly above: number
  readonly engine: Engine
}

/**
 * @throws CodedError POLICY_SIGNATURE_BAD, AGENT_ENGINE_OLD, CLOUD_ENGINE_OLD, POLICY_REVISION_OLDER or
 *   POLICY_INCOMPLETE
 */
export async function acceptPolicy(
  trust: Trust,
  signed: string,
  { instanceId, above, engine }: PolicyTerms,
): Promise<AcceptedPolicy> {
  const opened = await trust.open('policy', signed)
  if (opened === undefined) {
    throw new CodedError('POLICY_SIGNATURE_BAD', 'The policy is not signed by a key that this device trusts.', {
      details: { instanceId },
    })
  }
  const document = parse(opened.text, instanceId, engine)
  const { revision } = document
  if (revision <= above) {
    throw new CodedError('POLICY_REVISION_OLDER', `Revision ${revision} is not above revision ${above}, in force.`, {
      details: { instanceId, revision, inForce: above },
    })
  }
  const policy = policyOf(document)
  const missing = danglingConditions(policy)
  if (missing.length > 0) {
    const message = `Revision ${revision} refers to conditions that it does not contain.`
    throw new CodedError('POLICY_INCOMPLETE', message, {
      details: { instanceId, revision, missing: missing.slice(0, 10) },
    })
  }
  // Otherwise the device would refuse all later documents of the cloud.
  const signer = await thumbprint(opened.signedBy)
  const named = await Promise.all(document.trustedKeys.map(thumbprint))
  if (!named.includes(signer)) {
    const message = `Revision ${revision} does not name the key that signed it among the trusted keys.`
    throw new CodedError('POLICY_INCOMPLETE', message, { details: { instanceId, revision } })
  }
  return { document, compiled: compilePolicy(policy), signedBy: opened.signedBy }
}

/** The engines first: rules for another engine may have another form. */
const madeFor = z.object({ engine: engineVersion, oldestEngine: engineVersion })

function parse(text: string, instanceId: string, engine: Engine) {
  const refused = (problem: string): CodedError =>
    new CodedError('POLICY_INCOMPLETE', `The policy cannot be used: ${problem}.`, { details: { instanceId } })
  let json: unknown
  try {
    json = JSON.parse(text)
  } catch {
    throw refused('it is not JSON')
  }
  const made = madeFor.safeParse(json)
  if (made.success) requireEnginesFit(engine, { version: made.data.engine, oldest: made.data.oldestEngine })
  const parsed = policyDocument.safeParse(json)
  if (!parsed.success) throw refused(firstProblem(parsed.error, 'policy'))
  if (parsed.data.instanceId !== instanceId) throw refused('it belongs to another instance')
  return parsed.data
}
