// What becomes of a whole twin whose clock is wrong.
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { DAY, HOUR, MINUTE, type Twin, itemsOf, openTwin, pick, text } from '../harness.ts'
import { EdgeClient } from '../devices/edge-client.ts'
import { topUpRequest } from '../sync/test-device.ts'

let twin: Twin
let instanceId: string
beforeEach(async () => {
  twin = await openTwin()
  instanceId = await twin.shop()
})
afterEach(async () => twin[Symbol.asyncDispose]())

const SWEEPS = '/edge/api/v1/sweeps'
const sweeps = async () => (await twin.call('GET', SWEEPS)).body
const confirm = (what: string) => twin.call('POST', `${SWEEPS}/${what}/confirm`)
const ready = async () => (await fetch(new URL('/readyz', twin.cloud.address))).json()
const metric = async (code: string) => {
  const page = await (await fetch(twin.cloud.metricsAddress)).text()
  return new RegExp(`^tallygate_sweeps_paused\\{code="${code}"\\} (\\d)`, 'm').exec(page)?.[1]
}

async function openSession(): Promise<string> {
  const { body } = await twin.call('POST', '/api/v1.1/sessions', { body: { instanceId } })
  const id = text(body, 'sessionId')
  const requester = { type: 'user', value: 'LisaBarry' }
  const granted = await twin.call('PUT', `/api/v1.1/sessions/${id}`, {
    body: { requester, rollbackOnDeny: true, requestedItems: itemsOf({ Print: 1 }) },
  })
  expect(granted.status).toBe(200)
  return id
}
const state = (id: string) => twin.read(async (reader) => (await reader.sessions.get(id))?.state)

