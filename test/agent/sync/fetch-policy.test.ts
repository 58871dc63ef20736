import { expect, test } from 'vitest'
import { policyDocument, type PolicyDocumentWire } from '../../../src/protocol/edge/policy-document.ts'
import { signDocument } from '../../../src/protocol/signing.ts'
import { calmDown } from './audit.ts'
import { INSTANCE, OTHER_INSTANCE } from './fake-cloud.ts'
import { type NewSigner, newSigner } from '../../support/new-signer.ts'
import { policyWith, withAction } from './policies.ts'
import { ACCOUNT, SYNC, TestDevice } from './test-device.ts'

const CONDITION = '0e8f1a52-31c1-4a6b-9b2e-5d0a5e0f7a11'

const inForce = (device: TestDevice): number | undefined => device.activePolicies.get(INSTANCE)?.document.revision

/** Puts any text in the place of the newest policy. */
async function serve(device: TestDevice, revision: number, payload: unknown, key: NewSigner, kind = 'policy' as const) {
  const document = await signDocument(kind, JSON.stringify(payload), key.signer)
  device.cloud.policies.set(INSTANCE, { revision, document })
}

const signedBy = (key: NewSigner, document: Omit<PolicyDocumentWire, 'trustedKeys'>) => ({
  ...document,
  trustedKeys: [key.jwk],
})

/** The old key signs revision 2, which names the next key. That key signs revision 3. */
async function changeKey(device: TestDevice): Promise<void> {
  const next = await newSigner()
  device.cloud.nextKeys = [next.jwk]
  await device.cloud.publish(policyWith(2))
  await device.sync()
  device.cloud.key = next
  device.cloud.nextKeys = []
  await device.cloud.publish(policyWith(3))
  await device.sync()
}

test('a newer policy that a sync names comes into force in the same round', async () => {
  const device = await TestDevice.running()
  await device.cloud.publish(policyWith(2))
  await device.sync()
  expect(inForce(device)).toBe(2)
  expect(device.disk.read().policies).toMatchObject([{ instanceId: INSTANCE, revision: 2 }])
})

test('rules stay usable for as long as the cloud keeps signing that they are its newest', async () => {
  const device = await TestDevice.running()
  const usableUntil = (): number => {
    const policy = device.activePolicies.get(INSTANCE)
    return policy === undefined ? 0 : device.activePolicies.usableUntil(policy)
  }
  const before = usableUntil()
  await device.pass(3_600_000)
  expect(usableUntil() - before).toBeGreaterThan(3_500_000)
  device.network.down = true
  await device.restart()
  expect(usableUntil() - before).toBeGreaterThan(3_500_000)
})

test('a policy is durable before it is in force', async () => {
  const device = await TestDevice.running()
  await device.cloud.publish(policyWith(2))
  // A segment is sealed and acknowledged; the third commit stores the policy.
  device.disk.commitsUntilCrash = 3
  await device.sync()
  expect(device.fatal).toHaveLength(1)
  expect(inForce(device)).toBe(1)
  device.network.down = true
  await device.restart()
  expect(inForce(device)).toBe(2)
})

test('a policy that a stranger signed is refused, and the rules in force stay', async () => {
  const device = await TestDevice.running()
  const stranger = await newSigner()
  await serve(device, 2, signedBy(stranger, policyWith(2)), stranger)
  await device.sync()
  expect(device.conditions).toEqual(['policy: POLICY_SIGNATURE_BAD'])
  expect(inForce(device)).toBe(1)
  await device.cloud.publish(policyWith(3))
  await device.sync()
  expect(device.conditions).toEqual([])
  expect(inForce(device)).toBe(3)
})

test('another document of the cloud does not pass as a policy', async () => {
  const device = await TestDevice.running()
  const { key } = device.cloud
  const document = await signDocument('sync-answer', JSON.stringify(signedBy(key, policyWith(2))), key.signer)
  device.cloud.policies.set(INSTANCE, { revision: 2, document })
  await device.sync()
  expect(device.conditions).toEqual(['policy: POLICY_SIGNATURE_BAD'])
})

test('a policy that is not above the one in force is refused', async () => {
  const device = await TestDevice.running()
  await device.cloud.publish(policyWith(5))
  await device.sync()
  for (const revision of [4, 5]) {
    await device.cloud.publish(policyWith(revision, { timezoneTolerant: true }))
    const policy = device.cloud.policies.get(INSTANCE)
    // What it says of itself to the sync makes the device ask for it.
    device.cloud.policies.set(INSTANCE, { revision: 6, document: policy?.document ?? '' })
    await device.sync()
    expect(device.conditions).toEqual(['policy: POLICY_REVISION_OLDER'])
    expect(device.activePolicies.get(INSTANCE)?.document).toMatchObject({ revision: 5, timezoneTolerant: false })
  }
})

test('a cloud whose newest revision is below the one in force is named, until it has caught up', async () => {
  const device = await TestDevice.running()
  await device.cloud.publish(policyWith(5))
  await device.sync()
  await device.cloud.publish(policyWith(3))
  await device.sync()
  expect(device.conditions).toEqual(['policy: POLICY_REVISION_OLDER'])
  // It may have been restored: it is shown what it has signed, once.
  await device.sync()
  await device.sync()
  const shown = device.cloud.proofs.flatMap(({ proofs }) => proofs)
  expect(shown).toEqual(device.disk.read().policies.map(({ document }) => document))
  await device.cloud.publish(policyWith(6))
  await device.sync()
  expect(device.conditions).toEqual([])
  expect(inForce(device)).toBe(6)
})

