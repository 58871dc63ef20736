// The link against the real twin: real HTTP, a real broker, real databases on the twin's side; only time is the test's.
import { expect, onTestFinished, test } from 'vitest'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { openTwin, type Twin } from '../../cloud/harness.ts'
import { deviceAt, notificationsOnce } from './device-at-twin.ts'
import { TestDisk } from '../../agent/test-disk.ts'
import type { TestDevice } from '../../agent/sync/test-device.ts'

interface Site {
  readonly twin: Twin
  readonly device: TestDevice
  readonly instanceId: string
  readonly used: () => Promise<number>
}

/** A device that is enrolled at a twin with one line item of 100 tokens. */
async function openSite(change: Parameters<Twin['lineItem']>[1] = {}): Promise<Site> {
  const twin = await openTwin()
  onTestFinished(() => twin[Symbol.asyncDispose]())
  const instanceId = await twin.shop(change)
  const device = await deviceAt(twin, instanceId, notificationsOnce())
  return { twin, device, instanceId, used: () => twin.used(instanceId, 'ACT-1') }
}

const until = (what: () => unknown): Promise<void> => expect.poll(what, { timeout: 10_000, interval: 20 }).toBeTruthy()

/** A request waits for so much of the account that the device charges, until the round that it causes is over. */
async function ask(device: TestDevice, amount: bigint): Promise<void> {
  const { account } = device.charged
  const asked = device.link.requestGrant({ needs: [[{ account, amount }]], accounts: [account] }, 5_000)
  await until(async () => {
    device.time.advance(60)
    await device.settle()
    return !device.link.status().rounds.running
  })
  await asked
}

test('a device enrolls at the twin, spends what it was granted, and the twin shows what was used', async () => {
  const { device, used } = await openSite()
  await device.start()
  await device.settle()
  expect(device.conditions).toEqual([])
  expect(device.link.status()).toMatchObject({ epoch: 1, connected: true, sessions: [{ state: 'OPEN' }] })
  expect(await device.charge(3_500_000n)).toBe('GRANTED')
  await device.sync()
  expect(await used()).toBe(3.5)
  expect(device.link.status()).toMatchObject({ backlog: 0, unacknowledgedSeq: null })
})

test('a change of the rules reaches the device by a change notification, without a timer', async () => {
  const { twin, device, instanceId } = await openSite()
  await device.start()
  await device.settle()
  const revision = () => device.activePolicies.get(instanceId)?.document.revision ?? 0
  const before = revision()
  await until(() => device.link.status().push === 'CONNECTED')
  await device.pass(2_000)
  await twin.lineItem(instanceId, { quantity: 50 })
  await twin.tick()
  await until(() => device.link.status().notifications > 0)
  await until(async () => {
    await device.pass(10)
    return revision() > before
  })
  expect(device.activePolicies.get(instanceId)?.document.lineItems[0]?.quantity).toBe(50_000_000n)
})

test('a device follows the broker of the twin to another port', async () => {
  const { twin, device } = await openSite()
  await device.start()
  await device.settle()
  await until(() => device.link.status().push === 'CONNECTED')
  const port = Number(new URL(twin.cloud.address).port)
  await twin.stop()
  await until(() => device.link.status().push === 'DISCONNECTED')
  await twin.start((settings) => ({ ...settings, http: { ...settings.http, port } }))
  await device.sync()
  await until(() => device.link.status().push === 'CONNECTED')
  expect(device.conditions).toEqual([])
})

test('a request that needs more than the device holds gets it from the pool, until the pool is empty', async () => {
  const { device, used } = await openSite()
  await device.start()
  await device.settle()
  await ask(device, 90_000_000n)
  expect(await device.charge(90_000_000n)).toBe('GRANTED')
  await ask(device, 20_000_000n)
  expect(await device.charge(20_000_000n)).toBe('REFUSED')
  expect(await device.charge(device.left)).toBe('GRANTED')
  await device.sync()
  expect(await used()).toBe(100)
  await ask(device, 1n)
  expect(device.ledger.availableAt(device.clock.reading())(device.charged.account)).toEqual({
    left: 0n,
    shortage: 'POOL',
  })
})

