import { expect, test } from 'vitest'
import { Trust } from '../../../src/agent/keys/trust.ts'
import { acceptPolicy } from '../../../src/agent/policy/accept-policy.ts'
import { ENGINE } from '../../../src/core/engine.ts'
import { signDocument } from '../../../src/protocol/signing.ts'
import { INSTANCE, OTHER_INSTANCE } from '../sync/fake-cloud.ts'
import { newSigner } from '../../support/new-signer.ts'
import { policyWith } from '../sync/policies.ts'

const key = await newSigner()
const stranger = await newSigner()
const trust = await Trust.of([JSON.stringify(key.jwk)])

/** Accepts this document, signed by the trusted key, as one above revision 3. */
async function accept(document: unknown, { signer } = key): Promise<unknown> {
  const text = typeof document === 'string' ? document : JSON.stringify(document)
  const signed = await signDocument('policy', text, signer)
  return acceptPolicy(trust, signed, { instanceId: INSTANCE, above: 3, engine: ENGINE })
}

const uuidOf = (n: number): string => `00000000-0000-4000-8000-${String(n).padStart(12, '0')}`

function withConditions(ids: readonly string[]) {
  const [lineItem] = policyWith(4).lineItems
  const actions = ids.map((conditionId, n) => ({
    ...{ id: uuidOf(100 + n), name: null, conditionId, effect: 'ALLOW', allocation: '1' },
  }))
  return { ...policyWith(4), trustedKeys: [key.jwk], lineItems: [{ ...lineItem, actions }] }
}

const good = { ...policyWith(4), trustedKeys: [key.jwk] }
const incomplete = { code: 'POLICY_INCOMPLETE', details: { instanceId: INSTANCE } }

test('accepts a newer policy, with the key that signed it', async () => {
  expect(await accept(good)).toMatchObject({ document: { revision: 4 }, signedBy: key.jwk })
})

test.each<[string, unknown, object, string]>([
  ['is no JSON', '{', incomplete, 'it is not JSON'],
  ['is no policy', { ...good, format: 2 }, incomplete, 'format'],
  ['is no object', '7', incomplete, 'policy'],
  ['is for another instance', { ...good, instanceId: OTHER_INSTANCE }, incomplete, 'it belongs to another instance'],
  ['is made for a newer engine', { ...good, engine: 9_999, oldestEngine: 9_999 }, { code: 'AGENT_ENGINE_OLD' }, ''],
  [
    'is made for a newer engine, in a form that this one cannot read',
    { engine: 9_999, oldestEngine: 9_999 },
    { code: 'AGENT_ENGINE_OLD' },
    '',
  ],
  [
    'is the one in force',
    { ...good, revision: 3 },
    { code: 'POLICY_REVISION_OLDER', details: { instanceId: INSTANCE, revision: 3, inForce: 3 } },
    'Revision 3',
  ],
  [
    'does not name the key that signed it',
    { ...good, trustedKeys: [stranger.jwk] },
    { code: 'POLICY_INCOMPLETE', details: { instanceId: INSTANCE, revision: 4 } },
    'does not name the key',
  ],
  [
    'refers to conditions that it does not contain',
    withConditions(Array.from({ length: 12 }, (_, n) => uuidOf(n))),
    {
      code: 'POLICY_INCOMPLETE',
      details: { instanceId: INSTANCE, revision: 4, missing: Array.from({ length: 10 }, (_, n) => uuidOf(n)) },
    },
    'conditions that it does not contain',
  ],
])('refuses a policy that %s', async (_why, document, expected, words) => {
  const error: unknown = await accept(document).catch((reason: unknown) => reason)
  expect(error).toMatchObject(expected)
  expect((error as Error).message).toContain(words)
})

test('refuses a policy that a stranger has signed', async () => {
  await expect(accept(good, stranger)).rejects.toMatchObject({
    code: 'POLICY_SIGNATURE_BAD',
    details: { instanceId: INSTANCE },
  })
})
