import { expect, test, vi } from 'vitest'
import { audit, calmDown } from './audit.ts'
import { changeAnswers } from './changed-answers.ts'
import { payloadOf } from '../harness.ts'
import { contentOf, DEVICE, INSTANCE, json, OTHER_INSTANCE } from './fake-cloud.ts'
import { newSigner } from '../../support/new-signer.ts'
import { policyWith } from './policies.ts'
import { ACCOUNT, STARTING_GRANT, TestDevice, makeDeviceKey } from './test-device.ts'
import { storedSession } from '../../../src/agent/sessions/kept-session.ts'
import { newSession } from '../../../src/core/sessions/session.ts'
import { SEGMENT_SESSIONS_MAX } from '../../../src/protocol/edge/sessions.ts'
import type { SegmentWire } from '../../../src/protocol/edge/sync.ts'
import { signDocument } from '../../../src/protocol/signing.ts'

const syncs = (device: TestDevice): readonly string[] => device.cloud.received.map(({ document }) => document)

test.each([
  ['another device', { deviceId: OTHER_INSTANCE }],
  ['another epoch', { epoch: 2 }],
  ['another segment', { seq: 9 }],
  ['a segment with other content', { hash: '0'.repeat(64) }],
])('an answer about %s changes nothing: the segment goes up again', async (_what, change) => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  const before = device.left
  changeAnswers(device, (answer) => ({ ...answer, ...change }))
  await device.sync()
  const condition = device.link.status().conditions.find(({ code }) => code === 'ANSWER_UNEXPECTED')
  expect(condition).toMatchObject({ subject: 'sync' })
  expect(device.link.status().unacknowledgedSeq).toBe(2)
  expect(device.left).toBe(before)
  device.network.intercept = null
  await device.sync()
  expect(device.conditions).toEqual([])
  audit(device)
})

test('a segment that a fence does not acknowledge stays to be sent, and the device spends nothing meanwhile', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  device.cloud.fence()
  changeAnswers(device, (answer) => ({ ...answer, seq: 1 }))
  await device.sync()
  expect(device.conditions).toContain('sync: ANSWER_UNEXPECTED')
  expect(device.link.status()).toMatchObject({ fenced: true, unacknowledgedSeq: 2 })
  expect(await device.charge(1n)).toBe('REFUSED')
  device.network.intercept = null
  await calmDown(device)
  audit(device)
})

test.each([false, true])('reports entries that the cloud keeps and does not bill (fenced: %s)', async (isFenced) => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  if (isFenced) device.cloud.fence()
  let seq = 0
  changeAnswers(device, (answer) => {
    if (seq !== 0) return answer
    seq = Number(answer['seq'])
    return { ...answer, unbilled: 3 }
  })
  await device.sync()
  device.network.intercept = null
  await calmDown(device)
  const found = device.link.status().conditions
  expect(found).toMatchObject([{ subject: 'undelivered entries', code: 'USAGE_UNBILLED' }])
  expect(found[0]?.message).toContain('3 entries')
  expect(device.logged.filter(({ fields }) => fields['code'] === 'USAGE_UNBILLED')).toHaveLength(1)
})

test('adds up the entries of all segments that the cloud keeps and does not bill, each segment once', async () => {
  const device = await TestDevice.running()
  const counts = new Map([
    [2, 3],
    [3, 4],
  ])
  changeAnswers(device, (answer) => ({ ...answer, unbilled: counts.get(Number(answer['seq'])) }))
  vi.spyOn(device.journal, 'acknowledge').mockRejectedValueOnce(new Error('not recorded'))
  await device.charge(1_000_000n)
  await device.sync()
  expect(device.link.status().unacknowledgedSeq).toBe(2)
  await calmDown(device)
  await device.charge(1_000_000n)
  await calmDown(device)
  const [found] = device.link.status().conditions
  expect(found).toMatchObject({ code: 'USAGE_UNBILLED', message: expect.stringContaining('7 entries') as string })
})

test('a device with an enrollment token enrolls, attaches, gets its rules and a first grant in one round', async () => {
  const device = await TestDevice.running()
  expect(device.conditions).toEqual([])
  expect(device.left).toBe(STARTING_GRANT)
  expect(device.link.status()).toMatchObject({
    epoch: 1,
    connected: true,
    policies: [{ applied: 1, newest: 1 }],
    sessions: [{ state: 'OPEN' }],
  })
})

