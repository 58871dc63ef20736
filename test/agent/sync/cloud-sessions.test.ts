import { expect, test } from 'vitest'
import {
  keptCloudSession,
  nextCloudSession,
  NO_CLOUD_SESSION,
  type CloudSessionState,
  type CloudSessionEvent,
} from '../../../src/agent/sync/cloud-session-state.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { refusal } from './fake-cloud.ts'
import { policyWith } from './policies.ts'
import { ACCOUNT, TestDevice } from './test-device.ts'

const OPEN: CloudSessionState = { state: 'OPEN', sessionId: 's', aliveAt: 1, checkedAt: 1 }
const LOCKED: CloudSessionState = { ...OPEN, state: 'LOCKED' }
const KEPT = keptCloudSession('s')

test.each<[CloudSessionState, CloudSessionEvent, CloudSessionState, string | undefined]>([
  [NO_CLOUD_SESSION, { kind: 'OPENED', sessionId: 's' }, { ...OPEN, aliveAt: 5, checkedAt: 5 }, 'CLEAR'],
  [OPEN, { kind: 'OPENED', sessionId: 't' }, { ...OPEN, sessionId: 't', aliveAt: 5, checkedAt: 5 }, 'CLEAR'],
  [OPEN, { kind: 'ALIVE' }, { ...OPEN, aliveAt: 5, checkedAt: 5 }, 'CLEAR'],
  [LOCKED, { kind: 'ALIVE' }, { ...OPEN, aliveAt: 5, checkedAt: 5 }, 'CLEAR'],
  [OPEN, { kind: 'LOCKED' }, { ...LOCKED, checkedAt: 5 }, 'SESSION_LOCKED'],
  [LOCKED, { kind: 'LOCKED' }, { ...LOCKED, checkedAt: 5 }, 'SESSION_LOCKED'],
  [OPEN, { kind: 'ENDED', state: 'TERMINATED' }, NO_CLOUD_SESSION, 'SESSION_ENDED'],
  [LOCKED, { kind: 'ENDED', state: 'FAILED' }, NO_CLOUD_SESSION, 'SESSION_ENDED'],
  [OPEN, { kind: 'SYNCED' }, { ...OPEN, aliveAt: 5 }, undefined],
  [LOCKED, { kind: 'SYNCED' }, { ...LOCKED, aliveAt: 5 }, undefined],
  [OPEN, { kind: 'CLOSED' }, NO_CLOUD_SESSION, 'CLEAR'],
  [KEPT, { kind: 'ALIVE' }, { ...OPEN, aliveAt: 5, checkedAt: 5 }, 'CLEAR'],
  [KEPT, { kind: 'LOCKED' }, { ...LOCKED, aliveAt: 0, checkedAt: 5 }, 'SESSION_LOCKED'],
  [KEPT, { kind: 'ENDED', state: 'TERMINATED' }, NO_CLOUD_SESSION, undefined],
  [KEPT, { kind: 'SYNCED' }, { ...KEPT, aliveAt: 5 }, undefined],
  [KEPT, { kind: 'OPENED', sessionId: 't' }, { ...OPEN, sessionId: 't', aliveAt: 5, checkedAt: 5 }, 'CLEAR'],
  [KEPT, { kind: 'CLOSED' }, NO_CLOUD_SESSION, 'CLEAR'],
  [NO_CLOUD_SESSION, { kind: 'CLOSED' }, NO_CLOUD_SESSION, 'CLEAR'],
  [NO_CLOUD_SESSION, { kind: 'ALIVE' }, NO_CLOUD_SESSION, undefined],
  [NO_CLOUD_SESSION, { kind: 'LOCKED' }, NO_CLOUD_SESSION, undefined],
  [NO_CLOUD_SESSION, { kind: 'ENDED', state: 'TERMINATED' }, NO_CLOUD_SESSION, undefined],
  [NO_CLOUD_SESSION, { kind: 'SYNCED' }, NO_CLOUD_SESSION, undefined],
])('a session that is %o and hears %o becomes %o', (before, event, after, notice) => {
  const next = nextCloudSession(before, event, 5)
  expect(next.session).toEqual(after)
  expect(typeof next.notice === 'object' ? next.notice.code : next.notice).toBe(notice)
})

const heartbeats = (device: TestDevice): number =>
  device.cloud.calls.filter((call) => call.endsWith('/heartbeat')).length

