// What the cloud's own clients and sessions lack while devices hold it, over HTTP: it is recalled, and reserved for them.
import { randomUUID } from 'node:crypto'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { HOUR, MINUTE, type SettingsChange, type Twin, itemsOf, openTwin, pick, text } from '../../harness.ts'
import { EDGE, EdgeClient } from '../../devices/edge-client.ts'
import { topUpRequest } from '../test-device.ts'

const TOKENS = 1_000_000n

let twin: Twin
let instanceId: string
let device: EdgeClient['device']
let line: string

async function open(change?: SettingsChange): Promise<void> {
  twin = await openTwin(change)
  instanceId = await twin.shop()
  const client = await EdgeClient.join(twin, instanceId)
  device = client.device
  line = client.line()
}
beforeEach(async () => open())
afterEach(async () => twin[Symbol.asyncDispose]())

const hold = (tokens: bigint) => device.sync([topUpRequest(line, 0n, tokens * TOKENS)])
const statusOf = async (count: number) => {
  const { body } = await twin.access(instanceId, { Print: count })
  return pick(body, 'requestedItems', 0, 'status', 'code')
}
/** Does as an idle device does: returns all that is recalled. */
async function obey(): Promise<readonly { readonly account: string; readonly keep: bigint }[]> {
  const answer = await device.sync()
  if (answer.outcome !== 'MERGED') throw new Error(answer.outcome)
  for (const { account } of answer.releases) device.giveBack(account)
  if (answer.releases.length > 0) await device.sync()
  return answer.releases
}

describe('a request at the cloud that the pool cannot pay', () => {
  it('is refused, recalls tokens from devices, and is granted when the client asks again', async () => {
    await hold(100n)
    expect(await obey()).toEqual([])
    expect(await statusOf(30)).toBe('2002')
    expect(await obey()).toEqual([{ account: line, keep: 70n * TOKENS }])
    expect(await statusOf(30)).toBe('1001')
    expect(await obey()).toEqual([])
  })

  it('recalls tokens of the line item whose devices can return them', async () => {
    await twin.lineItem(instanceId, { activationId: 'ACT-2' })
    await hold(100n)
    await device.attach()
    const other = line.replace('ACT-1', 'ACT-2')
    await device.sync([topUpRequest(other, 0n, 100n * TOKENS)])
    expect(await statusOf(30)).toBe('2002')
    expect(await obey()).toEqual([{ account: other, keep: 70n * TOKENS }])
    expect(await statusOf(30)).toBe('1001')
  })

  it('recalls nothing if devices do not have enough either, or if rules refuse the request', async () => {
    await hold(60n)
    expect(await statusOf(101)).toBe('2002')
    await twin.access(instanceId, { Scan: 1 })
    expect(await obey()).toEqual([])
    expect(await statusOf(99)).toBe('2002')
    expect(await obey()).not.toEqual([])
    expect(await statusOf(99)).toBe('1001')
  })

  it('recalls for the largest of the refused requests, and keeps the tokens from grants in advance', async () => {
    await hold(100n)
    for (const count of [20, 50, 30]) expect(await statusOf(count)).toBe('2002')
    const answer = await device.sync()
    expect(answer).toMatchObject({ releases: [{ account: line, keep: 50n * TOKENS }] })
    device.giveBack(line, 50n * TOKENS)
    device.charge({ lineItemId: 'ACT-1', accounts: [line], amount: TOKENS })
    await device.sync([topUpRequest(line, 90n * TOKENS)])
    expect(device.available(line)).toBe(49n * TOKENS)
    expect(await Promise.all([statusOf(20), statusOf(30)])).toEqual(['1001', '1001'])
  })

  it('says the same in a session', async () => {
    await hold(100n)
    const { body } = await twin.call('POST', '/api/v1.1/sessions', { body: { instanceId } })
    const request = () =>
      twin.call('PUT', `/api/v1.1/sessions/${text(body, 'sessionId')}`, {
        body: {
          requester: { type: 'user', value: 'ada' },
          rollbackOnDeny: true,
          requestedItems: itemsOf({ Print: 40 }),
        },
      })
    expect((await request()).status).toBe(403)
    expect(await obey()).toEqual([{ account: line, keep: 60n * TOKENS }])
    expect((await request()).status).toBe(200)
  })
})

