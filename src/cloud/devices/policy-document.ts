/** The signed policy document for devices: signed once per revision, then stored. */
import { ENGINE, type Engine } from '../../core/engine.ts'
import { requireEnginesFit } from '../../protocol/edge/engines.ts'
import { policyToWire } from '../../protocol/edge/policy-document.ts'
import { signDocument } from '../../protocol/signing.ts'
import { chargeIntervalMs } from '../policy/configuration.ts'
import type { Policies } from '../policy/load-policy.ts'
import type { Store } from '../storage/store.ts'
import type { Keyring } from './keyring.ts'
import type { EdgeTerms } from './terms.ts'

export interface PolicyDocuments {
  readonly store: Pick<Store, 'read' | 'transaction'>
  readonly keys: Keyring
  readonly policies: Pick<Policies, 'at'>
  readonly now: () => number
  readonly terms: Pick<EdgeTerms, 'policyUsableMs' | 'grantHorizonMs' | 'sessionIntervalMs'>
  readonly engine?: Engine
}

export interface SignedPolicy {
  readonly revision: number
  readonly document: string
}

/** @param isKnown the result is null if the newest revision is known. @throws CodedError AGENT_ENGINE_OLD, CLOUD_ENGINE_OLD */
export async function signedPolicy(
  { store, keys, policies, now, terms, engine = ENGINE }: PolicyDocuments,
  instanceId: string,
  isKnown: (revision: number) => boolean,
  agent: Engine,
): Promise<SignedPolicy | null | undefined> {
  requireEnginesFit(agent, engine)
  const found = await store.read(async (reader) => {
    const newest = await reader.policyRevisions.get(instanceId)
    if (newest === undefined) return undefined
    const { revision } = newest
    if (isKnown(revision)) return { revision, document: null, policy: null }
    const document = await reader.edge.policyDocuments.get(instanceId, revision)
    if (document !== undefined) return { revision, document, policy: null }
    const sessionIntervalMs = terms.sessionIntervalMs ?? (await chargeIntervalMs(reader))
    const { policy, instanceName } = await policies.at(reader, newest)
    return { revision, document: null, policy, instanceName, sessionIntervalMs }
  })
  if (found === undefined) return undefined
  if (found.document !== null) return { revision: found.revision, document: found.document }
  if (found.policy === null) return null
  const issue = {
    instanceName: found.instanceName,
    issuedAt: now(),
    usableForMs: terms.policyUsableMs,
    grantHorizonMs: terms.grantHorizonMs,
    sessionIntervalMs: found.sessionIntervalMs,
    trustedKeys: keys.trusted.map(({ jwk }) => jwk),
  }
  const wire = policyToWire(found.policy, issue, engine)
  const signed = await signDocument('policy', JSON.stringify(wire), keys.signer)
  const { revision } = found
  // Another node may have signed this revision: all devices get the first document.
  const document = await store.transaction(async (tx) => {
    await tx.edge.policyDocuments.save(instanceId, revision, signed)
    return (await tx.edge.policyDocuments.get(instanceId, revision)) ?? signed
  })
  return { revision, document }
}
