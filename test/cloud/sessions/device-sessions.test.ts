// Sessions that a device keeps, as the twin shows them and as its administrator reaches them.
import { randomUUID } from 'node:crypto'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { SessionSnapshot } from '../../../src/protocol/edge/sessions.ts'
import type { SyncAnswer } from '../../../src/protocol/edge/sync.ts'
import { DAY, HOUR, START, type Twin, openTwin, pick, refusal } from '../harness.ts'
import { EDGE, EdgeClient } from '../devices/edge-client.ts'

const SESSIONS = '/api/v1.1/sessions'

let twin: Twin
let instanceId: string
let client: EdgeClient
beforeEach(async () => {
  twin = await openTwin()
  instanceId = await twin.shop({ quantity: 100 }, 3)
  client = await EdgeClient.join(twin, instanceId)
})
afterEach(async () => twin[Symbol.asyncDispose]())

function snapshot(id: string, changes: Partial<SessionSnapshot> = {}): SessionSnapshot {
  return {
    id,
    instanceId,
    state: 'ACTIVE',
    created: START,
    since: START,
    lastHeartbeat: 0,
    lastAccessRequest: START,
    requester: { type: 'user', value: 'ada' },
    charge: {
      from: START,
      until: START + HOUR,
      items: [{ item: 'Print', version: '1.0', count: '2.5', lineItemIds: ['ACT-1'] }],
    },
    ...changes,
  }
}

/** The device reports, and hears what is wanted. */
async function report(...sessions: SessionSnapshot[]): Promise<SyncAnswer> {
  const { device } = client
  const payload = { ...device.payload(), sessions }
  const sealed = await device.sealAs(payload)
  Object.assign(device.state, { unacknowledged: sealed, seq: sealed.seq, hash: sealed.hash })
  const taken = await device.twin.sync(device.id, sealed.document)
  if (!taken.accepted) throw new Error(taken.problem)
  return device.accept(taken.answer)
}

const show = async (id: string) => (await twin.call('GET', `${SESSIONS}/${id}`)).body
const listed = async () => (await twin.call('GET', `${SESSIONS}?instanceId=${instanceId}`)).body
const commandAtDevice = (id: string, what: string, deviceId = client.id) =>
  twin.call('POST', `${EDGE}/devices/${deviceId}/sessions/${id}/${what}`)
const command = (id: string, what: string) => twin.call('POST', `${EDGE}/sessions/${id}/${what}`)