test('a device with more sessions than a segment takes reports all of them in one round', async () => {
  const device = await TestDevice.running()
  const ids = Array.from({ length: SEGMENT_SESSIONS_MAX + 200 }, (_, index) => {
    return `5c8ec4fd-f17f-4657-bf09-${String(index).padStart(12, '0')}`
  })
  for (const id of ids) {
    const session = newSession({ id, instanceId: INSTANCE, deviceId: null }, device.time.truth())
    const stored = storedSession({ session, owner: null, bound: false, epoch: 0, policyRevision: 1 })
    device.disk.change(
      'INSERT INTO session (id, ended, since, document, snapshot, unsealed) VALUES (?, 0, ?, ?, ?, 1)',
      id,
      stored.since,
      stored.document,
      stored.snapshot,
    )
  }
  await device.sync()
  const reported = syncs(device).flatMap((document) => (payloadOf(document) as SegmentWire).sessions ?? [])
  expect(reported.map(({ id }) => id)).toEqual(ids)
})

test('after a lost response the same bytes are sent again, and are billed once', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  device.network.faults = ['LOSE_ANSWER']
  await device.sync()
  expect(device.link.status()).toMatchObject({ connected: false, backlog: 1, unacknowledgedSeq: 2 })
  await device.sync()
  expect(syncs(device)).toHaveLength(3)
  expect(syncs(device)[2]).toBe(syncs(device)[1])
  expect(device.link.status()).toMatchObject({ connected: true, backlog: 0, unacknowledgedSeq: null })
  audit(device)
})

test('the same bytes are sent again after a restart and after a power cut', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  device.network.faults = ['LOSE_ANSWER']
  await device.sync()
  device.network.down = true
  await device.restart()
  await device.settle()
  await device.restart({ reboot: true })
  device.network.down = false
  await device.sync()
  expect(new Set(syncs(device).slice(1)).size).toBe(1)
  await calmDown(device)
  audit(device)
})

test('a segment that was sealed with the key of another device is sent with that of this one, and is billed once', async () => {
  const device = await TestDevice.running()
  const { current } = device.keyPlace
  device.keyPlace.current = await makeDeviceKey()
  await device.restart()
  await device.charge(1_000_000n)
  await device.sync()
  expect(device.conditions).toEqual(['sync: TOKEN_INVALID'])
  expect(device.activePolicies.isDeviceRefused).toBe(true)
  expect(device.link.status()).toMatchObject({ unacknowledgedSeq: 2 })
  device.keyPlace.current = current
  await device.restart()
  await device.sync()
  expect(device.link.status()).toMatchObject({ connected: true, backlog: 0, unacknowledgedSeq: null })
  expect(device.activePolicies.isDeviceRefused).toBe(false)
  audit(device)
})

test('a request that arrives twice, or late, changes nothing', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  device.network.faults = ['REPEAT_REQUEST']
  await device.sync()
  await device.charge(2_000_000n)
  device.network.faults = ['DELAY_REQUEST']
  await device.sync()
  await device.sync()
  expect(device.conditions).toEqual([])
  await calmDown(device)
  audit(device)
  expect(device.cloud.billedOn(ACCOUNT)).toBe(3_000_000n)
})

test('a replayed response is not accepted for another segment', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  device.network.faults = ['OLD_ANSWER']
  await device.sync()
  expect(device.conditions).toContain('sync: ANSWER_UNEXPECTED')
  expect(device.link.status().unacknowledgedSeq).toBe(2)
  await device.sync()
  expect(device.conditions).toEqual([])
  audit(device)
})

test('an old answer with time that is signed for this attempt is refused all the same', async () => {
  const device = await TestDevice.running()
  let first = ''
  device.network.tamper = (request, answer) => {
    if (!request.url.endsWith('/sync')) return answer
    const body = JSON.parse(answer.body) as { answer: string; time: string }
    first ||= body.answer
    return json(200, { ...body, answer: first })
  }
  await device.charge(1_000_000n)
  await device.sync()
  expect(device.link.status().unacknowledgedSeq).toBeNull()
  await device.charge(1_000_000n)
  await device.sync()
  expect(device.conditions).toContain('sync: ANSWER_UNEXPECTED')
  expect(device.link.status().unacknowledgedSeq).toBe(3)
})

test('an answer that no trusted key has signed gives nothing, even with the right content', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  const stranger = await newSigner()
  const forge = async (document: string): Promise<string> => {
    const content = JSON.stringify(await contentOf(document, device.cloud.key.jwk))
    return signDocument('sync-answer', content, stranger.signer)
  }
  const { exchange } = device.cloud
  const forged: string[] = []
  device.network.intercept = async (request) => {
    const answer = await exchange(request)
    if (!request.url.endsWith('/sync')) return answer
    const body = JSON.parse(answer.body) as { answer: string; time: string }
    forged.push(await forge(body.answer))
    return json(200, { ...body, answer: forged.at(-1) })
  }
  const before = device.left
  await device.sync()
  expect(forged).toHaveLength(1)
  expect(device.conditions).toContain('cloud: TRUST_MISMATCH')
  expect(device.link.status()).toMatchObject({ connected: false, unacknowledgedSeq: 2 })
  expect(device.left).toBe(before)
  device.network.intercept = null
  await device.sync()
  expect(device.conditions).toEqual([])
  audit(device)
})