test('a device that was restored from a backup is fenced, billed for both histories, and continues', async () => {
  const { device, used } = await openSite()
  await device.start()
  await device.settle()
  await device.charge(1_000_000n)
  await device.sync()
  const backup = device.disk.copy()
  await device.charge(2_000_000n)
  await device.sync()
  device.kill()
  device.disk = backup
  await device.restart()
  await device.charge(500_000n)
  await device.sync()
  await device.sync()
  expect(device.conditions).toEqual(['device: DEVICE_FORKED'])
  expect(device.link.status()).toMatchObject({ epoch: 2, fenced: false, backlog: 0 })
  expect(await used()).toBe(3.5)
  expect(await device.charge(1_000_000n)).toBe('GRANTED')
})

test('a device that is offline over a reset spends what it holds of the next period, which is billed to that period', async () => {
  const { twin, device, instanceId, used } = await openSite({ attributes: { resetFrequency: 'DAILY' } })
  await device.start()
  await device.settle()
  const [today] = device.disk.read().accounts.keys()
  const period = Number(today?.split('/').at(-1))
  device.charged = { ...device.charged, account: lineAccount(instanceId, 'ACT-1', period) }
  expect(await device.charge(4_000_000n)).toBe('GRANTED')
  device.network.down = true
  device.time.advance(86_400_000)
  twin.now += 86_400_000
  device.charged = { ...device.charged, account: lineAccount(instanceId, 'ACT-1', period + 1) }
  expect(device.left).toBe(10_000_000n)
  expect(await device.charge(9_000_000n)).toBe('GRANTED')
  device.network.down = false
  await device.sync()
  expect(device.link.status().backlog).toBe(0)
  // Use of the previous period counts in that period: each period has its own accounts.
  expect(await used()).toBe(9)
  const pools = await twin.read((reader) =>
    reader.accounts.get([0, 1].map((next) => lineAccount(instanceId, 'ACT-1', period + next))),
  )
  expect([...pools.values()].map(({ billedByDevices }) => billedByDevices)).toEqual([4_000_000n, 9_000_000n])
})

test('an allowed overdraft is a part of what devices are granted, and no device gets beyond it', async () => {
  const { device, used } = await openSite({
    quantity: 10,
    attributes: { overdraftType: 'Number', overdraftLimit: 5 },
  })
  await device.start()
  await device.settle()
  await ask(device, 16_000_000n)
  expect(device.left).toBe(10_000_000n)
  await ask(device, 15_000_000n)
  expect(device.left).toBe(15_000_000n)
  expect(device.disk.read().accounts.get(device.charged.account)?.overdraft).toBe(5_000_000n)
  expect(await device.charge(16_000_000n)).toBe('REFUSED')
  expect(await device.charge(15_000_000n)).toBe('GRANTED')
  await device.sync()
  expect(await used()).toBe(15)
  await ask(device, 1n)
  expect(device.disk.read().accounts.get(device.charged.account)?.overdraft ?? 0n).toBe(0n)
  expect(device.ledger.availableAt(device.clock.reading())(device.charged.account)).toEqual({
    left: 0n,
    shortage: 'POOL',
  })
})

test('tokens that an administrator recalls return', async () => {
  const { twin, device } = await openSite()
  await device.start()
  await device.settle()
  await device.charge(1_000_000n)
  const { deviceId } = device.link.status()
  await twin.call('POST', `/edge/api/v1/devices/${deviceId ?? ''}/release`)
  await device.sync()
  expect(device.disk.read().accounts.get(device.charged.account)).toMatchObject({
    granted: 10_000_000n,
    used: 1_000_000n,
    returned: 9_000_000n,
  })
})

test('a device whose clock is years off enrolls all the same', async () => {
  const { device } = await openSite()
  device.time.wallErrorMs = -30 * 365 * 86_400_000
  await device.start()
  await device.settle()
  expect(device.conditions).toEqual([])
  expect(device.link.status().epoch).toBe(1)
})