describe('a session that a device keeps', () => {
  it('is listed and shown as the device reports it', async () => {
    const id = randomUUID()
    await report(snapshot(id))
    expect(await listed()).toEqual([
      {
        sessionId: id,
        instanceId,
        state: 'ACTIVE',
        chargedUntil: START + HOUR,
        lastHeartBeat: 0,
        lastAccessRequest: START,
      },
    ])
    expect(await show(id)).toMatchObject({ state: 'ACTIVE', items: [{ item: 'Print', version: '1.0', count: 2.5 }] })
    await report(snapshot(id, { state: 'TERMINATED', charge: null }))
    expect(await listed()).toEqual([])
    expect(await show(id)).toMatchObject({ state: 'TERMINATED', items: [] })
  })

  it('is one session, whether its id is reported in small letters or in capitals', async () => {
    const id = randomUUID()
    await report(snapshot(id))
    await report(snapshot(id.toUpperCase(), { state: 'TERMINATED', instanceId: instanceId.toUpperCase() }))
    expect(await listed()).toEqual([])
    expect(await show(id)).toMatchObject({ state: 'TERMINATED' })
  })

  it('is neither charged nor ended by the twin, however late it is', async () => {
    const id = randomUUID()
    await report(snapshot(id))
    await twin.advance(90 * DAY)
    expect(await show(id)).toMatchObject({ state: 'ACTIVE' })
    expect(await twin.used(instanceId, 'ACT-1')).toBe(0)
  })

  it('takes no requests at the twin, and its heartbeats are the business of the device', async () => {
    const id = randomUUID()
    await report(snapshot(id))
    const body = { requester: { type: 'user', value: 'x' }, rollbackOnDeny: true, requestedItems: [] }
    const refused = await twin.call('PUT', `${SESSIONS}/${id}`, { body })
    expect(refusal(refused)).toEqual([409, 'SESSION_ON_DEVICE'])
    expect((await twin.call('GET', `${SESSIONS}/${id}/heartbeat`)).status).toBe(204)
    expect(await listed()).toMatchObject([{ lastHeartBeat: 0 }])
  })

  it('is distinguished from sessions of the twin, of another device and of another instance', async () => {
    const own = await twin.call('POST', SESSIONS, { body: { instanceId } })
    const id = String(pick(own.body, 'sessionId'))
    const foreign = randomUUID()
    const theirs = randomUUID()
    await report(snapshot(id), snapshot(foreign, { instanceId: await twin.instance('other') }), snapshot(theirs))
    expect(await show(id)).toMatchObject({ state: 'IDLE' })
    expect((await twin.call('GET', `${SESSIONS}/${foreign}`)).status).toBe(404)
    client = await EdgeClient.join(twin, instanceId)
    await report(snapshot(theirs, { state: 'TERMINATED', charge: null }))
    expect(await show(theirs)).toMatchObject({ state: 'ACTIVE' })
  })

  it('has an unknown end when its device attaches again without it, and its real state when it is reported later', async () => {
    const [kept, lost, late] = [randomUUID(), randomUUID(), randomUUID()]
    await report(snapshot(kept), snapshot(lost), snapshot(late, { state: 'LOCKED' }))
    await report()
    expect(await show(lost)).toMatchObject({ state: 'ACTIVE' })
    await client.device.attach()
    expect(await show(lost)).toMatchObject({ state: 'ACTIVE' })
    await report(snapshot(kept))
    expect(await show(kept)).toMatchObject({ state: 'ACTIVE' })
    expect(await show(lost)).toMatchObject({ state: 'DISCONNECTED', items: [] })
    expect(await show(late)).toMatchObject({ state: 'DISCONNECTED' })
    await report(snapshot(late))
    expect(await show(late)).toMatchObject({ state: 'ACTIVE' })
    expect(await show(kept)).toMatchObject({ state: 'ACTIVE' })
  })

  it('is found by its id in upper and lower case, also in the first report of a new epoch', async () => {
    const id = randomUUID()
    await report(snapshot(id.toUpperCase(), { instanceId: instanceId.toUpperCase() }))
    await client.device.attach()
    await report(snapshot(id.toUpperCase()))
    expect(await show(id)).toMatchObject({ state: 'ACTIVE' })
  })

  it('has no requester before its first request, and the one of its last', async () => {
    const [fresh, asked] = [randomUUID(), randomUUID()]
    await report(snapshot(fresh, { requester: null, state: 'IDLE', charge: null }), snapshot(asked))
    const requesterOf = async (id: string) => (await twin.read((reader) => reader.sessions.get(id)))?.requester
    expect(await requesterOf(fresh)).toBeNull()
    expect(await requesterOf(asked)).toEqual({ type: 'user', value: 'ada', dictionary: {} })
  })

  it('ignores commands for the session of another device', async () => {
    const id = randomUUID()
    await report(snapshot(id))
    client = await EdgeClient.join(twin, instanceId)
    await report()
    expect(await show(id)).toMatchObject({ state: 'ACTIVE' })
  })

  it('is of unknown fate once its device is revoked', async () => {
    const id = randomUUID()
    await report(snapshot(id))
    await twin.call('POST', `${EDGE}/devices/${client.id}/revoke`)
    expect(await show(id)).toMatchObject({ state: 'DISCONNECTED' })
  })
})

