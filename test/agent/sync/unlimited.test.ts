// A line item that has unlimited overdraft for a while: the real twin over HTTP, the real link and ledger of devices, and only
// time, power and the network in the hands of the test.
import { expect, it } from 'vitest'
import { MeteredSite, UNLIMITED, request } from '../../scenarios/link/metered-site.ts'
import type { TestDevice } from './test-device.ts'

const TOKEN = 1_000_000n

const state = (device: TestDevice) => new Map(device.ledger.accounts()).get(device.charged.account)

it('a connected device spends no more than the pool can pay once the overdraft is withdrawn', async () => {
  const site = await MeteredSite.open()
  const device = await site.device()
  expect(await device.charge(10n * TOKEN)).toBe('GRANTED')
  await site.change()
  await device.sync()
  for (let n = 0; n < 10; n += 1) expect(await request(device, 500n * TOKEN)).toBe('REFUSED')
  expect(await request(device, 90n * TOKEN)).toBe('GRANTED')
  expect(await request(device, 1n * TOKEN)).toBe('REFUSED')
  await device.sync()
  expect(await site.used()).toBe(100n * TOKEN)
  expect(await site.pool()).toMatchObject({ capInForce: 100n * TOKEN, grantedOut: 100n * TOKEN })
})

it('newer rules limit an account before the cloud has said a word about it, and still do after a restart', async () => {
  const site = await MeteredSite.open()
  const device = await site.device()
  await device.charge(10n * TOKEN)
  // The overdraft is withdrawn between the answer to the segment and the rules, which are fetched after it.
  await site.change({ ...UNLIMITED, quantity: 101 })
  const { exchange } = device.network
  const through = device.network.intercept ?? exchange
  device.network.intercept = async (asked) => {
    if (new URL(asked.url).pathname.endsWith('/policy')) await site.change({ quantity: 1_000 })
    return through(asked)
  }
  await device.sync()
  expect(device.activePolicies.get(site.instanceId)?.document.lineItems[0]?.overdraft).toBe(0n)
  expect(await site.record(device)).toMatchObject({ unlimited: true })
  expect([device.left, state(device)?.unlimited]).toEqual([0n, false])
  device.network.down = true
  await device.restart()
  await device.settle()
  expect([device.left, state(device)?.unlimited]).toEqual([0n, false])
  expect(await device.charge(1n)).toBe('REFUSED')
  device.network.down = false
  device.network.intercept = through
  await device.pass(60_000)
  await device.sync()
  expect(await request(device, 900n * TOKEN)).toBe('GRANTED')
})

it('unreported use without limit counts as granted when the cloud receives it, and metering ends', async () => {
  const site = await MeteredSite.open()
  const device = await site.device()
  device.network.down = true
  expect(await device.charge(500n * TOKEN)).toBe('GRANTED')
  await site.change({ quantity: 1_000 })
  device.network.down = false
  await device.pass(60_000)
  await device.sync()
  expect(await site.used()).toBe(500n * TOKEN)
  expect(state(device)).toMatchObject({ unlimited: false })
  expect(state(device)?.granted).toBe((await site.record(device))?.granted)
  await device.sync()
  expect(await site.record(device)).toMatchObject({ unlimited: false, metered: false })
  expect(await request(device, 500n * TOKEN)).toBe('GRANTED')
  expect(await request(device, 1n)).toBe('REFUSED')
  await device.sync()
  expect(await site.used()).toBe(1_000n * TOKEN)
})

it('a refund after the limit gives the device no more than the cloud counts as granted', async () => {
  const site = await MeteredSite.open()
  const device = await site.device()
  device.network.down = true
  await device.charge(500n * TOKEN)
  device.network.down = false
  await site.change()
  await device.sync()
  device.network.down = true
  await device.refund(450n * TOKEN)
  const { granted } = (await site.record(device))!
  expect(device.left).toBe(granted - 50n * TOKEN)
  device.network.down = false
  await device.pass(60_000)
  await device.sync()
  expect(await request(device, 60n * TOKEN)).toBe('REFUSED')
  await device.sync()
  expect([await site.used(), device.fatal, device.conditions]).toEqual([50n * TOKEN, [], []])
})

it('becomes unlimited and limited again, as often as the rules change', async () => {
  const site = await MeteredSite.open({})
  const device = await site.device()
  let spent = 0n
  for (let turn = 0; turn < 3; turn += 1) {
    await site.change({ ...UNLIMITED, quantity: 100 + turn })
    await device.sync()
    expect(await request(device, 1_000n * TOKEN)).toBe('GRANTED')
    spent += 1_000n * TOKEN
    expect(state(device)?.unlimited).toBe(true)
    await site.change({ quantity: 200 + turn })
    await device.sync()
    expect(await request(device, 1n * TOKEN)).toBe('REFUSED')
  }
  await device.sync()
  await device.sync()
  expect(await site.used()).toBe(spent)
  expect(await site.record(device)).toMatchObject({ unlimited: false, metered: false, granted: spent })
  expect(device.conditions).toEqual([])
})

it('a deleted line item limits the device that knows of it, and the cloud informs the one that does not', async () => {
  const site = await MeteredSite.open()
  const device = await site.device()
  await device.charge(30n * TOKEN)
  await site.change({ ...UNLIMITED, state: 'OBSOLETE' })
  const path = `/provisioning/api/v1.1/instances/${site.instanceId}/line-items/ACT-1`
  expect((await site.twin.call('DELETE', path)).status).toBe(204)
  await device.sync()
  expect(state(device)).toMatchObject({ unlimited: false, granted: 30n * TOKEN, used: 30n * TOKEN })
  await device.sync()
  expect(await site.record(device)).toMatchObject({ unlimited: false, metered: false })
  expect(await site.pool()).toMatchObject({ capTarget: 0n, capInForce: 30n * TOKEN, billedByDevices: 30n * TOKEN })
})

it('a device that dies at any commit on the way to the limit loses nothing and spends nothing above it', async () => {
  for (let commits = 1; commits <= 8; commits += 1) {
    const site = await MeteredSite.open()
    const device = await site.device()
    await device.charge(10n * TOKEN)
    await site.change({ quantity: 30 })
    device.disk.commitsUntilCrash = commits
    await device.sync()
    await device.charge(5n * TOKEN)
    if (device.fatal.length > 0) await device.restart()
    device.disk.commitsUntilCrash = Infinity
    await device.pass(60_000)
    await device.sync()
    await device.sync()
    expect(await request(device, 40n * TOKEN)).toBe('REFUSED')
    await device.sync()
    expect(await site.used()).toBe(device.durable.charged)
    expect(await site.record(device)).toMatchObject({ unlimited: false, metered: false })
    expect([device.fatal, device.link.status().epoch, device.conditions]).toEqual([[], 1, []])
  }
})
