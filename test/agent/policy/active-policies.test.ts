import { describe, expect, it } from 'vitest'
import { ActivePolicies } from '../../../src/agent/policy/active-policies.ts'
import { exactly } from '../../../src/core/rules/decision.ts'
import { policyInForce } from '../harness.ts'
import { INSTANCE } from '../sync/fake-cloud.ts'
import { BEGIN } from '../sync/fake-time.ts'

const HOUR = 3_600_000

describe('the active policies', () => {
  it('finds a policy by the instance id in lower case', async () => {
    const activePolicies = new ActivePolicies()
    const policy = await policyInForce(1, { instanceId: INSTANCE.toUpperCase() })
    activePolicies.put(policy)
    expect(activePolicies.get(INSTANCE)).toBe(policy)
  })

  it('permits the use of a policy for a time after it was issued or last confirmed as the newest', async () => {
    const activePolicies = new ActivePolicies()
    const policy = await policyInForce(2, { usableForMs: HOUR })
    activePolicies.put(policy)
    expect(activePolicies.isStale(policy, exactly(BEGIN + HOUR))).toBe(false)
    expect(activePolicies.isStale(policy, exactly(BEGIN + HOUR + 1))).toBe(true)

    activePolicies.confirm({ time: BEGIN + HOUR, policies: [{ instanceId: INSTANCE, revision: 2 }] })
    expect(activePolicies.isStale(policy, exactly(BEGIN + 2 * HOUR))).toBe(false)
  })

  it('counts from the last confirmation, also when an earlier one or the document names a time to come', async () => {
    const activePolicies = new ActivePolicies()
    const ahead = BEGIN + 120 * HOUR
    const policy = await policyInForce(2, { usableForMs: HOUR, issuedAt: ahead })
    activePolicies.put(policy)
    for (const time of [ahead + 1, BEGIN]) {
      activePolicies.confirm({ time, policies: [{ instanceId: INSTANCE, revision: 2 }] })
      expect(activePolicies.usableUntil(policy)).toBe(time + HOUR)
    }
  })

  it('keeps the confirmed revision while the cloud has a newer one, whose age counts from its announcement', async () => {
    const activePolicies = new ActivePolicies()
    const [old, newer] = [await policyInForce(2, { usableForMs: HOUR }), await policyInForce(3, { usableForMs: HOUR })]
    activePolicies.put(old)
    activePolicies.confirm({ time: BEGIN + HOUR, policies: [{ instanceId: INSTANCE, revision: 2 }] })
    activePolicies.confirm({ time: BEGIN + 2 * HOUR, policies: [{ instanceId: INSTANCE, revision: 3 }] })
    expect(activePolicies.usableUntil(old)).toBe(BEGIN + 2 * HOUR)
    activePolicies.put(newer)
    expect(activePolicies.usableUntil(newer)).toBe(BEGIN + 3 * HOUR)
  })

  it('uses the later end of the clock, or the earlier one if there is no later', async () => {
    const activePolicies = new ActivePolicies()
    const policy = await policyInForce(1, { usableForMs: HOUR })
    activePolicies.put(policy)
    const end = BEGIN + HOUR
    expect(activePolicies.isStale(policy, { now: BEGIN, earliest: BEGIN, latest: end + 1 })).toBe(true)
    expect(activePolicies.isStale(policy, { now: end + 9, earliest: BEGIN, latest: null })).toBe(false)
    expect(activePolicies.isStale(policy, { now: end + 9, earliest: end + 1, latest: null })).toBe(true)
  })
})
