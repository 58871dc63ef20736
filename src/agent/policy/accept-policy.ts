/**
 * Checks a policy document in sequence: trusted signature, schema, instance, newer revision, completeness. The first
 * failure names the code.
 */
import { compilePolicy, danglingConditions } from '../../core/rules/compile.ts'
import { policyDocument, policyOf } from '../../protocol/edge/policy-document.ts'
import { CodedError, firstProblem } from '../../protocol/errors.ts'
import { type PublicJwk, thumbprint } from '../../protocol/signing.ts'
import type { ActivePolicy } from '../sync/ports.ts'
import type { Trust } from '../keys/trust.ts'

export interface AcceptedPolicy extends ActivePolicy {
  readonly signedBy: PublicJwk
}

/**
 * @param above the revision that the document must exceed; 0: any
 * @throws CodedError POLICY_SIGNATURE_BAD, POLICY_REVISION_OLDER or POLICY_INCOMPLETE
 */
export async function acceptPolicy(
  trust: Trust,
  signed: string,
  instanceId: string,
  above: number,
): Promise<AcceptedPolicy> {
  const opened = await trust.open('policy', signed)
  if (opened === undefined) {
    throw new CodedError('POLICY_SIGNATURE_BAD', 'The policy is not signed by a key that this device trusts.', {
      details: { instanceId },
    })
  }
  const document = parse(opened.text, instanceId)
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

function parse(text: string, instanceId: string) {
  const refused = (problem: string): CodedError =>
    new CodedError('POLICY_INCOMPLETE', `The policy cannot be used: ${problem}.`, { details: { instanceId } })
  let json: unknown
  try {
    json = JSON.parse(text)
  } catch {
    throw refused('it is not JSON')
  }
  const parsed = policyDocument.safeParse(json)
  if (!parsed.success) throw refused(firstProblem(parsed.error, 'policy'))
  if (parsed.data.instanceId !== instanceId) throw refused('it belongs to another instance')
  return parsed.data
}
