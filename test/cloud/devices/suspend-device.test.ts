import { randomUUID } from 'node:crypto'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { auditList, type DeviceState, deviceState } from '../../../src/protocol/edge/administration.ts'
import { deviceTopic } from '../../../src/protocol/push.ts'
import { type Twin, openTwin, pick, refusal } from '../harness.ts'
import { Listener } from '../platform/mqtt/listener.ts'
import { EDGE, EdgeClient } from './edge-client.ts'
import { successorOf } from '../sync/successor.ts'
import { topUpRequest } from '../sync/test-device.ts'

const TOKENS = 1_000_000n

let twin: Twin
let instanceId: string
let client: EdgeClient
beforeEach(async () => {
  twin = await openTwin()
  instanceId = await twin.shop({ quantity: 100 }, 3)
  client = await EdgeClient.join(twin, instanceId)
})
afterEach(async () => twin[Symbol.asyncDispose]())

const command = (what: string, id = client.id) => twin.call('POST', `${EDGE}/devices/${id}/${what}`)
const shown = async (): Promise<DeviceState> =>
  deviceState.parse((await twin.call('GET', `${EDGE}/devices/${client.id}`)).body)

/** What the signed time of a sync says. */
const suspensionAtSync = async (): Promise<unknown> => (await client.signedAtSync()).suspension

async function spend(amount: bigint): Promise<void> {
  await client.device.sync([topUpRequest(client.line(), 50n * TOKENS)])
  client.device.charge({ lineItemId: 'ACT-1', accounts: [client.line()], amount })
}

const openSession = async () =>
  twin.call('POST', '/api/v1.1/sessions', {
    token: await client.token(),
    headers: { 'x-instance-id': instanceId },
    body: { instanceId },
  })
const heartbeat = async (sessionId: unknown, version: string) =>
  twin.call('GET', `/api/${version}/sessions/${String(sessionId)}/heartbeat`, {
    token: await client.token(),
    headers: { 'x-instance-id': instanceId },
  })

describe('a device that is locked', () => {
  it('learns so, with since when and not by whom, from what is signed for each sync, until it is unlocked', async () => {
    expect(await suspensionAtSync()).toBeNull()
    const since = (twin.now += 1_000)
    expect((await command('lock')).status).toBe(200)
    const { suspension } = await shown()
    expect(suspension).toMatchObject({ state: 'LOCKED', since })
    expect(suspension?.by).toBe('first key')
    twin.now += 1_000
    await command('lock')
    expect(await suspensionAtSync()).toEqual({ state: 'LOCKED', since })
    await command('unlock')
    expect(await suspensionAtSync()).toBeNull()
    expect((await shown()).suspension).toBeNull()
  })

  it('is billed for its spent tokens, and granted no more', async () => {
    await spend(10n * TOKENS)
    await command('lock')
    const answer = await client.device.sync([topUpRequest(client.line(), 90n * TOKENS)])
    expect(answer).toMatchObject({ outcome: 'MERGED', grant: { accounts: [] } })
    const { outstanding } = await shown()
    expect(outstanding).toEqual([{ account: client.line(), unreported: 40n * TOKENS, billed: 10n * TOKENS }])
    await command('unlock')
    expect(await client.device.sync([topUpRequest(client.line(), 60n * TOKENS)])).toMatchObject({
      grant: { accounts: [{ account: client.line() }] },
    })
  })

  it('has its sessions locked and unlocked with it, which heartbeats of both versions say', async () => {
    const sessionId = pick((await openSession()).body, 'sessionId')
    await command('lock')
    expect((await heartbeat(sessionId, 'v1.1')).text).toContain('LOCKED')
    expect((await heartbeat(sessionId, 'v1.0')).text).toContain('Session is locked')
    expect(refusal(await openSession())).toEqual([403, 'DEVICE_LOCKED'])
    await command('unlock')
    expect((await heartbeat(sessionId, 'v1.1')).status).toBeLessThan(300)
  })

  it('receives a change notification at once', async () => {
    const enrolled = await twin.call('POST', `${EDGE}/enrollments`, {
      token: await twin.enrollmentToken(instanceId),
      body: { publicKey: client.keys.jwk },
    })
    const url = (enrolled.body as { addresses: { push: string } }).addresses.push
    await using listener = await Listener.connect(url, {
      clientId: client.id,
      username: client.id,
      password: await client.token(),
    })
    await listener.subscribe(deviceTopic(client.id))
    expect((await shown()).presence).toMatchObject({ online: true })
    await command('lock')
    expect(await listener.next()).toMatchObject({ payload: { reason: 'session' } })
  })

  it('returns its tokens when it is drained, and gets no new ones', async () => {
    await spend(10n * TOKENS)
    await command('lock')
    expect(pick((await command('release')).body, 'releaseRequested')).toBe(true)
    await client.device.sync()
    client.device.giveBack(client.line())
    await client.device.sync([topUpRequest(client.line(), 50n * TOKENS)])
    expect((await shown()).outstanding).toEqual([{ account: client.line(), unreported: 0n, billed: 10n * TOKENS }])
  })
})