describe('a session of the cloud', () => {
  it('continues where devices sync more often than every 30 seconds', async () => {
    await twin[Symbol.asyncDispose]()
    await open((settings) => ({
      ...settings,
      edge: { ...settings.edge, syncEvery: 5_000 },
      sessions: { ...settings.sessions, trialInterval: 40_000 },
    }))
    for (let second = 0; second < 15; second += 1) await twin.advance(1_000)
    const { body } = await twin.call('POST', '/api/v1.1/sessions', { body: { instanceId } })
    const session = `/api/v1.1/sessions/${text(body, 'sessionId')}`
    await twin.call('PUT', session, {
      body: { requester: { type: 'user', value: 'ada' }, rollbackOnDeny: true, requestedItems: itemsOf({ Print: 40 }) },
    })
    await hold(60n)
    for (let second = 0; second < 39; second += 1) {
      await twin.advance(1_000)
      await obey()
    }
    expect(device.available(line)).toBe(0n)
    await twin.advance(2_000)
    expect(pick((await twin.call('GET', session)).body, 'state')).toBe('ACTIVE')
    expect(await twin.used(instanceId, 'ACT-1')).toBe(80)
  })

  it('continues although an idle device has the tokens of its next interval: they are recalled ahead of time', async () => {
    const { body } = await twin.call('POST', '/api/v1.1/sessions', { body: { instanceId } })
    const sessionId = text(body, 'sessionId')
    await twin.call('PUT', `/api/v1.1/sessions/${sessionId}`, {
      body: { requester: { type: 'user', value: 'ada' }, rollbackOnDeny: true, requestedItems: itemsOf({ Print: 40 }) },
    })
    await hold(60n)
    await twin.advance(30 * MINUTE)
    expect(await obey()).toEqual([])
    await twin.advance(25 * MINUTE)
    await obey()
    expect(device.available(line)).toBe(0n)
    // Until the renewal nothing of it can be had in advance.
    await device.sync([topUpRequest(line, 60n * TOKENS)])
    expect(device.available(line)).toBeLessThanOrEqual(20n * TOKENS)
    await twin.advance(6 * MINUTE)
    const shown = await twin.call('GET', `/api/v1.1/sessions/${sessionId}`)
    expect(pick(shown.body, 'state')).toBe('ACTIVE')
    expect(await twin.used(instanceId, 'ACT-1')).toBe(80)
    await twin.advance(HOUR)
  })
})

describe('the reserve of the cloud', () => {
  const path = (lineItemId = 'ACT-1') => `${EDGE}/instances/${instanceId}/line-items/${lineItemId}/cloud-reserve`
  const reserve = async (tokens: bigint) =>
    (await twin.call('PUT', path(), { body: { tokens: String(tokens * TOKENS) } })).body

  it('is never granted to devices, and includes the charges of the cloud', async () => {
    expect((await twin.call('GET', path())).body).toEqual({
      ...{ instanceId, lineItemId: 'ACT-1' },
      tokens: '0',
      onDevices: '0',
    })
    expect(await reserve(30n)).toMatchObject({ tokens: String(30n * TOKENS), onDevices: '0' })
    const answer = await hold(71n)
    expect(answer).toMatchObject({ grant: { accounts: [{ available: 70n * TOKENS }] } })
    await hold(70n)
    expect(device.available(line)).toBe(70n * TOKENS)
    expect(device.state.exhausted.has(line)).toBe(true)
    expect(await statusOf(30)).toBe('1001')
    expect(await statusOf(1)).toBe('2002')
  })

  it('is recalled from devices that have some of it', async () => {
    await hold(100n)
    expect(await reserve(30n)).toMatchObject({ onDevices: String(30n * TOKENS) })
    await twin.tick()
    expect(await obey()).toEqual([{ account: line, keep: 70n * TOKENS }])
    expect((await twin.call('GET', path())).body).toMatchObject({ onDevices: '0' })
    expect(await statusOf(30)).toBe('1001')
  })

  it('is in the audit, and ends with its line item', async () => {
    await reserve(30n)
    const { body } = await twin.call('GET', `${EDGE}/audit`)
    expect(pick(body, 'records', 0)).toMatchObject({
      action: 'SET_CLOUD_RESERVE',
      instanceId,
      lineItemId: 'ACT-1',
      detail: expect.stringContaining('30') as string,
    })
    await twin.lineItem(instanceId, { state: 'OBSOLETE' })
    await twin.call('DELETE', `/provisioning/api/v1.1/instances/${instanceId}/line-items/ACT-1`)
    expect((await twin.call('GET', path())).status).toBe(404)
    await twin.lineItem(instanceId)
    expect((await twin.call('GET', path())).body).toMatchObject({ tokens: '0' })
  })

  it('is for line items that there are, and for administrators', async () => {
    expect((await twin.call('PUT', path('ACT-9'), { body: { tokens: '1' } })).status).toBe(404)
    expect((await twin.call('PUT', path(), { body: { tokens: '-1' } })).status).toBe(400)
    const token = await twin.clientToken(instanceId)
    expect((await twin.call('PUT', path(), { body: { tokens: '1' }, token })).status).toBe(403)
    expect((await twin.call('GET', path().replace(instanceId, randomUUID()))).status).toBe(404)
  })
})