test('time that another party signed is not trusted', async () => {
  const device = await TestDevice.running()
  const stranger = await newSigner()
  const { exchange } = device.cloud
  device.network.intercept = async (request) => {
    const answer = await exchange(request)
    if (!request.url.endsWith('/sync')) return answer
    const { nonce } = JSON.parse(request.body ?? '') as { nonce: string }
    const time = await signDocument('time', JSON.stringify({ nonce, time: 0 }), stranger.signer)
    return json(200, { ...(JSON.parse(answer.body) as object), time })
  }
  const before = device.clock.reading()
  await device.sync()
  expect(device.conditions).toContain('cloud: TRUST_MISMATCH')
  expect(device.clock.reading().earliest).toBeGreaterThanOrEqual(before.earliest)
})

test('signed time of another response is not trusted', async () => {
  const device = await TestDevice.running()
  const { exchange, key } = device.cloud
  device.network.intercept = async (request) => {
    const answer = await exchange(request)
    if (!request.url.endsWith('/sync')) return answer
    const { nonce } = JSON.parse(request.body ?? '') as { nonce: string }
    const text = JSON.stringify({ nonce, time: 0, answer: 'a'.repeat(64), push: null })
    const time = await signDocument('time', text, key.signer)
    return json(200, { ...(JSON.parse(answer.body) as object), time })
  }
  await device.sync()
  expect(device.conditions).toContain('sync: ANSWER_UNEXPECTED')
  expect(device.link.status().unacknowledgedSeq).not.toBeNull()
})

test('signed time of another attempt makes the whole answer one of another attempt', async () => {
  const device = await TestDevice.running()
  let time = ''
  device.network.intercept = async (request) => {
    const answer = await device.cloud.exchange(request)
    if (!request.url.endsWith('/sync')) return answer
    const body = JSON.parse(answer.body) as { answer: string; time: string }
    time ||= body.time
    return json(200, { ...body, time })
  }
  await device.sync()
  await device.pass(3_000_000)
  const { earliest, latest } = device.clock.reading()
  expect(device.conditions).toContain('sync: ANSWER_UNEXPECTED')
  expect(earliest).toBeLessThanOrEqual(device.time.truth())
  expect(latest ?? Infinity).toBeGreaterThanOrEqual(device.time.truth())
})

test('an answer that the cloud stored long ago is no news: the device asks again in the same round', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  device.network.faults = ['LOSE_ANSWER']
  await device.sync()
  device.network.down = true
  await device.pass(3_600_000)
  device.network.down = false
  await device.cloud.publish(policyWith(2))
  await device.sync()
  expect(device.link.status().policies).toMatchObject([{ applied: 2, newest: 2 }])
  audit(device)
})

test('a cloud that asks to be left alone is left alone', async () => {
  const device = await TestDevice.running()
  device.network.retryAfter = '120'
  device.network.faults = ['UNAVAILABLE']
  await device.sync()
  expect(device.conditions).toEqual(['cloud: CLOUD_UNREACHABLE'])
  const before = device.cloud.calls.length
  device.link.wake('notification')
  await device.pass(119_000)
  expect(device.cloud.calls.length).toBe(before)
  await device.pass(10_000)
  expect(device.conditions).toEqual([])
})

test('a grant is on the disk before its first token can be spent', async () => {
  const device = await TestDevice.running()
  const spentAll = device.left
  await device.charge(spentAll)
  // Sealed, then acknowledged with the grant: the process ends right after that second commit.
  device.disk.commitsUntilCrash = 2
  await device.sync()
  expect(device.fatal).toHaveLength(1)
  expect(device.left).toBe(0n)
  await device.restart()
  expect(device.left > 0n).toBe(true)
  await calmDown(device)
  audit(device)
})

test('a disk that is full when a segment is sealed costs the round and nothing else', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  device.disk.refusals = 1
  await device.sync()
  expect(device.conditions).toEqual(['journal: NOT_RECORDED'])
  expect(device.fatal).toEqual([])
  await device.sync()
  expect(device.conditions).toEqual([])
  audit(device)
})

test('a long backlog is sent in bounded segments in one round', async () => {
  const device = await TestDevice.running()
  device.disk.segmentEntriesMax = 3
  for (let i = 0; i < 10; i += 1) await device.charge(1_000n)
  const { done } = device.link.status().rounds
  await device.sync()
  expect(device.cloud.received.map(({ seq }) => seq)).toEqual([1, 2, 3, 4, 5])
  expect(device.link.status()).toMatchObject({ backlog: 0, rounds: { done: done + 1 } })
  audit(device)
})

