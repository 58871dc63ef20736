import { expect, test } from 'vitest'
import { audit, calmDown } from '../../agent/sync/audit.ts'
import { policyWith } from '../../agent/sync/policies.ts'
import { ACCOUNT, CAP, TestDevice } from '../../agent/sync/test-device.ts'

/** A life with everything in it. Ends early when the process does. */
async function live(device: TestDevice): Promise<void> {
  const steps: (() => Promise<unknown>)[] = [
    () => device.start(),
    () => device.settle(),
    () => device.charge(4_000_000n),
    () => device.charge(1_000_000n),
    () => device.refund(500_000n),
    () => device.sync(),
    () => device.cloud.publish(policyWith(2)),
    () => device.charge(2_000_000n),
    () => device.sync(),
    async () => (device.cloud.directives = ['release']),
    () => device.sync(),
    () => device.sync(),
    () => device.charge(3_000_000n),
    async () => device.cloud.fence(),
    () => device.sync(),
    () => device.charge(7_000n),
    () => device.sync(),
  ]
  for (const step of steps) {
    await step()
    if (device.fatal.length > 0) return
  }
}

async function commitsOfALife(): Promise<number> {
  const device = await TestDevice.make()
  device.disk.segmentEntriesMax = 2
  await live(device)
  expect(device.fatal).toEqual([])
  return device.disk.commits
}

test('after any commit the process may end: nothing is lost, nothing is billed twice, no room is lost', async () => {
  const commits = await commitsOfALife()
  expect(commits).toBeGreaterThan(20)
  for (let crash = 1; crash <= commits; crash += 1) {
    const device = await TestDevice.make()
    device.disk.segmentEntriesMax = 2
    device.disk.commitsUntilCrash = crash
    await live(device)
    expect(device.fatal).toHaveLength(1)
    // Once more while it recovers, right after the first commit of the next life.
    device.disk.commitsUntilCrash = 1
    await device.restart()
    await device.settle()
    await calmDown(device)
    audit(device)
    const held = device.disk.read().accounts.get(ACCOUNT)
    const out = (held?.granted ?? 0n) - (held?.returned ?? 0n)
    const { charged, refunded } = device.durable
    const current = (held?.used ?? 0n) - (held?.refunded ?? 0n)
    // The cloud reserves exactly the billed tokens and the balance of the device.
    expect(device.cloud.outOn(ACCOUNT)).toBe(charged - refunded - current + out)
    expect(device.cloud.outOn(ACCOUNT) <= CAP).toBe(true)
    expect(device.left).toBe(out - current)
    device.kill()
  }
})