describe('a device whose service is ended', () => {
  it('delivers its backlog, is closed exactly, and gets no other epoch', async () => {
    await spend(10n * TOKENS)
    const sessionId = pick((await openSession()).body, 'sessionId')
    await command('terminate')
    expect((await heartbeat(sessionId, 'v1.1')).text).toContain('TERMINATED')
    expect(refusal(await openSession())).toEqual([403, 'DEVICE_TERMINATED'])
    expect(await client.device.sync()).toMatchObject({ outcome: 'FENCED' })
    expect(await client.device.sync([], true)).toMatchObject({ outcome: 'FENCED', closed: true })
    expect((await shown()).outstanding).toEqual([{ account: client.line(), unreported: 0n, billed: 10n * TOKENS }])
    const reply = await client.post('attach', {
      nonce: randomUUID(),
      bootId: 'boot',
      above: 0,
      acknowledged: 0,
      backlog: 0,
      software: 'tests',
    })
    expect(refusal(reply)).toEqual([403, 'DEVICE_TERMINATED'])
    expect(pick(reply.body, 'message')).toMatch(/ended at \d{4}-\d\d-\d\dT[\d:.]+Z by an administrator\.$/)
  })

  it('takes another epoch, which earns nothing, where a copy has ended the chain that would deliver what it owes', async () => {
    await spend(10n * TOKENS)
    const { device } = client
    const copy = device.copy()
    copy.charge({ lineItemId: 'ACT-1', accounts: [client.line()], amount: 5n * TOKENS })
    await device.sync()
    await command('terminate')
    expect(await copy.sync()).toMatchObject({ outcome: 'FENCED', forked: true })
    const old = copy.copy()
    await copy.attach()
    expect(await shown()).toMatchObject({ epoch: 2, status: 'FENCED' })
    const undeliveredRange = await copy.sealAs({
      ...copy.payload([topUpRequest(client.line(), 50n * TOKENS)]),
      undeliveredRange: old.undeliveredRange(),
    })
    const taken = await copy.twin.sync(client.id, undeliveredRange.document)
    expect(taken).toMatchObject({ accepted: true })
    copy.state = { ...copy.state, seq: 1, hash: undeliveredRange.hash }
    expect(await copy.sync([], true)).toMatchObject({ outcome: 'FENCED', closed: true })
    expect((await shown()).outstanding).toEqual([
      { account: client.line(), unreported: 35n * TOKENS, billed: 15n * TOKENS },
    ])
    await expect(copy.attach()).rejects.toThrow('DEVICE_TERMINATED')
  })

  it('takes another epoch, which earns nothing, when its copy was closed exactly before it delivered what it owes', async () => {
    await spend(10n * TOKENS)
    await client.device.sync()
    const copy = client.device.copy()
    await command('terminate')
    await client.device.sync()
    expect(await client.device.sync([], true)).toMatchObject({ outcome: 'FENCED', closed: true })
    copy.charge({ lineItemId: 'ACT-1', accounts: [client.line()], amount: 5n * TOKENS })
    const { next, deliver } = await successorOf(copy)
    expect(await shown()).toMatchObject({ epoch: 2, status: 'FENCED' })
    expect(await deliver(copy.undeliveredRange())).toMatchObject({ outcome: 'FENCED' })
    expect(await next.sync([], true)).toMatchObject({ outcome: 'FENCED', closed: true })
    expect((await shown()).outstanding).toEqual([{ account: client.line(), unreported: 0n, billed: 15n * TOKENS }])
    await expect(next.attach()).rejects.toThrow('DEVICE_TERMINATED')
  })

  it('continues as the same device with a token that was made since, and with no other', async () => {
    const [before, used] = [await twin.enrollmentToken(instanceId), await twin.enrollmentToken(instanceId)]
    const enroll = (token: string) =>
      twin.call('POST', `${EDGE}/enrollments`, { token, body: { publicKey: client.keys.jwk } })
    expect((await enroll(used)).status).toBe(200)
    twin.now += 2_000
    await command('terminate')
    for (const token of [before, used]) expect(refusal(await enroll(token))).toEqual([403, 'ENROLLMENT_REFUSED'])
    twin.now += 2_000
    const fresh = await enroll(await twin.enrollmentToken(instanceId))
    expect(pick(fresh.body, 'deviceId')).toBe(client.id)
    expect((await shown()).suspension).toBeNull()
    expect((await client.attach(randomUUID())).answer).not.toBe('')
  })

  it('that ended while the clock was ahead can be ended again, so that new tokens enroll it', async () => {
    const enroll = async () => {
      const token = await twin.enrollmentToken(instanceId)
      return twin.call('POST', `${EDGE}/enrollments`, { token, body: { publicKey: client.keys.jwk } })
    }
    twin.clockAheadMs = 86_400_000
    await command('terminate')
    const wrong = await shown()
    twin.clockAheadMs = 0
    const refused = await enroll()
    expect(refusal(refused)).toEqual([403, 'ENROLLMENT_REFUSED'])
    expect(pick(refused.body, 'message')).toMatch(/clock was ahead.*Terminate the device again, then make/)
    await command('terminate')
    expect((await shown()).suspension?.since).toBe((wrong.suspension?.since ?? 0) - 86_400_000)
    expect((await enroll()).status).toBe(200)
    expect((await shown()).suspension).toBeNull()
  })

  it('does not continue with an older token that a clock ahead has dated, also after it was ended again', async () => {
    twin.clockAheadMs = 86_400_000
    const token = await twin.enrollmentToken(instanceId)
    twin.now += 2_000
    await command('terminate')
    twin.clockAheadMs = 0
    const enroll = () => twin.call('POST', `${EDGE}/enrollments`, { token, body: { publicKey: client.keys.jwk } })
    expect(refusal(await enroll())).toEqual([403, 'ENROLLMENT_REFUSED'])
    await command('terminate')
    const refused = await enroll()
    expect(refusal(refused)).toEqual([403, 'ENROLLMENT_REFUSED'])
    expect(pick(refused.body, 'message')).toMatch(/clock was ahead when this enrollment token was made/)
    expect((await shown()).suspension?.state).toBe('TERMINATED')
  })

  it('cannot be locked or unlocked, and a revoked one can be held back no more', async () => {
    await command('terminate')
    expect((await command('terminate')).status).toBe(200)
    expect(refusal(await command('unlock'))).toEqual([409, 'CONFLICT'])
    expect(refusal(await command('lock'))).toEqual([409, 'CONFLICT'])
    const other = await EdgeClient.join(twin, instanceId)
    await command('revoke', other.id)
    expect(refusal(await command('lock', other.id))).toEqual([409, 'CONFLICT'])
    expect(refusal(await command('terminate', other.id))).toEqual([409, 'CONFLICT'])
  })

  it('stays locked when it enrolls again while it is only locked', async () => {
    await command('lock')
    const token = await twin.enrollmentToken(instanceId)
    await twin.call('POST', `${EDGE}/enrollments`, { token, body: { publicKey: client.keys.jwk } })
    expect((await shown()).suspension?.state).toBe('LOCKED')
  })
})