test('segments keep a session alive, and the device requests its state now and then', async () => {
  const device = await TestDevice.running()
  expect(device.cloud.sessions).toHaveLength(1)
  await device.pass(40 * 60_000)
  expect(heartbeats(device)).toBe(0)
  await device.pass(20 * 60_000)
  expect(heartbeats(device)).toBe(1)
  expect(device.cloud.sessions).toHaveLength(1)
})

test('a session that the cloud has ended is opened again at once: only the log names the end', async () => {
  for (const state of ['TERMINATED', 'FAILED', 'DISCONNECTED'] as const) {
    const device = await TestDevice.running()
    const [session] = device.cloud.sessions
    if (session === undefined) throw new Error('a session is open')
    session.state = state
    device.link.wake('notification')
    await device.pass(2_000)
    expect(device.cloud.sessions).toHaveLength(2)
    expect(device.link.status().sessions[0]).toMatchObject({ state: 'OPEN', sessionId: device.cloud.sessions[1]?.id })
    expect(device.conditions).toEqual([])
    const ends = device.logged.filter(({ fields }) => fields['code'] === 'SESSION_ENDED')
    expect(ends).toMatchObject([{ fields: { state } }, { message: 'a problem has ended' }])
  }
})

test('the end of a session is shown until another one is open', async () => {
  const device = await TestDevice.running()
  const [session] = device.cloud.sessions
  if (session === undefined) throw new Error('a session is open')
  session.state = 'TERMINATED'
  device.network.intercept = async (request) => {
    if (request.method === 'POST' && request.url.endsWith('/sessions')) throw new CodedError('CLOUD_UNREACHABLE', '')
    return device.cloud.exchange(request)
  }
  await device.sync()
  expect(device.conditions).toContain('session: SESSION_ENDED')
  device.network.intercept = null
  await device.pass(60_000)
  expect(device.link.status().sessions).toMatchObject([{ state: 'OPEN' }])
  expect(device.conditions).toEqual([])
})

test('a refusal to open a session is over when one is opened', async () => {
  const device = await TestDevice.make()
  device.network.intercept = async (request) =>
    request.url.endsWith('/sessions')
      ? refusal(403, 'DEVICE_LOCKED', 'This device was locked.')
      : device.cloud.exchange(request)
  await device.start()
  await device.settle()
  expect(device.conditions).toEqual(['session: DEVICE_LOCKED'])
  device.network.intercept = null
  await device.sync()
  expect(device.link.status().sessions).toMatchObject([{ state: 'OPEN' }])
  expect(device.conditions).toEqual([])
})

test('a refused heartbeat is repeated in the next round, although a merged segment keeps the session alive', async () => {
  const device = await TestDevice.running({ sync: { heartbeat: 20_000, batch: 1 } })
  device.network.intercept = async (request) =>
    request.url.endsWith('/heartbeat')
      ? refusal(403, 'DEVICE_LOCKED', 'This device was locked.')
      : device.cloud.exchange(request)
  await device.pass(20_000)
  expect(device.conditions).toEqual(['session: DEVICE_LOCKED'])
  device.network.intercept = null
  await device.charge(1n)
  device.link.wake('timer')
  await device.pass(1_000)
  expect(device.link.status().backlog).toBe(0)
  expect(device.conditions).toEqual([])
})

test('a restart takes the session up again, and asks for it before anything else', async () => {
  const device = await TestDevice.running()
  const sessionId = device.cloud.sessions[0]?.id
  const before = device.cloud.calls.length
  await device.restart({ reboot: true })
  expect(device.link.status().sessions).toMatchObject([{ state: 'KEPT', sessionId }])
  await device.settle()
  expect(device.link.status().sessions).toMatchObject([{ state: 'OPEN', sessionId }])
  expect(device.cloud.sessions).toHaveLength(1)
  const ofSessions = device.cloud.calls.slice(before).filter((call) => call.includes('/sessions'))
  expect(ofSessions).toEqual([expect.stringMatching(/^GET .*\/heartbeat$/)])
})

test('a session that ended while no agent ran is opened again without a log line', async () => {
  const device = await TestDevice.running()
  device.kill()
  const [session] = device.cloud.sessions
  if (session === undefined) throw new Error('a session is open')
  session.state = 'TERMINATED'
  await device.restart()
  await device.settle()
  expect(device.conditions).toEqual([])
  expect(device.link.status().sessions).toMatchObject([{ state: 'OPEN', sessionId: device.cloud.sessions[1]?.id }])
})