/** Ids of the sessions that the twin lists as live. */
async function listed({ twin, instanceId }: Site): Promise<readonly string[]> {
  const { body } = await twin.call('GET', `/api/v1.1/sessions?instanceId=${instanceId}`)
  return (body as readonly { readonly sessionId: string }[]).map(({ sessionId }) => sessionId)
}

test('a hundred restarts keep the one session of the agent, and leave no other in the list', async () => {
  const site = await openSite()
  const { device } = site
  await device.start()
  await device.settle()
  const sessionId = device.link.status().sessions[0]?.sessionId
  for (let n = 0; n < 100; n += 1) {
    await device.restart({ reboot: n % 10 === 0 })
    await device.settle()
  }
  expect(device.link.status().sessions).toMatchObject([{ state: 'OPEN', sessionId }])
  expect(await listed(site)).toEqual([sessionId])
})

test('a session whose opening was not answered is not opened twice, whenever the process ends', async () => {
  const site = await openSite()
  const { device } = site
  device.network.tamper = (request, answer) =>
    request.method === 'POST' && request.url.endsWith('/sessions') ? { ...answer, body: '' } : answer
  await device.start()
  await device.settle()
  for (let n = 0; n < 3; n += 1) {
    await device.restart()
    await device.settle()
    await device.sync()
  }
  expect(device.link.status().sessions).toMatchObject([{ state: 'CLOSED' }])
  const opened = await listed(site)
  expect(opened).toHaveLength(1)
  device.network.tamper = (_request, answer) => answer
  await device.restart()
  await device.settle()
  expect(device.link.status().sessions).toMatchObject([{ state: 'OPEN', sessionId: opened[0] }])
  expect(await listed(site)).toEqual(opened)
})

test('a session that the twin has forgotten, or ended, is opened anew after a restart', async () => {
  const site = await openSite()
  const { device, twin } = site
  await device.start()
  await device.settle()
  const [first = ''] = await listed(site)
  device.kill()
  await twin.call('POST', `/edge/api/v1/sessions/${first}/terminate`)
  await device.restart()
  await device.settle()
  const [second] = await listed(site)
  expect(second).not.toBe(first)
  expect(device.link.status().sessions).toMatchObject([{ state: 'OPEN', sessionId: second }])
  expect(device.conditions).toEqual([])
})

test('a session that an administrator has locked stays so over a restart', async () => {
  const site = await openSite()
  const { device, twin } = site
  await device.start()
  await device.settle()
  const [sessionId = ''] = await listed(site)
  await twin.call('POST', `/edge/api/v1/sessions/${sessionId}/lock`)
  await device.restart()
  await device.settle()
  expect(device.link.status().sessions).toMatchObject([{ state: 'LOCKED', sessionId }])
  expect(device.conditions).toEqual(['session: SESSION_LOCKED'])
  expect(await listed(site)).toEqual([])
})

test('a device that was wiped has one session again, not two', async () => {
  const site = await openSite()
  const { device } = site
  await device.start()
  await device.settle()
  const before = await listed(site)
  device.kill()
  device.disk = new TestDisk()
  await device.start()
  await device.settle()
  const after = await listed(site)
  expect(after).toHaveLength(1)
  expect(after).not.toEqual(before)
  expect(device.link.status().sessions).toMatchObject([{ state: 'OPEN', sessionId: after[0] }])
})

test('the session of a revoked device has ended', async () => {
  const site = await openSite()
  const { device, twin } = site
  await device.start()
  await device.settle()
  const [sessionId = ''] = await listed(site)
  await twin.call('POST', `/edge/api/v1/devices/${device.link.status().deviceId ?? ''}/revoke`)
  expect(await listed(site)).toEqual([])
  expect((await twin.call('GET', `/api/v1.1/sessions/${sessionId}`)).body).toMatchObject({ state: 'DISCONNECTED' })
})