test('entries are not sent one by one, but at the next sync', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000n)
  await device.charge(1_000n)
  await device.pass(30_000)
  expect(syncs(device)).toHaveLength(1)
  await device.pass(40_000)
  expect(syncs(device)).toHaveLength(2)
  expect(device.link.status().backlog).toBe(0)
})

test('each segment names the rules in force', async () => {
  const device = await TestDevice.running()
  await device.cloud.publish(policyWith(2))
  await device.sync()
  await device.sync()
  expect(payloadOf(syncs(device).at(-1) ?? '')).toMatchObject({ policies: [{ instanceId: INSTANCE, revision: 2 }] })
})

test('an answer that asks for another segment gets it within seconds', async () => {
  const device = await TestDevice.running()
  const before = device.cloud.received.length
  await device.sync()
  await device.pass(5_000)
  expect(device.cloud.received.length).toBe(before + 1)
  device.cloud.directives = ['sync']
  await device.sync()
  await device.pass(5_000)
  expect(device.cloud.received.length).toBe(before + 3)
})

test('a device without tokens to return sends no segment to report that', async () => {
  const device = await TestDevice.running()
  device.cloud.caps.set(ACCOUNT, STARTING_GRANT)
  await device.charge(STARTING_GRANT)
  device.cloud.directives = ['release']
  const before = device.cloud.received.length
  await device.sync()
  expect(device.cloud.received.length).toBe(before + 1)
  expect(device.conditions).toEqual([])
})

test('recalled tokens are returned with the next segment, and the books agree', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  device.cloud.directives = ['release']
  await device.sync()
  expect(device.left).toBe(0n)
  expect(device.cloud.outOn(ACCOUNT)).toBe(1_000_000n)
  audit(device)
})

test('tokens whose return could not be recorded stay with the device', async () => {
  const device = await TestDevice.running()
  device.cloud.directives = ['release']
  const left = device.left
  const { seal } = device.journal
  device.journal.seal = (order) => {
    if (order.returns.length > 0) {
      device.disk.refusals = 1
      device.journal.seal = seal
    }
    return seal.call(device.journal, order)
  }
  await device.sync()
  expect(device.conditions).toEqual(['journal: NOT_RECORDED'])
  expect(device.left).toBe(left)
  await device.sync()
  expect(device.left).toBe(0n)
  await calmDown(device)
  audit(device)
})

test('a cloud that recalls tokens with every answer does not keep the device busy', async () => {
  const device = await TestDevice.running()
  const before = device.cloud.received.length
  device.network.intercept = async (request) => {
    device.cloud.directives = ['release', 'sync']
    return device.cloud.exchange(request)
  }
  await device.pass(20_000)
  expect(device.cloud.received.length - before).toBeLessThan(50)
})

test('a segment that the cloud knows is acknowledged, and the next one gets the missing grants', async () => {
  const device = await TestDevice.running()
  await device.charge(STARTING_GRANT)
  changeAnswers(device, ({ epoch, seq, hash }) => ({ outcome: 'KNOWN', deviceId: DEVICE, epoch, seq, hash }))
  await device.sync()
  expect(device.link.status()).toMatchObject({ unacknowledgedSeq: null, backlog: 0, conditions: [] })
  expect(device.left).toBe(0n)
  device.network.intercept = null
  await device.sync()
  expect(device.left > 0n).toBe(true)
  audit(device)
})

test('a device attaches again after the final segment of a fenced epoch, also if the response does not close it', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  device.cloud.fence()
  changeAnswers(device, (answer) => (answer['outcome'] === 'FENCED' ? { ...answer, closed: false } : answer))
  await device.sync()
  expect(device.link.status()).toMatchObject({ epoch: 2, fenced: false, backlog: 0 })
  audit(device)
})

test('commands for sessions are given to them', async () => {
  const device = await TestDevice.running()
  const sessions = [{ id: OTHER_INSTANCE, command: 'LOCK' }]
  changeAnswers(device, (answer) => ({ ...answer, sessions }))
  await device.sync()
  expect(device.commands).toEqual(sessions)
  device.network.intercept = null
  await device.sync()
  expect(device.commands).toEqual(sessions)
})

test('a device keeps a segment with its answer for as long as the cloud has it keep its entries', async () => {
  const device = await TestDevice.running()
  const keepUntil = (seq: number): unknown =>
    device.disk.database.prepare('SELECT retain_until FROM segment WHERE seq = ?').safeIntegers(false).pluck().get(seq)
  await device.charge(1_000_000n)
  await device.sync()
  const until = device.time.truth() + 7 * 86_400_000
  expect(keepUntil(2)).toBe(until)
  await device.charge(1_000_000n)
  device.cloud.fence()
  changeAnswers(device, (answer) => (answer['seq'] === 4 ? { ...answer, receipt: null } : answer))
  await device.sync()
  expect([keepUntil(3), keepUntil(4)]).toEqual([until, null])
})