describe('a command of an administrator for it', () => {
  it.each([
    ['lock', 'LOCK', 'LOCKED'],
    ['terminate', 'TERMINATE', 'TERMINATED'],
  ] as const)('reaches the device with every answer until it is so: %s', async (path, name, state) => {
    const id = randomUUID()
    await report(snapshot(id))
    const accepted = await command(id, path)
    expect([accepted.status, accepted.body]).toEqual([202, { sessionId: id, state: 'ACTIVE', outcome: 'PENDING' }])
    expect(await report()).toMatchObject({ sessions: [{ id, command: name }] })
    expect(await report(snapshot(id))).toMatchObject({ sessions: [{ id, command: name }] })
    expect(await report(snapshot(id, { state }))).toMatchObject({ sessions: [] })
    expect(await show(id)).toMatchObject({ state })
  })

  it('may change before the device has heard of it', async () => {
    const id = randomUUID()
    await report(snapshot(id))
    await command(id, 'lock')
    await command(id, 'unlock')
    expect(await report()).toMatchObject({ sessions: [] })
    expect(await report(snapshot(id, { state: 'LOCKED' }))).toMatchObject({ sessions: [{ id, command: 'UNLOCK' }] })
  })

  it('may be the end of it by the service API: the device receives it', async () => {
    const id = randomUUID()
    await report(snapshot(id))
    expect((await twin.call('DELETE', `${SESSIONS}/${id}`)).status).toBe(202)
    expect(await report()).toMatchObject({ sessions: [{ id, command: 'TERMINATE' }] })
  })

  it.each([
    ['lock', 'LOCK', 'LOCKED'],
    ['terminate', 'TERMINATE', 'TERMINATED'],
  ] as const)('may be ordered of a session that its device has not told of yet: %s', async (path, name, state) => {
    const id = randomUUID()
    await report()
    const noted = await commandAtDevice(id.toUpperCase(), path)
    expect([noted.status, noted.body]).toEqual([202, { sessionId: id, state: null, outcome: 'NOTED' }])
    expect((await twin.call('GET', `${SESSIONS}/${id}`)).status).toBe(404)
    expect(await report()).toMatchObject({ sessions: [] })
    expect(await report(snapshot(id))).toMatchObject({ sessions: [{ id, command: name }] })
    const known = await commandAtDevice(id, path)
    expect([known.status, known.body]).toEqual([202, { sessionId: id, state: 'ACTIVE', outcome: 'PENDING' }])
    expect(await report(snapshot(id, { state }))).toMatchObject({ sessions: [] })
    const audit = (await twin.call('GET', `${EDGE}/audit?deviceId=${client.id}`)).body
    expect(audit).toMatchObject({
      records: [{ sessionId: id }, { action: `${name}_SESSION`, sessionId: id }, { action: 'ENROLL_DEVICE' }],
    })
  })

  it('is the last word, also for a session that was not reported, and is gone when it has ended by then', async () => {
    const [id, ended] = [randomUUID(), randomUUID()]
    await report()
    await commandAtDevice(id, 'lock')
    await commandAtDevice(id, 'unlock')
    await commandAtDevice(ended, 'terminate')
    const told = [snapshot(id), snapshot(ended, { state: 'TERMINATED', charge: null })]
    expect(await report(...told)).toMatchObject({ sessions: [] })
  })

  it('for a session that was not reported is for its device alone, and forgotten after 30 days', async () => {
    const [id, late] = [randomUUID(), randomUUID()]
    const other = await EdgeClient.join(twin, instanceId)
    expect((await commandAtDevice(id, 'lock', other.id)).status).toBe(202)
    expect((await commandAtDevice(late, 'lock')).status).toBe(202)
    expect(await report(snapshot(id))).toMatchObject({ sessions: [] })
    await twin.advance(31 * DAY)
    expect(await report(snapshot(late))).toMatchObject({ sessions: [] })
  })

  it('names a device that there is, that is trusted, and that has the session', async () => {
    const id = randomUUID()
    await report(snapshot(id))
    const other = await EdgeClient.join(twin, instanceId)
    const wrong = await commandAtDevice(id, 'lock', other.id)
    expect([wrong.status, pick(wrong.body, 'message')]).toEqual([
      404,
      `The session ${id} is not of the device ${other.id}.`,
    ])
    expect((await commandAtDevice(id, 'lock', randomUUID())).status).toBe(404)
    expect((await commandAtDevice(randomUUID(), 'lock', randomUUID())).status).toBe(404)
    await twin.call('POST', `${EDGE}/devices/${client.id}/revoke`)
    expect((await commandAtDevice(randomUUID(), 'lock')).status).toBe(409)
  })

  it('is refused for a session that has ended or does not exist', async () => {
    const id = randomUUID()
    await report(snapshot(id, { state: 'TERMINATED', charge: null }))
    expect((await command(id, 'lock')).status).toBe(409)
    expect((await command(randomUUID(), 'lock')).status).toBe(404)
    const token = await twin.clientToken(instanceId)
    expect((await twin.call('POST', `${EDGE}/sessions/${id}/lock`, { token })).status).toBe(403)
  })
})

describe('a session that the twin keeps itself', () => {
  it('is locked at once, refuses requests, and continues when it is unlocked', async () => {
    const opened = await twin.call('POST', SESSIONS, { body: { instanceId } })
    const id = String(pick(opened.body, 'sessionId'))
    const ask = () =>
      twin.call('PUT', `${SESSIONS}/${id}`, {
        body: {
          requester: { type: 'user', value: 'x' },
          rollbackOnDeny: true,
          requestedItems: [{ item: 'Print', count: 1 }],
        },
      })
    expect((await ask()).status).toBe(200)
    expect((await command(id, 'lock')).body).toMatchObject({ state: 'LOCKED', outcome: 'DONE' })
    expect((await command(id, 'lock')).status).toBe(200)
    const refused = await ask()
    expect([refused.status, pick(refused.body, 'message')]).toEqual([409, 'Session is LOCKED'])
    await twin.advance(30 * 60_000)
    expect((await command(id, 'unlock')).body).toMatchObject({ state: 'ACTIVE' })
    expect((await ask()).status).toBe(200)
    expect((await command(id, 'terminate')).body).toMatchObject({ state: 'TERMINATED', outcome: 'DONE' })
  })
})