describe('a clock that jumps by a month', () => {
  it('ends, charges and deletes no session, and reports the clock until it has jumped back', async () => {
    const id = await openSession()
    expect(await state(id)).toBe('ACTIVE')
    const used = await twin.used(instanceId, 'ACT-1')
    twin.clockAheadMs = 31 * DAY
    await twin.advance(MINUTE)
    expect([await state(id), await twin.used(instanceId, 'ACT-1')]).toEqual(['ACTIVE', used])
    expect(await ready()).toEqual({ status: 'ready', conditions: ['CLOCK_JUMPED'] })
    expect(await metric('CLOCK_JUMPED')).toBe('1')
    expect(pick(await sweeps(), 'clock')).toEqual({ code: 'CLOCK_JUMPED', aheadMs: 31 * DAY })

    twin.clockAheadMs = 0
    await twin.advance(MINUTE)
    expect(await ready()).toEqual({ status: 'ready' })
    expect(await metric('CLOCK_JUMPED')).toBe('0')
    expect(pick(await sweeps(), 'clock')).toBeNull()
    expect(await state(id)).toBe('ACTIVE')
    expect(await twin.used(instanceId, 'ACT-1')).toBe(used)
  })

  it('settles and fences no device, which is served on', async () => {
    const { device } = await EdgeClient.join(twin, instanceId)
    const line = lineAccount(instanceId, 'ACT-1', 0)
    await device.sync([topUpRequest(line, 0n, 5_000_000n)])
    twin.clockAheadMs = 31 * DAY
    await twin.tick()
    const epoch = () => twin.read((reader) => reader.edge.epochs.get(device.id, 1))
    expect(await epoch()).toMatchObject({ status: 'ACTIVE', settledAt: null })
    expect(await device.sync([topUpRequest(line, 0n, 6_000_000n)])).toMatchObject({ outcome: 'MERGED' })
    twin.clockAheadMs = 62 * DAY
    await twin.tick()
    await confirm('clock')
    await twin.tick()
    expect(await epoch()).toMatchObject({ status: 'ACTIVE', settledAt: null })
    await twin.advance(31 * DAY)
    await twin.tick()
    expect(await epoch()).toMatchObject({ status: 'FENCED', fenceReason: 'SILENT' })
  })

  it.each([
    ['behind', -40 * DAY],
    ['ahead', 40 * DAY],
  ])('counts silence by the time that has passed while the clock is %s', async (_name, aheadMs) => {
    const line = lineAccount(instanceId, 'ACT-1', 0)
    const [silent, heard, attached] = [
      await EdgeClient.join(twin, instanceId),
      await EdgeClient.join(twin, instanceId),
      await EdgeClient.join(twin, instanceId),
    ]
    for (const { device } of [silent, heard, attached]) await device.sync([topUpRequest(line, 0n, 5_000_000n)])
    const due = async () => pick(await sweeps(), 'settlement', 'due')
    twin.clockAheadMs = aheadMs
    await twin.advance(10 * DAY)
    await silent.device.sync([topUpRequest(line, 0n, 6_000_000n)])
    await twin.advance(21 * DAY)
    await heard.device.sync([topUpRequest(line, 0n, 6_000_000n)])
    await attached.device.attach()
    await twin.advance(8 * DAY)
    twin.clockAheadMs = 0
    expect(await due()).toBe(0)
    twin.now += DAY + 1
    expect(await due()).toBe(1)
    twin.now += 21 * DAY
    expect(await due()).toBe(3)
  })

  it('charges and ends no session whose client sends a request', async () => {
    const id = await openSession()
    const used = await twin.used(instanceId, 'ACT-1')
    twin.clockAheadMs = 31 * DAY
    const heartbeat = await twin.call('GET', `/api/v1.1/sessions/${id}/heartbeat`)
    expect([heartbeat.status, await state(id)]).toEqual([204, 'ACTIVE'])
    expect(await twin.used(instanceId, 'ACT-1')).toBe(used)
  })

  it('is trusted when an administrator confirms it', async () => {
    await openSession()
    const used = await twin.used(instanceId, 'ACT-1')
    twin.clockAheadMs = 31 * DAY
    await twin.tick()
    expect(await twin.used(instanceId, 'ACT-1')).toBe(used)
    expect((await confirm('clock')).body).toMatchObject({ clock: null })
    expect((await confirm('clock')).status).toBe(409)
    await twin.tick()
    expect(await twin.used(instanceId, 'ACT-1')).toBeGreaterThan(used)
  })

  it('is noticed over a restart, and by a machine that was booted', async () => {
    const id = await openSession()
    await twin.stop()
    twin.clockAheadMs = 31 * DAY
    await twin.start()
    await twin.tick()
    expect(await ready()).toEqual({ status: 'ready', conditions: ['CLOCK_JUMPED'] })
    await twin.stop()
    twin.bootId = 'second'
    await twin.start()
    await twin.tick()
    expect(await ready()).toEqual({ status: 'ready', conditions: ['CLOCK_AHEAD_OF_RECORD'] })
    expect(await state(id)).toBe('ACTIVE')
  })

  it('leaves no rules behind that do not reach back to the present', async () => {
    await twin.lineItem(instanceId, { attributes: { elastic: true, resetFrequency: 'DAILY' } })
    twin.clockAheadMs = 400 * DAY
    await twin.lineItem(instanceId, { attributes: { elastic: true, resetFrequency: 'DAILY' }, quantity: 7 })
    twin.clockAheadMs = 0
    const { body } = await twin.access(instanceId, { Print: 1 })
    expect(pick(body, 'requestedItems', 0, 'status', 'code')).toBe('1001')
  })
})

it('settlement that waits for an administrator is shown, and confirmed once', async () => {
  expect(await sweeps()).toMatchObject({ settlement: { paused: false, due: 0, settled: 0, allowed: 1 } })
  expect((await confirm('settlement')).status).toBe(409)
  const token = await twin.clientToken(instanceId)
  expect((await twin.call('GET', SWEEPS, { token })).status).toBe(403)
  twin.now += HOUR
  expect((await twin.call('POST', `${SWEEPS}/clock/confirm`, { token })).status).toBe(403)
})
