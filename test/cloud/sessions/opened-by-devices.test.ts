// Sessions that the agent of a device opens in the cloud for itself: one per instance, kept alive by its syncs.
import { randomUUID } from 'node:crypto'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { auditList } from '../../../src/protocol/edge/administration.ts'
import { EDGE, EdgeClient } from '../devices/edge-client.ts'
import { DAY, HOUR, MINUTE, START, type Twin, openTwin, pick, text } from '../harness.ts'

const SESSIONS = '/api/v1.1/sessions'

let twin: Twin
let instanceId: string
let client: EdgeClient
beforeEach(async () => {
  twin = await openTwin()
  instanceId = await twin.shop({ quantity: 100 })
  client = await EdgeClient.join(twin, instanceId)
})
afterEach(async () => twin[Symbol.asyncDispose]())

async function open(opening: string | null, { as = client, of = instanceId } = {}) {
  return twin.call('POST', SESSIONS, {
    token: await as.token({ audience: [of] }),
    headers: { 'x-instance-id': of, ...(opening === null ? {} : { 'idempotency-key': opening }) },
    body: { instanceId: of },
  })
}
const opened = async (opening: string | null, as = client): Promise<string> =>
  text((await open(opening, { as })).body, 'sessionId')
const show = async (id: string) => (await twin.call('GET', `${SESSIONS}/${id}`)).body
const stateOf = async (id: string) => pick(await show(id), 'state')
/** A client charges the session for an hour. */
const print = (id: string, count = 10) =>
  twin.call('PUT', `${SESSIONS}/${id}`, {
    body: {
      requester: { type: 'user', value: 'ada' },
      rollbackOnDeny: true,
      requestedItems: [{ item: 'Print', count }],
    },
  })
const used = () => twin.used(instanceId, 'ACT-1')
const lastHeartbeat = async (id: string) => {
  const { body } = await twin.call('GET', `${SESSIONS}?instanceId=${instanceId}`)
  return (body as { sessionId: string; lastHeartBeat: number }[]).find(({ sessionId }) => sessionId === id)
    ?.lastHeartBeat
}
const audited = async () => {
  const { body } = await twin.call('GET', `${EDGE}/audit?deviceId=${client.id}&sessions=true`)
  return auditList
    .parse(body)
    .records.filter(({ action }) => action.endsWith('_SESSION'))
    .map(({ action, sessionId, instanceId: of }) => [action, sessionId, of])
}

describe('opening', () => {
  it('again with the same key returns the same session, also once it has ended, and is audited once', async () => {
    const id = await opened('first')
    twin.now += MINUTE
    expect(await opened('first')).toBe(id)
    await twin.call('DELETE', `${SESSIONS}/${id}`)
    expect(await opened('first')).toBe(id)
    expect(await stateOf(id)).toBe('TERMINATED')
    expect(await audited()).toEqual([
      ['CLOSE_SESSION', id, instanceId],
      ['OPEN_SESSION', id, instanceId],
    ])
  })

  it('with another key ends the previous session, refunds the rest of its interval, and records it in the audit', async () => {
    const first = await opened('first')
    await print(first)
    twin.now += 15 * MINUTE
    const second = await opened('second')
    expect(second).not.toBe(first)
    expect([await stateOf(first), await stateOf(second), await used()]).toEqual(['TERMINATED', 'IDLE', 2.5])
    expect(await audited()).toEqual([
      ['OPEN_SESSION', second, instanceId],
      ['CLOSE_SESSION', first, instanceId],
      ['OPEN_SESSION', first, instanceId],
    ])
    const third = await opened('third')
    expect((await audited()).slice(0, 2)).toEqual([
      ['OPEN_SESSION', third, instanceId],
      ['CLOSE_SESSION', second, instanceId],
    ])
  })

  it('leaves alone the sessions of other devices, of other instances and of clients', async () => {
    const other = await EdgeClient.join(twin, instanceId)
    const theirs = await opened('first', other)
    const plain = text((await twin.call('POST', SESSIONS, { body: { instanceId } })).body, 'sessionId')
    const first = await opened('first')
    expect(first).not.toBe(theirs)
    await opened('second')
    expect([await stateOf(theirs), await stateOf(plain), await stateOf(first)]).toEqual(['IDLE', 'IDLE', 'TERMINATED'])
  })

  it('without a key adds a session each time', async () => {
    const [first, second] = [await opened(null), await opened(null)]
    expect(second).not.toBe(first)
    await opened('with a key')
    expect([await stateOf(first), await stateOf(second)]).toEqual(['IDLE', 'IDLE'])
    expect(await audited()).toHaveLength(3)
  })

  it('by a client with a key adds a session each time: the key is for devices', async () => {
    const ask = async () =>
      text(
        (await twin.call('POST', SESSIONS, { body: { instanceId }, headers: { 'idempotency-key': 'first' } })).body,
        'sessionId',
      )
    const [first, second] = [await ask(), await ask()]
    expect([first === second, await stateOf(first)]).toEqual([false, 'IDLE'])
  })

  it('is refused to a locked device and for an unknown instance, and opens nothing', async () => {
    await twin.call('POST', `${EDGE}/devices/${client.id}/lock`)
    expect(pick((await open('first')).body, 'code')).toBe('DEVICE_LOCKED')
    await twin.call('POST', `${EDGE}/devices/${client.id}/unlock`)
    expect((await twin.call('POST', SESSIONS, { body: { instanceId: randomUUID() } })).status).toBe(404)
    expect((await twin.call('GET', `${SESSIONS}?instanceId=${instanceId}`)).body).toEqual([])
  })
})