describe('commands to a device', () => {
  it('are for administrators, about devices that there are', async () => {
    const token = await twin.clientToken(instanceId)
    for (const what of ['lock', 'unlock', 'terminate', 'release', 'revoke']) {
      const path = `${EDGE}/devices/${client.id}/${what}`
      expect(refusal(await twin.call('POST', path, { token }))).toEqual([403, 'ACCESS_KIND_WRONG'])
      expect(refusal(await twin.call('POST', path, { token: await client.token() }))).toEqual([
        403,
        'ACCESS_KIND_WRONG',
      ])
      expect(refusal(await command(what, randomUUID()))).toEqual([404, 'NOT_FOUND'])
    }
    expect(refusal(await twin.call('GET', `${EDGE}/audit`, { token }))).toEqual([403, 'ACCESS_KIND_WRONG'])
    expect((await shown()).suspension).toBeNull()
  })

  it('stand in the audit with the key that gave them, newest first and page by page', async () => {
    const sessionId = String(pick((await openSession()).body, 'sessionId'))
    await command('lock')
    await command('unlock')
    await command('release')
    await twin.call('POST', `${EDGE}/sessions/${sessionId}/terminate`)
    await command('terminate')
    await command('revoke')
    await command('lock')
    const read = async (query: string) => auditList.parse((await twin.call('GET', `${EDGE}/audit?${query}`)).body)
    const { records, next } = await read(`deviceId=${client.id}`)
    expect(next).toBeNull()
    expect(records.map(({ action }) => action)).toEqual([
      'REVOKE_DEVICE',
      'TERMINATE_DEVICE',
      'TERMINATE_SESSION',
      'DRAIN_DEVICE',
      'UNLOCK_DEVICE',
      'LOCK_DEVICE',
      'ENROLL_DEVICE',
    ])
    const actions = (query: string) => read(query).then((page) => page.records.map(({ action }) => action))
    expect((await actions(`deviceId=${client.id}&sessions=true`)).slice(-2)).toEqual(['OPEN_SESSION', 'ENROLL_DEVICE'])
    // Rows about devices have no instance of their own.
    expect(await actions(`instanceId=${instanceId}&by=${String((await shown()).revokedBy)}&size=4`)).toEqual([
      'REVOKE_DEVICE',
      'TERMINATE_DEVICE',
      'TERMINATE_SESSION',
      'DRAIN_DEVICE',
    ])
    expect(await actions(`instanceId=${instanceId}&action=ENROLL_DEVICE`)).toEqual(['ENROLL_DEVICE'])
    expect(await actions(`instanceId=${instanceId}&action=ISSUE_ENROLLMENT_TOKEN`)).toEqual(['ISSUE_ENROLLMENT_TOKEN'])
    expect(await actions(`instanceId=${randomUUID()}`)).toEqual([])
    expect(await actions(`deviceId=${client.id}&since=${twin.now + 1}`)).toEqual([])
    expect(await actions(`deviceId=${client.id}&action=LOCK_DEVICE&until=${twin.now + 1}`)).toEqual(['LOCK_DEVICE'])
    expect(await actions(`deviceId=${client.id}&until=${twin.now}`)).toEqual([])
    expect((await twin.call('GET', `${EDGE}/audit?actions=LOCK_DEVICE`)).status).toBe(400)
    expect(records[2]).toMatchObject({ at: twin.now, deviceId: client.id, sessionId })
    const administrators = records.filter(({ by }) => by.kind === 'ADMINISTRATOR')
    expect(administrators).toHaveLength(6)
    expect(new Set(administrators.map(({ by }) => by.name))).toEqual(new Set([(await shown()).revokedBy]))
    const first = await read(`deviceId=${client.id}&size=4`)
    expect(first.records).toEqual(records.slice(0, 4))
    expect((await read(`deviceId=${client.id}&size=4&before=${first.next ?? ''}`)).records).toEqual(records.slice(4))
    expect((await read(`deviceId=${randomUUID()}`)).records).toEqual([])
  })
})

describe('the clock of a device', () => {
  it.each([
    ['agrees', 0, 0, 5, 'AGREES'],
    ['knows of no later end', 0, 0, null, 'OPEN'],
    ['can only be ahead', 60_000, 60_000, 60_001, 'AHEAD'],
    ['can only be behind', -3_600_000, -3_600_000, -3_599_000, 'BEHIND'],
  ])('%s', async (_name, off, earliest, latest, comparison) => {
    const at = twin.now
    client.device.clock = { now: at + off, earliest: at + earliest, latest: latest === null ? null : at + latest }
    await client.device.sync()
    expect((await shown()).clock).toEqual({ comparison, offsetMs: off, takenAt: at })
  })
})
