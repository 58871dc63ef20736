// A week without a network, on a whole device but for its socket and its disk, in time that the test moves.
import { describe, expect, it } from 'vitest'
import { ReadinessProbe } from '../../../src/agent/diagnostics/readiness.ts'
import { audit, calmDown } from '../../agent/sync/audit.ts'
import { policyWith } from '../../agent/sync/policies.ts'
import { ACCOUNT, TestDevice } from '../../agent/sync/test-device.ts'

const MINUTE = 60_000
const HOUR = 60 * MINUTE
const DAY = 24 * HOUR

function probeOf(device: TestDevice): ReadinessProbe {
  const { ledger, activePolicies, clock, link, time } = device
  return new ReadinessProbe({
    ledger,
    policies: activePolicies,
    link,
    clock,
    journal: { saveClock: async () => undefined },
    timers: time,
  })
}

/** Charges every half hour for a week. Returns the half hours after which a probe found the device not ready, and why. */
async function week(device: TestDevice): Promise<ReadonlyMap<number, string>> {
  const probe = probeOf(device)
  const unready = new Map<number, string>()
  for (let half = 0; half < 7 * 48; half += 1) {
    await device.pass(HOUR / 2)
    await device.charge(1_000n)
    const { ready, checks } = await probe.check()
    if (!ready) unready.set(half, checks.map((check) => ('code' in check ? check.code : '')).join(''))
  }
  return unready
}

describe('a device that is offline for a week', () => {
  it('stays ready for a week offline, logs it once, retries rarely, and delivers all usage', async () => {
    const device = await TestDevice.running()
    device.cloud.grantLifetimeMs = 14 * DAY
    await device.sync()
    const lines = device.logged.length
    const { done, failed } = device.link.status().rounds
    const { attempts } = device.network
    device.network.down = true
    expect(await week(device)).toEqual(new Map())
    expect(device.fatal).toEqual([])
    expect(device.told.charged).toBe(7n * 48n * 1_000n)
    const { connected, backlog, rounds, conditions } = device.link.status()
    expect({ connected, backlog, done: rounds.done }).toEqual({ connected: false, backlog: 7 * 48, done })
    expect(conditions).toMatchObject([{ code: 'CLOUD_UNREACHABLE' }])
    // One in two and a half minutes on average, each a single attempt to connect.
    expect(rounds.failed - failed).toBeGreaterThan((7 * DAY) / (5 * MINUTE))
    expect(rounds.failed - failed).toBeLessThan((7 * DAY) / (2 * MINUTE))
    expect(device.network.attempts - attempts).toBeLessThanOrEqual(4 * (rounds.failed - failed))
    expect(device.logged.slice(lines).map(({ message }) => message)).toHaveLength(1)

    device.network.down = false
    await calmDown(device)
    expect(device.conditions).toEqual([])
    expect(device.cloud.billedOn(ACCOUNT)).toBe(7n * 48n * 1_000n)
    // One segment for all of it, and a few lines about it.
    expect(device.logged.length - lines).toBeLessThan(10)
    audit(device)
  }, 60_000)

  it('whose rules may be used for two days is ready for two, says why not, and is ready again with the network', async () => {
    const device = await TestDevice.make()
    await device.cloud.publish(policyWith(2, { usableForMs: 2 * DAY }))
    device.cloud.grantLifetimeMs = 14 * DAY
    await device.start()
    await device.settle()
    await device.sync()
    device.network.down = true
    const unready = await week(device)
    const [first = 0] = unready.keys()
    expect(Math.abs(first - 2 * 48)).toBeLessThanOrEqual(2)
    expect(unready.size).toBe(7 * 48 - first)
    expect(new Set(unready.values())).toEqual(new Set(['POLICY_STALE']))
    expect(device.fatal).toEqual([])
    await calmDown(device)
    expect((await probeOf(device).check()).ready).toBe(true)
    audit(device)
  }, 60_000)

  it('whose grant ends on the first day refuses, and is ready all the same', async () => {
    const device = await TestDevice.running()
    device.network.down = true
    expect(await week(device)).toEqual(new Map())
    expect(device.told.charged).toBeLessThanOrEqual(48n * 1_000n)
    await calmDown(device)
    audit(device)
  }, 60_000)
})
