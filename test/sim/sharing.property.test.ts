// The rule of fair sharing (docs/decisions/fair-sharing.md) over many devices on one pool, greedy and modest, with the
// product's own ledger, decisions, grants and recalls.
import { expect, test } from 'vitest'
import type { DeviceHabits } from '../../sim/sharing/device.ts'
import { TOKEN } from '../../sim/sharing/pool.ts'
import type { SharingDefect } from '../../sim/sharing/cloud.ts'
import { SharingSite } from '../../sim/sharing/site.ts'
import fc from '../support/fast-check.ts'

const MINUTE = 60_000
const HOUR = 60 * MINUTE
const SYNC_EVERY_MS = 5 * MINUTE
const RETRY_MS = 20_000

const habits = fc.record({
  tokens: fc.constantFrom(0, 0, 1, 1, 3, 10, 40, 500),
  everyMs: fc.integer({ min: MINUTE, max: 20 * MINUTE }),
  offlineFrom: fc.constantFrom(null, null, null, 20 * MINUTE, HOUR),
})

const site = fc.record({
  seed: fc.nat(),
  quantity: fc.integer({ min: 20, max: 3_000 }),
  starting: fc.constantFrom(0, 10, 100),
  pushMs: fc.constantFrom(null, 200),
  habits: fc.array(habits, { minLength: 2, maxLength: 14 }),
})

type Drawn = typeof site extends fc.Arbitrary<infer T> ? T : never

/** @throws if tokens appear or disappear, or a device waits longer than the rule permits */
async function share({ habits: all, ...how }: Drawn, defect?: SharingDefect): Promise<void> {
  const devices = all.map(({ tokens, everyMs, offlineFrom }, index): DeviceHabits => {
    const offline = offlineFrom === null ? [] : [{ from: offlineFrom, until: offlineFrom + 30 * MINUTE }]
    return { name: `device-${index}`, tokens, everyMs, retryMs: RETRY_MS, offline }
  })
  const times = { syncEveryMs: SYNC_EVERY_MS, horizonMs: 24 * HOUR }
  const shared = new SharingSite({ ...how, ...times, devices, ...(defect === undefined ? {} : { defect }) })
  for (let at = 0; at <= 2 * HOUR; at += 10 * MINUTE) {
    await shared.until(at)
    const { pool } = shared.cloud
    expect(pool.charged + pool.grantedOut <= BigInt(how.quantity) * TOKEN).toBe(true)
    const held = devices.reduce((sum, { name }) => sum + shared.heldBy(name), 0n)
    expect(shared.cloud.free + held + pool.billedByDevices).toBe(BigInt(how.quantity) * TOKEN)
  }
  for (const { name, longestWaitMs } of shared.devices) {
    expect(longestWaitMs, name).toBeLessThanOrEqual(2 * SYNC_EVERY_MS + 2 * RETRY_MS)
  }
}

test(
  'no device is refused for longer than a sync interval and the time in which the others return what they can spare',
  { timeout: 180_000 },
  () =>
    fc.assert(
      fc.asyncProperty(site, (drawn) => share(drawn)),
      { numRuns: 30 },
    ),
)

for (const defect of ['recalls-nothing', 'shares-nothing'] as const) {
  test(`a cloud that ${defect.replace('-', ' ')} is found`, { timeout: 180_000 }, async () => {
    const sharing = fc.asyncProperty(site, (drawn) => share(drawn, defect))
    const { failed, errorInstance } = await fc.check(sharing, { numRuns: 100, endOnFailure: true })
    expect(failed).toBe(true)
    expect(String(errorInstance)).toMatch(/device-\d+: expected \d+ to be less than or equal/)
  })
}

test('a request that the pool cannot pay leaves it to all others', async () => {
  const device = (name: string, tokens: number): DeviceHabits => {
    return { name, tokens, everyMs: MINUTE, retryMs: RETRY_MS }
  }
  const devices = [device('huge', 12_000), device('modest', 1)]
  const how = { seed: 1, quantity: 10_000, starting: 100, pushMs: null, horizonMs: 24 * HOUR }
  const shared = new SharingSite({ ...how, syncEveryMs: SYNC_EVERY_MS, devices })
  await shared.until(HOUR)
  const [huge, modest] = shared.devices
  expect(shared.heldBy('huge')).toBe(100n * TOKEN)
  expect(huge?.counts.granted).toBe(0)
  expect(modest?.counts.refused).toBe(0)
  expect(modest?.counts.granted).toBeGreaterThan(30)
})
