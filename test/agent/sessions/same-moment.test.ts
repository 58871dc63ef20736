// Sessions that draw on one account and decide at the same moment, when there is enough for one of them only.
import { expect, it } from 'vitest'
import { LINE, MINUTE, SessionDevice } from './device.ts'

/** Two sessions that were charged 8 of 20 tokens each; with what is left there is enough for one renewal. */
async function twoOfWhichOneCanRenew(): Promise<{ device: SessionDevice; ids: readonly [string, string] }> {
  const device = await SessionDevice.make(20)
  const ids = [await device.open(), await device.open()] as const
  await Promise.all(ids.map((id) => device.request(id, 8)))
  await device.grant(5_000_000n)
  return { device, ids }
}

const statesOf = (device: SessionDevice, ids: readonly string[]): readonly string[] =>
  ids.map((id) => device.session(id).state).toSorted()

/** The ledger has the same counters of the account in memory and on disk. */
function expectMemoryAsOnDisk(device: SessionDevice): void {
  const { used, refunded } = new Map(device.ledger.accounts()).get(LINE) ?? {}
  const { used: usedOnDisk, refunded: refundedOnDisk } = device.disk.read().accounts.get(LINE) ?? {}
  expect({ used, refunded }).toEqual({ used: usedOnDisk, refunded: refundedOnDisk })
}

it('the first of two requests is granted, the second is refused', async () => {
  const device = await SessionDevice.make(10)
  const [a, b] = [await device.open(), await device.open()]
  expect(await Promise.all([device.request(a, 8), device.request(b, 8)])).toEqual([200, 403])
  expect(device.fatal).toEqual([])
  expect(device.billed()).toBe(8)
})

it('the first of two requests that wait for one top-up is granted, the second is refused', async () => {
  const device = await SessionDevice.make(10)
  const [a, b] = [await device.open(), await device.open()]
  await device.request(a, 5)
  await device.request(b, 5)
  let bringIt: () => void = () => undefined
  const topUp = new Promise<void>((resolve) => (bringIt = resolve))
  device.cloud = () => topUp
  const asked = Promise.all([device.request(a, 10), device.request(b, 10)])
  await device.settle()
  device.cloud = async () => undefined
  await device.grant(6_000_000n)
  bringIt()
  expect(await asked).toEqual([200, 403])
  expect(device.fatal).toEqual([])
  expect(device.ledger.status()).toBe('ATTACHED')
})

it('a request that needs its refund is refused if another request has used the other tokens', async () => {
  const device = await SessionDevice.make(10)
  const [a, b] = [await device.open(), await device.open()]
  await device.request(a, 4)
  // 6 are left, and 4 would come back.
  expect(await Promise.all([device.request(b, 6), device.request(a, 10)])).toEqual([200, 403])
  expectMemoryAsOnDisk(device)
})

it('the first of two renewals is charged, the second session ends', async () => {
  const { device, ids } = await twoOfWhichOneCanRenew()
  await device.pass(61 * MINUTE)
  expect(statesOf(device, ids)).toEqual(['ACTIVE', 'TERMINATED'])
  expectMemoryAsOnDisk(device)
})

it('renewals that became due while the agent did not run are charged as far as the tokens suffice', async () => {
  const { device, ids } = await twoOfWhichOneCanRenew()
  // A broken invariant ends the process: what was not durable by then is lost, and the next one meets the same sessions.
  device.onFatal = () => device.kill()
  for (let starts = 0; starts < 3; starts += 1) await device.restart(starts === 0 ? 62 * MINUTE : 1_000)
  expect(device.fatal).toEqual([])
  expect(statesOf(device, ids)).toEqual(['ACTIVE', 'TERMINATED'])
})