describe('a sync', () => {
  it('is the heartbeat of all sessions of its device, and of no other', async () => {
    const other = await EdgeClient.join(twin, instanceId)
    const [own, second, theirs] = [await opened('a'), await opened(null), await opened('a', other)]
    twin.now += MINUTE
    await client.device.sync()
    const beats = [await lastHeartbeat(own), await lastHeartbeat(second), await lastHeartbeat(theirs)]
    expect(beats).toEqual([START + MINUTE, START + MINUTE, 0])
  })

  it('in time keeps a charged session: it is renewed, and nothing comes back', async () => {
    const id = await opened('a')
    await print(id)
    await twin.advance(HOUR)
    await twin.advance(29 * MINUTE)
    await client.device.sync()
    await twin.advance(MINUTE)
    expect([await stateOf(id), await used()]).toEqual(['ACTIVE', 20])
  })

  it('that comes too late does not undo a missed heartbeat, though nothing has ended the session yet', async () => {
    const id = await opened('a')
    await print(id)
    await twin.advance(HOUR)
    twin.now += 30 * MINUTE
    await client.device.sync()
    await twin.tick()
    expect([await stateOf(id), await used()]).toEqual(['TERMINATED', 10])
  })

  it('neither renews nor ends a session that is due', async () => {
    const id = await opened('a')
    twin.now += 31 * DAY
    await client.device.sync()
    await twin.tick()
    expect(await stateOf(id)).toBe('TERMINATED')
  })
})

describe('revocation of the device', () => {
  it('disconnects its idle sessions; a charged one ends by its missed heartbeat, with its last charge refunded', async () => {
    const [idle, charged, ended] = [await opened('a'), await opened(null), await opened(null)]
    await print(charged)
    await twin.call('DELETE', `${SESSIONS}/${ended}`)
    twin.now += MINUTE
    await twin.call('POST', `${EDGE}/devices/${client.id}/revoke`)
    const states = async () => [await stateOf(idle), await stateOf(charged), await stateOf(ended)]
    expect(await states()).toEqual(['DISCONNECTED', 'ACTIVE', 'TERMINATED'])
    await twin.advance(59 * MINUTE)
    expect(await used()).toBe(20)
    await twin.advance(30 * MINUTE)
    expect(await states()).toEqual(['DISCONNECTED', 'TERMINATED', 'TERMINATED'])
    expect(await used()).toBe(10)
    await twin.advance(30 * DAY)
    expect((await twin.call('GET', `${SESSIONS}/${idle}`)).status).toBe(404)
  })
})
