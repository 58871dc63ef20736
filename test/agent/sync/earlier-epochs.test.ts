// A twin put back to a backup from before an epoch was over: what the device still keeps of it is delivered again, so that
// nothing of it is presumed, no request waits for it, and nothing is billed twice.
import { cp, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { createExchange, EXCHANGE_DEFAULTS } from '../../../src/agent/platform/http/exchange.ts'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { DAY, openTwin, type Twin } from '../../cloud/harness.ts'
import type { TestDisk } from '../test-disk.ts'
import { TestDevice } from './test-device.ts'

const TOKEN = 1_000_000n

let twin: Twin
let backup: string
let instanceId: string
let device: TestDevice
/** How many more segments reach the cloud. */
let passing: number
const stops: (() => Promise<void> | void)[] = []

beforeEach(async () => {
  passing = Infinity
  twin = await openTwin()
  backup = await mkdtemp(join(tmpdir(), 'tallygate-backup-'))
  instanceId = await twin.instance()
  await twin.rates({ Print: 1 })
  await twin.lineItem(instanceId)
  const { exchange, close } = createExchange(EXCHANGE_DEFAULTS)
  stops.push(close)
  device = await TestDevice.at({
    // The twin listens elsewhere after each start.
    exchange: (request) => {
      const url = new URL(request.url)
      if (url.pathname.endsWith('/sync')) {
        if (passing === 0) throw new CodedError('CLOUD_UNREACHABLE', 'The network is cut.')
        passing -= 1
      }
      url.port = new URL(twin.cloud.address).port
      return exchange({ ...request, url: url.href })
    },
    push: { run: async () => undefined },
    begin: twin.now,
    token: await enrollmentToken(),
    charged: { instanceId, lineItemId: 'ACT-1', account: lineAccount(instanceId, 'ACT-1', 0) },
  })
  await device.start()
  await device.settle()
})
afterEach(async () => {
  device.kill()
  for (const stop of stops.splice(0)) await stop()
  await twin[Symbol.asyncDispose]()
  await rm(backup, { recursive: true })
})

async function enrollmentToken(): Promise<string> {
  const { body } = await twin.call('POST', '/edge/api/v1/enrollment-tokens', { body: { instanceIds: [instanceId] } })
  return (body as { readonly token: string }).token
}

async function save(): Promise<void> {
  await twin.stop()
  await cp(twin.settings.store.path, backup, { recursive: true })
  await twin.start()
}

/** @param restored whether the twin is told of it */
async function restore(restored = true): Promise<void> {
  await twin.stop()
  await rm(twin.settings.store.path, { recursive: true })
  await cp(backup, twin.settings.store.path, { recursive: true })
  twin.now += 1_000
  device.time.advance(1_000)
  await twin.start((settings) => ({ ...settings, store: { ...settings.store, restored } }))
}

/** The device runs with the disk of another one from now on. @returns its own */
async function runFrom(disk: TestDisk): Promise<TestDisk> {
  const own = device.disk
  device.kill()
  device.disk = disk
  await device.restart()
  await device.settle()
  return own
}

async function spend(amount: bigint): Promise<void> {
  expect(await device.charge(amount)).toBe('GRANTED')
  await device.sync()
}

/** Ends the service of the device, which delivers its last segment, and permits it to enroll again. */
async function endService(): Promise<void> {
  await twin.call('POST', `/edge/api/v1/devices/${device.link.status().deviceId ?? ''}/terminate`)
  await device.sync()
  device.token = await enrollmentToken()
}

/** The service of the device is ended, and it enrolls again: its epoch is closed exactly, and another one begins. */
async function beginAnew(): Promise<void> {
  const { epoch } = device.link.status()
  await endService()
  await device.sync()
  await device.sync()
  expect(device.link.status()).toMatchObject({ epoch: epoch + 1, fenced: false, backlog: 0 })
}

async function books() {
  const pools = await twin.read((reader) => reader.accounts.get([device.charged.account]))
  const { grantedOut, billedByDevices, charged } = pools.get(device.charged.account) ?? {}
  return { grantedOut, billedByDevices, charged, used: await twin.used(instanceId, 'ACT-1') }
}

/** What the twin still waits for, as a restored one. */
async function waitingFor(): Promise<readonly unknown[]> {
  const { body } = await twin.call('GET', `/edge/api/v1/instances/${instanceId}/recovery`)
  return (body as { readonly waitingFor: readonly unknown[] }).waitingFor
}

test('its charges and refunds are known again, and no request waits for it', async () => {
  await spend(1n * TOKEN)
  await save()
  await spend(2n * TOKEN)
  await beginAnew()
  await spend(3n * TOKEN)
  const before = await books()
  expect(before.used).toBe(6)
  await restore()
  await spend(1n)
  await device.sync()
  expect(await books()).toMatchObject({ ...before, billedByDevices: 6n * TOKEN + 1n, used: 6.000001 })
  expect(await waitingFor()).toEqual([])
  // Nor is anything of it presumed once it has been silent for long enough.
  for (let weeks = 0; weeks < 6; weeks += 1) {
    device.time.advance(7 * DAY)
    await twin.advance(7 * DAY)
    await device.sync()
  }
  expect(await books()).toMatchObject({ billedByDevices: 6n * TOKEN + 1n })
  expect(device.conditions).toEqual([])
})

test('any number of them come in their order, over restarts of the device', async () => {
  await save()
  for (let lives = 0; lives < 3; lives += 1) {
    await spend(2n * TOKEN)
    await beginAnew()
  }
  await spend(1n * TOKEN)
  const before = await books()
  await restore()
  for (let commits = 1; commits <= 3; commits += 1) {
    device.disk.commitsUntilCrash = commits
    await device.charge(1n)
    await device.sync()
    device.disk.commitsUntilCrash = Infinity
    await device.restart()
    await device.settle()
  }
  await device.sync()
  const { grantedOut, billedByDevices } = await books()
  expect(grantedOut).toBe(before.grantedOut)
  const durable = device.durable.charged
  expect(billedByDevices).toBe(durable)
  expect(await waitingFor()).toEqual([])
})

test('if one segment is no longer kept, the rest of its epoch is abandoned, and the current one continues', async () => {
  await save()
  await spend(2n * TOKEN)
  await spend(2n * TOKEN)
  await beginAnew()
  await restore()
  device.disk.change('DELETE FROM segment WHERE epoch = 1 AND seq = 2')
  await spend(1n * TOKEN)
  await device.sync()
  expect(device.link.status()).toMatchObject({ epoch: 2, backlog: 0, unacknowledgedSeq: null, fenced: false })
  expect(await waitingFor()).toMatchObject([{ epoch: 1 }])
})

test('a twin that is restored again meanwhile gets all of it again', async () => {
  await spend(1n)
  await save()
  for (const amount of [2n, 4n, 8n]) await spend(amount)
  await beginAnew()
  await restore()
  // The one of the current epoch, one that the twin knows, and two that it has lost.
  passing = 4
  await device.sync()
  expect(await books()).toMatchObject({ billedByDevices: 7n })
  await restore()
  passing = Infinity
  await device.sync()
  await device.sync()
  expect(await books()).toMatchObject({ billedByDevices: 15n, used: 0.000015 })
  expect(await waitingFor()).toEqual([])
})

describe('beside a copy that a restored twin has met first', () => {
  test('all segments of an epoch are billed whose number the copy got', async () => {
    await save()
    const copied = device.disk.copy()
    await beginAnew()
    for (const amount of [1n, 2n, 4n, 8n, 16n]) await spend(amount)
    await restore(false)
    const own = await runFrom(copied)
    await beginAnew()
    await spend(32n)
    await runFrom(own)
    for (let rounds = 0; rounds < 3; rounds += 1) await device.sync()
    expect(await books()).toMatchObject({ billedByDevices: 63n, used: 0.000063 })
    expect(device.link.status()).toMatchObject({ fenced: false, backlog: 0, unacknowledgedSeq: null })
  })

  test('so are those of the current epoch, which the copy has continued further', async () => {
    await spend(1n)
    await save()
    const copied = device.disk.copy()
    for (const amount of [2n, 4n]) await spend(amount)
    await restore()
    const own = await runFrom(copied)
    for (const amount of [8n, 16n, 32n, 64n]) await spend(amount)
    // The copy has reported as the device.
    await twin.call('POST', `/edge/api/v1/instances/${instanceId}/recovery/end`)
    await runFrom(own)
    await spend(128n)
    for (let rounds = 0; rounds < 3; rounds += 1) await device.sync()
    expect(await books()).toMatchObject({ billedByDevices: 255n, used: 0.000255 })
    expect(device.link.status()).toMatchObject({ fenced: false, backlog: 0, unacknowledgedSeq: null })
  })

  test('so are those whose numbers the copy has used for others', async () => {
    await spend(1n)
    await save()
    const copied = device.disk.copy()
    for (const amount of [2n, 4n, 8n]) await spend(amount)
    await beginAnew()
    await restore()
    const own = await runFrom(copied)
    for (const amount of [16n, 32n]) await spend(amount)
    await runFrom(own)
    for (let rounds = 0; rounds < 3; rounds += 1) await device.sync()
    expect(await books()).toMatchObject({ billedByDevices: 63n, used: 0.000063 })
    expect(device.link.status()).toMatchObject({ fenced: false, backlog: 0, unacknowledgedSeq: null })
  })
})

describe('an epoch of which the cloud has forgotten the attach before its first segment', () => {
  beforeEach(async () => {
    await save()
    await spend(2n * TOKEN)
    await endService()
    passing = 0
    await device.sync()
    expect(device.link.status()).toMatchObject({ epoch: 2 })
    await restore()
    passing = Infinity
  })

  test('fits the restored cloud, which asks for the segments of earlier epochs', async () => {
    expect(await books()).toMatchObject({ billedByDevices: 0n })
    await device.sync()
    await device.sync()
    expect(await books()).toMatchObject({ billedByDevices: 2n * TOKEN, used: 2 })
    expect(await waitingFor()).toEqual([])
  })

  test.each([1, 2, 3, 4])('the same with a crash of the device after commit %d', async (commits) => {
    device.disk.commitsUntilCrash = commits
    await device.sync()
    device.disk.commitsUntilCrash = Infinity
    await device.restart()
    await device.settle()
    await device.sync()
    await device.sync()
    expect(await books()).toMatchObject({ billedByDevices: 2n * TOKEN, used: 2 })
  })
})

test('a device whose service has ended enrolls with a new token, also after a restart with the one that it used', async () => {
  await spend(1n * TOKEN)
  const { deviceId } = device.link.status()
  await twin.call('POST', `/edge/api/v1/devices/${deviceId ?? ''}/terminate`)
  await device.sync()
  await device.restart()
  await device.settle()
  await device.sync()
  expect(device.conditions).toContain('attach: DEVICE_TERMINATED')
  device.token = await enrollmentToken()
  await device.sync()
  await device.sync()
  expect(device.link.status()).toMatchObject({ deviceId, epoch: 2, fenced: false, backlog: 0 })
  await spend(1n * TOKEN)
  expect(await books()).toMatchObject({ billedByDevices: 2n * TOKEN, used: 2 })
})