test('a session whose opening was not answered is the same one after a restart, and after a round', async () => {
  for (const isKilled of [true, false]) {
    const device = await TestDevice.make()
    device.network.tamper = (request, answer) =>
      request.url.endsWith('/sessions') ? { ...answer, body: answer.body.slice(0, 9) } : answer
    await device.start()
    await device.settle()
    expect(device.cloud.sessions).toHaveLength(1)
    expect(device.link.status().sessions).toMatchObject([{ state: 'CLOSED' }])
    device.network.tamper = (_request, answer) => answer
    if (isKilled) await device.restart()
    await device.sync()
    expect(device.link.status().sessions).toMatchObject([{ state: 'OPEN', sessionId: device.cloud.sessions[0]?.id }])
    expect(device.cloud.sessions).toHaveLength(1)
  }
})

test('after a clean stop another session is opened, by another key', async () => {
  const device = await TestDevice.running()
  const stopped = device.link.stop()
  await device.settle()
  await stopped
  await device.restart()
  await device.settle()
  expect(device.cloud.sessions.map(({ state }) => state)).toEqual(['TERMINATED', 'IDLE'])
  expect(device.link.status().sessions).toMatchObject([{ state: 'OPEN', sessionId: device.cloud.sessions[1]?.id }])
})

test('a session that the cloud does not know is opened again', async () => {
  const device = await TestDevice.running()
  device.cloud.sessions.splice(0)
  await device.sync()
  expect(device.cloud.sessions).toHaveLength(1)
})

test('a locked session is waited for', async () => {
  const device = await TestDevice.running()
  const [session] = device.cloud.sessions
  if (session === undefined) throw new Error('a session is open')
  session.state = 'LOCKED'
  await device.sync()
  expect(device.conditions).toEqual(['session: SESSION_LOCKED'])
  expect(device.link.status().sessions).toMatchObject([{ state: 'LOCKED', sessionId: session.id }])
  session.state = 'IDLE'
  await device.pass(60_000)
  expect(device.conditions).toEqual([])
  expect(device.cloud.sessions).toHaveLength(1)
})

test('a session that cannot be opened keeps neither rules nor usage from going on', async () => {
  const device = await TestDevice.make()
  device.network.tamper = (request, answer) =>
    request.url.includes('/sessions') ? { status: 403, headers: {}, body: '{"message":"no sessions today"}' } : answer
  await device.start()
  await device.settle()
  await device.charge(1_000_000n)
  await device.cloud.publish(policyWith(2))
  await device.sync()
  expect(device.conditions).toEqual(['session: ACCESS_KIND_WRONG'])
  expect(device.link.status()).toMatchObject({ backlog: 0, connected: true, policies: [{ applied: 2 }] })
  expect(device.link.status().rounds.failed).toBe(0)
})

test('a service API at a wrong address does not keep tokens from a device whose syncs succeed', async () => {
  const device = await TestDevice.running()
  const opened = device.link.status().sessions
  device.network.tamper = (request, answer) =>
    request.url.includes('/sessions') ? { status: 404, headers: {}, body: '<html>Not found</html>' } : answer
  await device.sync()
  expect(device.conditions).toEqual(['session: ANSWER_UNEXPECTED'])
  expect(device.link.status()).toMatchObject({ connected: true, sessions: opened })
  const amount = 50_000_000n
  const granted = device.link.requestGrant({ needs: [[{ account: ACCOUNT, amount }]], accounts: [ACCOUNT] }, 2_000)
  await device.pass(100)
  await granted
  expect(await device.charge(amount)).toBe('GRANTED')
})

test('a clean stop closes the session, and gives room back only where that is set', async () => {
  for (const returnOnStop of [false, true]) {
    const device = await TestDevice.running({ returnOnStop })
    await device.charge(1_000_000n)
    const stopped = device.link.stop()
    await device.settle()
    await stopped
    expect(device.cloud.sessions).toMatchObject([{ state: 'TERMINATED' }])
    expect(device.left === 0n).toBe(returnOnStop)
    await device.pass(3_600_000)
    expect(device.cloud.calls.at(-1)).toMatch(/^DELETE/)
  }
})

test('a stop does not wait for a cloud that does not answer', async () => {
  const device = await TestDevice.running()
  const silence = new CodedError('CLOUD_UNREACHABLE', 'given up', { details: { network: 'ABORTED' } })
  device.network.intercept = ({ signal }) =>
    new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(silence)))
  const stopped = device.link.stop()
  await device.settle()
  await device.pass(5_000)
  await stopped
  expect(device.fatal).toEqual([])
  expect(device.cloud.sessions).toMatchObject([{ state: 'IDLE' }])
})
