// A device replaces its key while it keeps deciding: the link of the device against the real twin, over real HTTP.
import { cp, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest'
import { EXCHANGE_DEFAULTS, createExchange } from '../../../src/agent/platform/http/exchange.ts'
import {
  type DeviceState,
  auditList,
  deviceEvidence,
  deviceList,
  deviceState,
} from '../../../src/protocol/edge/administration.ts'
import { namedKey } from '../../../src/protocol/signing.ts'
import { type Twin, openTwin } from '../../cloud/harness.ts'
import { deviceAt } from '../../scenarios/link/device-at-twin.ts'
import { FAULTS } from '../../scenarios/link/faulty-network.ts'
import type { KeyPlace } from '../keys/memory-keys.ts'
import { TestDisk } from '../test-disk.ts'
import type { TestDevice } from './test-device.ts'

const TOKEN = 1_000_000n

let twin: Twin
let instanceId: string
let backup: string
beforeEach(async () => {
  twin = await openTwin()
  onTestFinished(() => twin[Symbol.asyncDispose]())
  instanceId = await twin.shop({ quantity: 1_000 })
  backup = join(twin.directory, 'backup')
})

async function joined(): Promise<TestDevice> {
  const device = await deviceAt(twin, instanceId)
  await device.start()
  await device.settle()
  expect(device.conditions).toEqual([])
  return device
}

async function rotate(device: TestDevice): Promise<void> {
  const kept = device.link.rotateKey()
  await device.settle()
  await kept
  await device.sync()
}

const keyOf = ({ keyPlace }: { readonly keyPlace: KeyPlace }): string => keyPlace.current.signer.keyId
const path = (device: TestDevice): string => `/edge/api/v1/devices/${device.disk.read().identity?.deviceId ?? ''}`
const shown = async (device: TestDevice): Promise<DeviceState> =>
  deviceState.parse((await twin.call('GET', path(device))).body)
const actions = async (device: TestDevice): Promise<readonly string[]> => {
  const { body } = await twin.call('GET', `/edge/api/v1/audit?deviceId=${device.disk.read().identity?.deviceId ?? ''}`)
  const replacing = ['REPLACE_DEVICE_KEY', 'ROTATE_DEVICE_KEY']
  return auditList.parse(body).records.flatMap(({ action }) => (replacing.includes(action) ? [action] : []))
}

/** All that was granted to applications is billed once, without a sign of two writers. */
async function expectEqualLedgers(device: TestDevice): Promise<void> {
  await device.sync()
  await device.sync()
  const { body } = await twin.call('GET', `${path(device)}/evidence`)
  expect(deviceEvidence.parse(body).evidence).toEqual([])
  expect(device.conditions).toEqual([])
  expect(device.link.status()).toMatchObject({ backlog: 0, unacknowledgedSeq: null, epoch: 1 })
  const { charged, refunded } = device.durable
  expect(await twin.used(instanceId, 'ACT-1')).toBe(Number(charged - refunded) / 1e6)
}

test('by order of a technician: the next key takes the place of the one before, at the device and at the twin', async () => {
  const device = await joined()
  const before = keyOf(device)
  expect(device.link.status().key).toEqual({ id: before, since: expect.any(Number) as number, next: null })
  const kept = device.link.rotateKey()
  expect(await device.charge(3n * TOKEN)).toBe('GRANTED')
  await device.settle()
  const { key, next } = await kept
  expect(key).toBe(before)
  await device.sync()
  expect(keyOf(device)).toBe(next)
  expect(device.keyPlace.next).toBeNull()
  expect(device.link.status().key).toMatchObject({ id: next, next: null })
  expect((await shown(device)).key).toMatchObject({ id: next, next: null, rotationRequested: false })
  expect(await actions(device)).toEqual(['REPLACE_DEVICE_KEY'])
  expect(await device.charge(2n * TOKEN)).toBe('GRANTED')
  await expectEqualLedgers(device)
  // And once more, from the key that came out of it.
  await rotate(device)
  expect((await shown(device)).key.id).toBe(keyOf(device))
  expect(keyOf(device)).not.toBe(next)
  await expectEqualLedgers(device)
})

test('by order of an administrator: with the next sync, once', async () => {
  const device = await joined()
  const before = keyOf(device)
  expect((await twin.call('POST', `${path(device)}/rotate-key`)).status).toBe(200)
  expect((await shown(device)).key).toMatchObject({ id: before, rotationRequested: true })
  await device.sync()
  const after = keyOf(device)
  expect(after).not.toBe(before)
  for (let more = 0; more < 3; more += 1) await device.sync()
  expect(keyOf(device)).toBe(after)
  expect((await shown(device)).key).toMatchObject({ id: after, rotationRequested: false })
  expect(await actions(device)).toEqual(['REPLACE_DEVICE_KEY', 'ROTATE_DEVICE_KEY'])
  await expectEqualLedgers(device)
})

test('a command that is repeated before the change is done is the same command', async () => {
  const device = await joined()
  await twin.call('POST', `${path(device)}/rotate-key`)
  // The response to the announcement is spoilt: the round continues, and its sync brings the command once more.
  device.network.tamper = (request, answer) => (request.url.endsWith('/keys') ? { ...answer, body: '{' } : answer)
  await device.sync()
  await device.sync()
  expect(device.link.status().key.next).not.toBeNull()
  device.network.tamper = (_, answer) => answer
  for (let more = 0; more < 3; more += 1) await device.sync()
  expect(device.link.status().key.next).toBeNull()
  expect(await actions(device)).toEqual(['REPLACE_DEVICE_KEY', 'ROTATE_DEVICE_KEY'])
  await expectEqualLedgers(device)
})

test('a key that is requested before the device has an epoch is announced after the attach', async () => {
  const device = await deviceAt(twin, instanceId)
  device.network.tamper = (request, answer) => (request.url.endsWith('/attach') ? { ...answer, body: '{' } : answer)
  await device.start()
  await device.settle()
  expect(device.link.status()).toMatchObject({ epoch: 0 })
  const kept = device.link.rotateKey()
  await device.settle()
  const { next } = await kept
  device.network.tamper = (_, answer) => answer
  await device.sync()
  await device.sync()
  expect(keyOf(device)).toBe(next)
  expect(device.logged.map(({ fields: { code } }) => code)).not.toContain('DEVICE_KEY_REFUSED')
  await expectEqualLedgers(device)
})

test('a change that was cut off between ledger and file is completed at the start, without the twin', async () => {
  const device = await joined()
  device.disk.commitsUntilCrash = 3
  const kept = device.link.rotateKey().catch(() => undefined)
  await device.settle()
  await kept
  expect(device.keyPlace.next?.signer.keyId).toBe(device.disk.read().identity?.keyId)
  device.network.down = true
  await device.restart()
  expect(keyOf(device)).toBe(device.disk.read().identity?.keyId)
  expect(device.link.status().key).toMatchObject({ id: keyOf(device), next: null })
  device.network.down = false
  await device.sync()
  await expectEqualLedgers(device)
})

test('offline the order is kept, over restarts, and carried out with the connection; decisions go on', async () => {
  const device = await joined()
  const before = keyOf(device)
  device.network.down = true
  await rotate(device)
  expect(device.link.status().key).toMatchObject({ id: before, next: expect.any(String) as string })
  expect(await device.charge(1n * TOKEN)).toBe('GRANTED')
  const { next } = device.link.status().key
  await device.restart()
  await device.settle()
  expect(device.link.status().key).toMatchObject({ id: before, next })
  expect(await device.charge(1n * TOKEN)).toBe('GRANTED')
  device.network.down = false
  await device.sync()
  expect(keyOf(device)).toBe(next)
  await expectEqualLedgers(device)
})

test('a device that is not enrolled, or is stopping, refuses the rotation', async () => {
  const device = await deviceAt(twin, instanceId)
  device.token = null
  await device.start()
  await device.settle()
  await expect(device.link.rotateKey()).rejects.toMatchObject({ code: 'NOT_ENROLLED' })
  const other = await joined()
  const stopped = other.link.stop()
  await expect(other.link.rotateKey()).rejects.toMatchObject({ code: 'STOPPING' })
  await other.settle()
  await stopped
})

test('a directory that takes nothing leaves the device with the key that it has, and with its syncs', async () => {
  const device = await joined()
  const before = keyOf(device)
  device.keys.readOnly = true
  const kept = device.link.rotateKey()
  await Promise.all([expect(kept).rejects.toMatchObject({ code: 'STATE_UNWRITABLE' }), device.settle()])
  expect(device.conditions).toEqual([])
  await twin.call('POST', `${path(device)}/rotate-key`)
  await device.sync()
  expect(device.conditions).toEqual(['device: STATE_UNWRITABLE'])
  await device.charge(TOKEN)
  await device.sync()
  expect(device.link.status()).toMatchObject({ backlog: 0, key: { id: before } })
  device.keys.readOnly = false
  await rotate(device)
  expect(keyOf(device)).not.toBe(before)
  await expectEqualLedgers(device)
})

test('a terminated device with a fresh token enrolls only with the key that its ledger names', async () => {
  const device = await joined()
  await rotate(device)
  device.network.tamper = (request, answer) => {
    // The twin has accepted the next key, and the device cannot put it in its place.
    if (request.url.endsWith('/keys')) device.keys.readOnly = true
    return answer
  }
  await rotate(device)
  const { keyId, keyLinks } = device.disk.read().identity ?? {}
  expect(keyLinks).toHaveLength(2)
  expect(device.keyPlace.next?.signer.keyId).toBe(keyId)
  expect((await twin.call('POST', `${path(device)}/terminate`)).status).toBe(200)
  for (let rounds = 0; rounds < 3; rounds += 1) await device.sync()
  device.token = await twin.enrollmentToken(instanceId)
  for (let rounds = 0; rounds < 2; rounds += 1) await device.sync()
  expect(device.disk.read().identity).toMatchObject({ keyId, keyLinks, suspension: { state: 'TERMINATED' } })
  device.keys.readOnly = false
  for (let rounds = 0; rounds < 2; rounds += 1) await device.sync()
  expect(device.conditions).toEqual([])
  expect(device.disk.read().identity).toMatchObject({ keyId, keyLinks, suspension: null })
  expect((await shown(device)).key).toMatchObject({ id: keyOf(device), next: null })
})

test('a key that the twin does not take is not used; ordered again, another one is made', async () => {
  const other = await joined()
  const device = await joined()
  const before = keyOf(device)
  // The device was given the key of another device.
  device.keyPlace.next = other.keyPlace.current
  await device.restart()
  await rotate(device)
  expect(device.conditions).toEqual(['device: DEVICE_KEY_REFUSED'])
  expect(keyOf(device)).toBe(before)
  await device.charge(TOKEN)
  await device.sync()
  expect(device.link.status()).toMatchObject({ backlog: 0 })
  await rotate(device)
  expect(keyOf(device)).not.toBe(before)
  expect(keyOf(device)).not.toBe(keyOf(other))
  await expectEqualLedgers(device)
})

test('an answer for another nonce, or with another key in it, changes nothing', async () => {
  const device = await joined()
  const before = keyOf(device)
  await rotate(device)
  const after = keyOf(device)
  expect(after).not.toBe(before)
  // The answer to the change before, shown again.
  device.network.faults = ['OLD_ANSWER']
  const kept = device.link.rotateKey()
  await device.settle()
  await kept
  expect(device.conditions).toEqual(['device: ANSWER_UNEXPECTED'])
  expect(keyOf(device)).toBe(after)
  await device.sync()
  expect(keyOf(device)).not.toBe(after)
  await expectEqualLedgers(device)
})

describe.each(FAULTS.filter((fault) => fault !== 'DELAY_REQUEST'))('with the fault %s', (fault) => {
  test.each([0, 1, 2, 3])('at call %i of a change the device is never locked out', async (call) => {
    const device = await joined()
    const before = keyOf(device)
    await device.charge(TOKEN)
    device.network.faults = [...Array.from({ length: call }, () => null), fault]
    await rotate(device)
    expect(await device.charge(TOKEN)).toBe('GRANTED')
    for (let rounds = 0; rounds < 3; rounds += 1) await device.sync()
    expect(keyOf(device)).not.toBe(before)
    expect((await shown(device)).key.id).toBe(keyOf(device))
    await expectEqualLedgers(device)
  })
})

test('wherever the process ends during a change, the device continues with one of the two keys, and nothing is lost', async () => {
  const crashes: number[] = []
  let durable = 0n
  for (let crash = 1; crash <= 8; crash += 1) {
    const device = await joined()
    const before = keyOf(device)
    await device.charge(TOKEN)
    device.disk.commitsUntilCrash = crash
    const kept = device.link.rotateKey().catch(() => undefined)
    await device.settle()
    await kept
    if (device.fatal.length > 0) crashes.push(crash)
    device.disk.commitsUntilCrash = Infinity
    await device.restart()
    await device.settle()
    expect(device.fatal).toEqual([])
    if (keyOf(device) === before) await rotate(device)
    expect(keyOf(device)).not.toBe(before)
    expect(device.disk.read().identity?.keyId).toBe(keyOf(device))
    await device.sync()
    expect(device.conditions).toEqual([])
    expect(device.link.status()).toMatchObject({ backlog: 0, unacknowledgedSeq: null, epoch: 1 })
    expect((await shown(device)).key.id).toBe(keyOf(device))
    durable += device.durable.charged
    const stopped = device.link.stop()
    await device.settle()
    await stopped
  }
  // The next key, that it is wanted, that it is the device's, its file, the segment that follows, and its answer.
  expect(crashes).toEqual([1, 2, 3, 4, 5, 6])
  expect(await twin.used(instanceId, 'ACT-1')).toBe(Number(durable) / 1e6)
}, 60_000)

test('a segment that was sealed under the previous key is delivered unchanged, and billed once', async () => {
  const device = await joined()
  const before = keyOf(device)
  await device.charge(5n * TOKEN)
  device.network.faults = ['LOSE_ANSWER']
  await device.sync()
  const sealed = device.disk.read().unacknowledged
  expect(namedKey(sealed?.document ?? '')).toBe(before)
  expect(device.link.status().unacknowledgedSeq).not.toBeNull()
  await rotate(device)
  expect(keyOf(device)).not.toBe(before)
  expect((await device.journal.sealed(sealed?.seq ?? 0))?.document).toBe(sealed?.document)
  await device.charge(1n * TOKEN)
  await expectEqualLedgers(device)
})

describe('a twin that was restored from a backup', () => {
  const save = async (): Promise<void> => {
    await twin.stop()
    await cp(twin.settings.store.path, backup, { recursive: true })
    await twin.start()
  }
  const restore = async (): Promise<void> => {
    await twin.stop()
    await rm(twin.settings.store.path, { recursive: true })
    await cp(backup, twin.settings.store.path, { recursive: true })
    await twin.start((settings) => ({ ...settings, store: { ...settings.store, restored: true } }))
  }
  /** The twin listens elsewhere after each start. */
  const follow = (device: TestDevice): void => {
    const { exchange, close } = createExchange(EXCHANGE_DEFAULTS)
    onTestFinished(close)
    device.network.intercept = (request) => {
      const url = new URL(request.url)
      url.port = new URL(twin.cloud.address).port
      return exchange({ ...request, url: url.href })
    }
  }

  test('takes a device back that has replaced its key since, any number of times, with all that it has used', async () => {
    const device = await joined()
    follow(device)
    await device.charge(4n * TOKEN)
    await device.sync()
    await save()
    for (let times = 0; times < 3; times += 1) {
      await device.charge(2n * TOKEN)
      await device.sync()
      await rotate(device)
      await device.charge(1n * TOKEN)
    }
    const key = keyOf(device)
    await restore()
    expect((await shown(device)).key.id).not.toBe(key)
    await device.sync()
    expect((await shown(device)).key.id).toBe(key)
    for (let rounds = 0; rounds < 4; rounds += 1) await device.sync()
    await device.restart()
    await expectEqualLedgers(device)
    expect(await actions(device)).toEqual(['REPLACE_DEVICE_KEY'])
    await rotate(device)
    await expectEqualLedgers(device)
  })

  test('knows the next key, announced and not used: nothing has to be shown', async () => {
    const device = await joined()
    follow(device)
    // The announcement is heard, its answer is lost.
    device.network.faults = ['LOSE_ANSWER']
    await rotate(device)
    await save()
    await device.sync()
    await device.sync()
    await restore()
    await device.sync()
    await expectEqualLedgers(device)
  })

  test('enrolls the same device again, with a fresh token after the end of its service', async () => {
    const device = await joined()
    follow(device)
    const deviceId = device.disk.read().identity?.deviceId
    await device.charge(4n * TOKEN)
    await device.sync()
    await save()
    await rotate(device)
    expect((await twin.call('POST', `${path(device)}/terminate`)).status).toBe(200)
    for (let rounds = 0; rounds < 3; rounds += 1) await device.sync()
    await restore()
    device.token = await twin.enrollmentToken(instanceId)
    for (let rounds = 0; rounds < 3; rounds += 1) await device.sync()
    expect(device.conditions).toEqual([])
    expect(device.disk.read().identity?.deviceId).toBe(deviceId)
    expect((await shown(device)).key.id).toBe(keyOf(device))
    const { body } = await twin.call('GET', '/edge/api/v1/devices')
    expect(deviceList.parse(body).devices).toHaveLength(1)
  })

  test('takes a device back that lost its ledger after a change of its key, and enrolled again', async () => {
    const device = await joined()
    follow(device)
    await save()
    await rotate(device)
    device.disk = new TestDisk()
    device.token = await twin.enrollmentToken(instanceId)
    await device.restart()
    await device.settle()
    await rotate(device)
    await device.charge(TOKEN)
    await restore()
    for (let rounds = 0; rounds < 4; rounds += 1) await device.sync()
    expect(device.conditions).toEqual([])
    expect((await shown(device)).key.id).toBe(keyOf(device))
    expect(await twin.used(instanceId, 'ACT-1')).toBe(1)
  })

  test('enrolls the same device again, which lost its ledger after a change of its key', async () => {
    const device = await joined()
    follow(device)
    const deviceId = device.disk.read().identity?.deviceId
    await save()
    await rotate(device)
    await restore()
    device.disk = new TestDisk()
    device.token = await twin.enrollmentToken(instanceId)
    await device.restart()
    await device.settle()
    expect(device.conditions).toEqual([])
    expect(device.disk.read().identity?.deviceId).toBe(deviceId)
    expect((await shown(device)).key.id).toBe(keyOf(device))
  })

  test('does not know a device that lost the links from the key it knows, which is refused as one with an unknown key', async () => {
    const device = await joined()
    follow(device)
    await save()
    await rotate(device)
    device.disk = new TestDisk()
    // The file of a provided key has no links.
    device.keyPlace.links = []
    device.token = await twin.enrollmentToken(instanceId)
    await device.restart()
    await device.settle()
    await rotate(device)
    await restore()
    for (let rounds = 0; rounds < 2; rounds += 1) await device.sync()
    expect(device.conditions).toEqual(['device: TOKEN_INVALID'])
    expect(device.activePolicies.isDeviceRefused).toBe(true)
  })

  test('enrolls no other device in its place, if the backup is from before its enrollment', async () => {
    await save()
    const device = await joined()
    follow(device)
    await rotate(device)
    await twin.call('POST', `${path(device)}/terminate`)
    for (let rounds = 0; rounds < 3; rounds += 1) await device.sync()
    await restore()
    device.token = await twin.enrollmentToken(instanceId)
    await device.sync()
    const refusal = device.link.status().conditions.find(({ subject }) => subject === 'enrollment')
    expect(refusal).toMatchObject({
      code: 'DEVICE_UNKNOWN',
      message: expect.stringMatching(/does not know the device .* backup that is older than the enrollment/) as string,
    })
    const { body } = await twin.call('GET', '/edge/api/v1/devices')
    expect(deviceList.parse(body).devices).toEqual([])

    // The way out: another state directory, and with it another key.
    const anew = await joined()
    await anew.sync()
    expect(await anew.charge(TOKEN)).toBe('GRANTED')
  })
})

describe('the holder of a copied key', () => {
  /** The same key and ledger, on another machine. */
  async function copyOf(device: TestDevice): Promise<TestDevice> {
    const copy = await deviceAt(twin, instanceId)
    copy.disk = device.disk.copy()
    Object.assign(copy.keyPlace, device.keyPlace)
    await copy.start()
    await copy.settle()
    return copy
  }

  test('is refused once the device has replaced it', async () => {
    const device = await joined()
    const copy = await copyOf(device)
    await rotate(device)
    await device.sync()
    await copy.sync()
    expect(copy.conditions).toContain('sync: DEVICE_KEY_REPLACED')
    expect(copy.activePolicies.isDeviceRefused).toBe(true)
    await Promise.all([copy.link.rotateKey(), copy.settle()])
    await copy.sync()
    expect(keyOf(copy)).not.toBe(keyOf(device))
    expect((await shown(device)).key.id).toBe(keyOf(device))
    await device.charge(TOKEN)
    await device.sync()
    expect(device.link.status()).toMatchObject({ backlog: 0 })
  })

  test('that changes the key first locks out the device, which reports it and keeps its undelivered usage', async () => {
    const device = await joined()
    const copy = await copyOf(device)
    await rotate(copy)
    await copy.sync()
    expect(await device.charge(TOKEN)).toBe('GRANTED')
    await device.sync()
    expect(device.conditions.join()).toMatch('DEVICE_KEY_REPLACED')
    expect(device.link.status()).toMatchObject({ backlog: 1 })
    expect(await device.charge(TOKEN)).toBe('GRANTED')
  })
})