test('a policy that refers to a condition that it does not contain is refused', async () => {
  const device = await TestDevice.running()
  await device.cloud.publish(withAction(2, CONDITION))
  await device.sync()
  expect(device.conditions).toEqual(['policy: POLICY_INCOMPLETE'])
  expect(device.logged.at(-1)?.fields).toMatchObject({ code: 'POLICY_INCOMPLETE', missing: [CONDITION] })
  await device.cloud.publish({
    ...withAction(3, CONDITION),
    conditions: [{ id: CONDITION, name: null, condition: { operator: 'IN', property: 'team', values: ['a'] } }],
  })
  await device.sync()
  expect(inForce(device)).toBe(3)
})

test('a policy with a field that the device does not know, or of another instance, is refused', async () => {
  const device = await TestDevice.running()
  const { key } = device.cloud
  const good = signedBy(key, policyWith(2))
  const other = '11111111-1111-4111-8111-111111111111'
  for (const bad of [{ ...good, moonPhase: 'full' }, { ...good, instanceId: other }, 'text', null]) {
    await serve(device, 2, bad, key)
    await device.sync()
    expect(device.conditions).toEqual(['policy: POLICY_INCOMPLETE'])
    expect(inForce(device)).toBe(1)
  }
})

test('a policy that does not name the key that signed it is refused: the device would trust no key afterwards', async () => {
  const device = await TestDevice.running()
  await device.cloud.publish({ ...policyWith(2), trustedKeys: [(await newSigner()).jwk] })
  await device.sync()
  expect(device.conditions).toEqual(['policy: POLICY_INCOMPLETE'])
})

test('the cloud changes its key by naming the next one in a policy that the old one signs', async () => {
  const device = await TestDevice.running()
  const old = device.cloud.key
  await changeKey(device)
  expect(device.conditions).toEqual([])
  expect(inForce(device)).toBe(3)
  expect(device.disk.read().identity?.trustedKeys).toEqual([JSON.stringify(device.cloud.key.jwk)])

  await serve(device, 4, signedBy(old, policyWith(4)), old)
  await device.sync()
  expect(device.conditions).toEqual(['policy: POLICY_SIGNATURE_BAD'])
})

test('rules of one instance survive a restart without the cloud while another has got a new key already', async () => {
  const device = await TestDevice.make()
  await device.cloud.publish(policyWith(1, { instanceId: OTHER_INSTANCE }))
  device.token = await device.cloud.enrollmentToken({ instances: [INSTANCE, OTHER_INSTANCE] })
  await device.start()
  await device.settle()
  const old = device.cloud.key
  await changeKey(device)
  expect(inForce(device)).toBe(3)

  device.network.down = true
  await device.restart()
  expect(inForce(device)).toBe(3)
  expect(device.activePolicies.get(OTHER_INSTANCE)?.document.revision).toBe(1)

  device.network.down = false
  await device.cloud.publish(policyWith(2, { instanceId: OTHER_INSTANCE }))
  await device.sync()
  expect(device.activePolicies.get(OTHER_INSTANCE)?.document.revision).toBe(2)
  expect(device.disk.read().identity?.trustedKeys).not.toContain(JSON.stringify(old.jwk))
})

test('the stored rules are in force after a restart without the cloud', async () => {
  const device = await TestDevice.running()
  device.network.down = true
  await device.restart({ reboot: true })
  expect(inForce(device)).toBe(1)
})

test('altered stored rules are not used after a restart and are fetched again', async () => {
  const device = await TestDevice.running()
  const stranger = await newSigner()
  const text = JSON.stringify(signedBy(stranger, policyWith(1)))
  expect(policyDocument.safeParse(JSON.parse(text)).success).toBe(true)
  const document = await signDocument('policy', text, stranger.signer)
  device.disk.change('UPDATE policy SET document = ?, confirmed_at = 0', document)
  device.network.down = true
  await device.restart()
  expect(inForce(device)).toBeUndefined()
  expect(device.conditions).toContain('policy: POLICY_SIGNATURE_BAD')
  await calmDown(device)
  expect(inForce(device)).toBe(1)
  expect(device.conditions).toEqual([])
})

test('a stored revision cannot be replaced by an older one', async () => {
  const device = await TestDevice.running()
  await device.cloud.publish(policyWith(2))
  await device.sync()
  device.disk.change("UPDATE policy SET document = 'damaged'")
  await device.cloud.publish(policyWith(1))
  await device.restart()
  await device.settle()
  expect(inForce(device)).toBeUndefined()
  expect(device.conditions).toContain('policy: POLICY_REVISION_OLDER')
})

test('a policy that cannot be had does not keep usage from being delivered', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  device.cloud.policies.delete(INSTANCE)
  device.disk.change('DELETE FROM policy')
  await device.restart()
  await device.settle()
  expect(device.conditions).toEqual(['policy: NOT_FOUND'])
  expect(device.link.status()).toMatchObject({ backlog: 0, connected: true })
})

test('rules that a proxy does not pass on do not keep tokens from a device whose syncs succeed', async () => {
  const device = await TestDevice.running()
  device.network.tamper = (request, answer) =>
    request.url.includes('/policy') ? { status: 403, headers: {}, body: '<html>Forbidden</html>' } : answer
  await device.cloud.publish(policyWith(2))
  await device.pass(SYNC.interval)
  expect(device.conditions).toEqual(['policy: ANSWER_UNEXPECTED'])
  expect(device.link.status().connected).toBe(true)
  const amount = 50_000_000n
  const granted = device.link.requestGrant({ needs: [[{ account: ACCOUNT, amount }]], accounts: [ACCOUNT] }, 2_000)
  await device.pass(100)
  await granted
  expect(await device.charge(amount)).toBe('GRANTED')
})
