import { describe, expect, it } from 'vitest'
import { PolicyBoard } from '../../src/agent/app/policy-board.ts'
import { exactly } from '../../src/core/decision.ts'
import { policyInForce } from './harness.ts'
import { INSTANCE } from './link/fake-cloud.ts'
import { BEGIN } from './link/fake-time.ts'

const HOUR = 3_600_000

describe('the policy board', () => {
  it('finds a policy by the instance id in lower case', async () => {
    const board = new PolicyBoard()
    const policy = await policyInForce(1, { instanceId: INSTANCE.toUpperCase() })
    board.put(policy)
    expect(board.get(INSTANCE)).toBe(policy)
  })

  it('lets a policy be used for so long after it was issued, or was last confirmed to be the newest', async () => {
    const board = new PolicyBoard()
    const policy = await policyInForce(2, { usableForMs: HOUR })
    board.put(policy)
    expect(board.isStale(policy, exactly(BEGIN + HOUR))).toBe(false)
    expect(board.isStale(policy, exactly(BEGIN + HOUR + 1))).toBe(true)

    board.confirm({ time: BEGIN + HOUR, policies: [{ instanceId: INSTANCE, revision: 2 }] })
    expect(board.isStale(policy, exactly(BEGIN + 2 * HOUR))).toBe(false)
    // Old news does not shorten it.
    board.confirm({ time: BEGIN + 1, policies: [{ instanceId: INSTANCE, revision: 2 }] })
    expect(board.usableUntil(policy)).toBe(BEGIN + 2 * HOUR)
  })

  it('keeps what was confirmed while the cloud has a newer revision, and counts that one from when it was heard of', async () => {
    const board = new PolicyBoard()
    const [old, newer] = [await policyInForce(2, { usableForMs: HOUR }), await policyInForce(3, { usableForMs: HOUR })]
    board.put(old)
    board.confirm({ time: BEGIN + HOUR, policies: [{ instanceId: INSTANCE, revision: 2 }] })
    board.confirm({ time: BEGIN + 2 * HOUR, policies: [{ instanceId: INSTANCE, revision: 3 }] })
    expect(board.usableUntil(old)).toBe(BEGIN + 2 * HOUR)
    board.put(newer)
    expect(board.usableUntil(newer)).toBe(BEGIN + 3 * HOUR)
  })

  it('goes by the later end of the clock, and by the earlier one where there is no later', async () => {
    const board = new PolicyBoard()
    const policy = await policyInForce(1, { usableForMs: HOUR })
    board.put(policy)
    const end = BEGIN + HOUR
    expect(board.isStale(policy, { now: BEGIN, earliest: BEGIN, latest: end + 1 })).toBe(true)
    expect(board.isStale(policy, { now: end + 9, earliest: BEGIN, latest: null })).toBe(false)
    expect(board.isStale(policy, { now: end + 9, earliest: end + 1, latest: null })).toBe(true)
  })
})
