// The books of both sides, compared by arithmetic of their own: every durable entry is billed, each exactly once, nothing
// else is, and no more is held back than the pool has.
import { expect } from 'vitest'
import { ACCOUNT, CAP, type TestDevice } from './test-device.ts'

/** Ends all faults and lets device and cloud talk until neither has anything left to say. */
export async function calmDown(device: TestDevice): Promise<void> {
  device.network.faults = []
  device.network.down = false
  device.network.tamper = (_request, answer) => answer
  device.disk.commitsUntilCrash = Infinity
  device.disk.refusals = 0
  for (let round = 0; round < 12; round += 1) {
    if (device.fatal.length > 0) await device.restart()
    await device.sync()
    await device.pass(1_000)
    const { backlog, unacknowledgedSeq, fenced, connected, epoch } = device.link.status()
    if (backlog === 0 && unacknowledgedSeq === null && !fenced && connected && epoch > 0) return
  }
  throw new Error(`device and cloud do not come to rest: ${JSON.stringify(device.link.status())}`)
}

/** To be called when nothing is under way. `forks`: the scenario has copied or restored something. */
export function audit(device: TestDevice, { forks = false } = {}): void {
  const { cloud, disk } = device
  if (!forks) expect(cloud.alarms).toEqual([])
  expect(cloud.billed.size).toBe(disk.history.length)
  const { durable, told } = device
  expect(cloud.billedOn(ACCOUNT)).toBe(durable.charged - durable.refunded)
  // What was sent to an application is durable; what was durable when the process ended may not have been sent.
  expect(told.charged <= durable.charged && told.refunded <= durable.refunded).toBe(true)
  expect(cloud.outOn(ACCOUNT) <= CAP).toBe(true)
}
