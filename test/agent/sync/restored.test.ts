import { expect, test } from 'vitest'
import { type SegmentWire, SYNC_BODY_BYTES_MAX } from '../../../src/protocol/edge/sync.ts'
import { payloadOf } from '../harness.ts'
import { REFUSED_FOR_MIN_MS } from '../../../src/agent/sync/limits.ts'
import { calmDown } from './audit.ts'
import { changeAnswers } from './changed-answers.ts'
import { DEVICE, json } from './fake-cloud.ts'
import { restoreAndSpend, restoreBackup } from './restore.ts'
import { ACCOUNT, TestDevice } from './test-device.ts'

/** What it takes to put the cloud back to this moment. */
function backupOf({ cloud }: TestDevice): () => void {
  const { current } = cloud
  const { lastEntry, entryHead } = current
  const holdings = structuredClone(current.holdings)
  const merged = [...current.merged]
  const billed = new Map(cloud.billed)
  return () => {
    current.merged.splice(0, Infinity, ...merged)
    Object.assign(current, { lastEntry, entryHead })
    current.holdings.clear()
    for (const [account, held] of holdings) current.holdings.set(account, held)
    cloud.billed.clear()
    for (const [key, entry] of billed) cloud.billed.set(key, entry)
  }
}

/** The cloud merges three segments, and is put back to before them. */
async function loseThreeSegments(device: TestDevice): Promise<void> {
  const restore = backupOf(device)
  for (let i = 0; i < 3; i += 1) {
    await device.charge(1_000_000n)
    await device.sync()
  }
  restore()
}

test('a device that was restored from a backup is not locked out, and the technician is informed', async () => {
  const device = await TestDevice.running()
  await restoreBackup(device)
  await device.restart()
  await device.charge(500_000n)
  await calmDown(device)
  expect(device.conditions).toEqual(['device: DEVICE_FORKED'])
  expect(device.link.status()).toMatchObject({ epoch: 2, fenced: false })
  // Both histories are billed: what was spent after the backup, and what was spent again.
  expect(device.cloud.billedOn(ACCOUNT)).toBe(3_500_000n)
})

test('a device restored to an unacknowledged segment that the cloud knows delivers the entries since then', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  device.network.faults = ['LOSE_ANSWER']
  await device.sync()
  const backup = device.disk.copy()
  await device.sync()
  await device.charge(2_000_000n)
  await device.sync()
  device.disk = backup
  await device.restart()
  await device.charge(300_000n)
  await calmDown(device)
  expect(device.conditions).toEqual(['device: DEVICE_FORKED'])
  expect(device.link.status().epoch).toBe(2)
  expect(device.cloud.billedOn(ACCOUNT)).toBe(3_300_000n)
})

test('a device stops spending once it learns that the cloud knows more than it does', async () => {
  const device = await TestDevice.running()
  device.network.faults = ['LOSE_ANSWER']
  await device.sync()
  const backup = device.disk.copy()
  await device.sync()
  await device.charge(2_000_000n)
  await device.sync()
  device.disk = backup
  device.network.faults = [null, 'LOSE_REQUEST']
  await device.restart()
  await device.settle()
  expect(device.link.status()).toMatchObject({ epoch: 1, fenced: true, unacknowledgedSeq: null })
  expect(device.disk.read().fenced).toBe(true)
  expect(await device.charge(1n)).toBe('REFUSED')
})

test('a restored device delivers its undelivered entries as a range, in as many segments as needed', async () => {
  const device = await TestDevice.running()
  await restoreAndSpend(device)
  device.network.faults = [null, 'LOSE_ANSWER', null, 'LOSE_ANSWER']
  await calmDown(device)
  expect(device.link.status()).toMatchObject({ epoch: 2, fenced: false, backlog: 0 })
  expect(device.cloud.backlogs).toEqual([0, 5])
  expect(device.cloud.billedOn(ACCOUNT)).toBe(3_070_000n)
  expect(device.disk.read().undeliveredRanges).toBe(0)
  const epochs = device.cloud.received.map(({ document }) => payloadOf(document) as SegmentWire)
  expect(epochs.filter(({ undeliveredRange }) => undeliveredRange !== null).length).toBeGreaterThan(1)
  for (const { undeliveredRange, entries } of epochs) {
    if (undeliveredRange !== null) expect([undeliveredRange.epoch, entries.bodies]).toEqual([1, []])
  }
})

test('a process that ends at any commit on the way delivers each entry of an undelivered range exactly once', async () => {
  for (let commit = 1; commit <= 8; commit += 1) {
    const device = await TestDevice.running()
    await restoreBackup(device)
    device.disk.segmentEntriesMax = 1
    await device.restart()
    for (let n = 0; n < 3; n += 1) await device.charge(10_000n)
    device.disk.commitsUntilCrash = commit
    await device.sync()
    await calmDown(device)
    expect(device.cloud.billedOn(ACCOUNT)).toBe(3_030_000n)
    expect(device.disk.read().undeliveredRanges).toBe(0)
  }
})

test('a segment that the cloud refuses is not sent forever: the device attaches again and delivers its entries', async () => {
  const device = await TestDevice.running()
  device.cloud.refuses = true
  await device.charge(1_000_000n)
  await device.sync()
  expect(device.conditions).toEqual(['device: SEGMENT_REJECTED'])
  await calmDown(device)
  expect(device.link.status()).toMatchObject({ epoch: 2, fenced: false, backlog: 0 })
  expect(device.cloud.billedOn(ACCOUNT)).toBe(1_000_000n)
  expect(await device.charge(1_000n)).toBe('GRANTED')
})

test('a device attaches again after its final segment, whatever the cloud says of the epoch', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  await device.sync()
  device.cloud.closes = false
  const backup = device.disk.copy()
  await device.charge(2_000_000n)
  await device.sync()
  device.disk = backup
  await device.restart()
  await device.charge(500_000n)
  await device.sync()
  expect(device.link.status()).toMatchObject({ epoch: 2, fenced: false })
})

test('a cloud that was restored from a backup gets the segments that it has lost', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  await device.sync()
  await loseThreeSegments(device)
  await device.charge(1_000_000n)
  await device.sync()
  expect(device.link.status()).toMatchObject({ backlog: 0, unacknowledgedSeq: null })
  expect(device.conditions).toEqual([])
  expect(device.cloud.billedOn(ACCOUNT)).toBe(5_000_000n)
})

test('a device sends the lost entries with the signed responses, and the cloud enters its grants again', async () => {
  const device = await TestDevice.running()
  await loseThreeSegments(device)
  const before = device.cloud.proofs.length
  await device.charge(1_000_000n)
  await device.sync()
  expect(device.cloud.proofs.slice(before).map(({ seq, proofs }) => [seq, proofs.length])).toEqual([
    [5, 0],
    [2, 1],
    [3, 1],
    [4, 1],
    [5, 0],
  ])
  expect(device.conditions).toEqual([])
})

test('segments that neither side has are named; the device sends its grants, attaches again and continues', async () => {
  const device = await TestDevice.running()
  await loseThreeSegments(device)
  device.disk.change('DELETE FROM segment WHERE seq = 4')
  await device.charge(1_000_000n)
  await calmDown(device)
  expect(device.conditions).toEqual(['device: CLOUD_BEHIND'])
  expect(device.link.status()).toMatchObject({ epoch: 2, backlog: 0, unacknowledgedSeq: null, fenced: false })
  const { proofs } = device.cloud.proofs.findLast(({ seq }) => seq === 5) ?? { proofs: [] }
  expect(proofs.length).toBeGreaterThan(0)
  // Their entries are still here: what the cloud has lost of them goes up once more, from where its chain ends.
  const undeliveredRanges = device.cloud.received.flatMap(
    ({ document }) => (payloadOf(document) as SegmentWire).undeliveredRange ?? [],
  )
  expect(undeliveredRanges).toMatchObject([{ epoch: 1, entries: { first: 3 }, final: true }])
  expect(device.cloud.billedOn(ACCOUNT)).toBe(device.durable.charged)
  expect(await device.charge(1_000n)).toBe('GRANTED')
})

test('long proofs are sent with as many segments as needed, and the cloud accepts each', async () => {
  const device = await TestDevice.running()
  await loseThreeSegments(device)
  device.disk.change('DELETE FROM segment WHERE seq = 3')
  const proofs = Array.from({ length: 50 }, (_, n) => String(n).padEnd(1_000_000, 'p'))
  Object.assign(device.journal, { proofs: async () => proofs })
  const bodies: number[] = []
  device.network.tamper = ({ body }, answer) => {
    bodies.push(Buffer.byteLength(body ?? ''))
    return answer
  }
  await device.charge(1_000_000n)
  await calmDown(device)
  expect(device.link.status()).toMatchObject({ epoch: 2, backlog: 0, fenced: false })
  const shown = device.cloud.proofs.flatMap((each) => each.proofs)
  expect(shown.filter((each) => each.length === 1_000_000)).toEqual(proofs)
  expect(Math.max(...bodies)).toBeLessThanOrEqual(SYNC_BODY_BYTES_MAX)
})

test('a chain that is abandoned before the cloud reports its losses: the kept entries are sent again', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  await device.sync()
  await loseThreeSegments(device)
  device.network.intercept = async (request) => {
    const isUnread = request.url.endsWith('/sync') && device.link.status().epoch === 1
    return isUnread ? json(422, { code: 'SEGMENT_REJECTED', message: 'no' }) : device.cloud.exchange(request)
  }
  await device.charge(1_000_000n)
  await device.pass(2 * REFUSED_FOR_MIN_MS)
  expect(device.link.status()).toMatchObject({ epoch: 2, fenced: false })
  await calmDown(device)
  const sent = device.cloud.received.map(({ document }) => payloadOf(document) as SegmentWire)
  const places = sent.map(({ epoch, seq }) => `${epoch}/${seq}`)
  expect(places.slice(0, places.indexOf('2/1') + 1)).toEqual(
    ['1/1', '1/2', '1/3', '1/4', '1/5', '1/1', '1/3', '1/4', '1/5', '2/1'], // prettier-ignore
  )
  expect(device.cloud.billedOn(ACCOUNT)).toBe(device.durable.charged)
})

test('a device that is fenced while it sends lost entries again stops spending at once, and loses nothing', async () => {
  const device = await TestDevice.running()
  await loseThreeSegments(device)
  device.cloud.fence()
  await device.charge(1_000_000n)
  device.network.faults = [null, null, 'LOSE_REQUEST']
  await device.sync()
  expect(device.cloud.received.at(-1)?.seq).toBe(2)
  expect(device.link.status()).toMatchObject({ epoch: 1, fenced: true })
  expect(await device.charge(1n)).toBe('REFUSED')
  await calmDown(device)
  expect(device.link.status()).toMatchObject({ epoch: 2, fenced: false, backlog: 0 })
  expect(device.cloud.billedOn(ACCOUNT)).toBe(4_000_000n)
})

/** With a segment in each of two epochs, and another one that the cloud has lost. */
async function withTwoEpochs(): Promise<TestDevice> {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  device.cloud.fence()
  await calmDown(device)
  await loseThreeSegments(device)
  await device.charge(1_000_000n)
  return device
}

const placesOf = ({ cloud }: TestDevice): readonly string[] =>
  cloud.received.map(({ document }) => {
    const { epoch, seq } = payloadOf(document) as SegmentWire
    return `${epoch}/${seq}`
  })

test('a restored cloud gets the segments of earlier epochs first, and those that it knows are not sent again', async () => {
  const device = await withTwoEpochs()
  const before = device.cloud.received.length
  await calmDown(device)
  const places = placesOf(device).slice(before)
  expect(places[0]).toBe('2/5')
  expect(places.slice(1)).toEqual(['1/1', '2/2', '2/3', '2/4', '2/5'])
  expect(device.conditions).toEqual([])
  expect(device.cloud.billedOn(ACCOUNT)).toBe(5_000_000n)
})

test('an answer about another epoch than that of the earlier segment changes nothing', async () => {
  const device = await withTwoEpochs()
  changeAnswers(device, (answer) => (answer['epoch'] === 1 ? { ...answer, epoch: 2 } : answer))
  await device.sync()
  const condition = device.link.status().conditions.find(({ code }) => code === 'ANSWER_UNEXPECTED')
  expect(condition).toMatchObject({ subject: 'sync' })
  device.network.intercept = null
  await calmDown(device)
  expect(device.conditions).toEqual([])
  expect(device.cloud.billedOn(ACCOUNT)).toBe(5_000_000n)
})

test('entries of an earlier epoch that the cloud keeps and does not bill are reported, too', async () => {
  const device = await withTwoEpochs()
  const fork = {
    outcome: 'FENCED',
    deviceId: DEVICE,
    epoch: 1,
    seq: 1,
    hash: 'a'.repeat(64),
    forked: true,
    closed: true,
  }
  changeAnswers(device, (answer) => (answer['epoch'] === 1 ? { ...fork, receipt: null, unbilled: 2 } : answer))
  await calmDown(device)
  // Two of each of its three segments.
  expect(device.link.status().conditions).toMatchObject([
    { subject: 'undelivered entries', code: 'USAGE_UNBILLED', message: expect.stringContaining('6 entries') as string },
  ])
})

test.each([
  ['a segment of which the cloud refuses', { outcome: 'REJECTED', hash: 'a'.repeat(64), problem: 'no' }],
  ['of which the cloud lacks earlier segments', { outcome: 'BEHIND', seq: 0 }],
])('an earlier epoch, %s, is left, and the current one continues', async (_what, change) => {
  const device = await withTwoEpochs()
  const before = device.cloud.received.length
  changeAnswers(device, (answer) => (answer['epoch'] === 1 ? { deviceId: DEVICE, epoch: 1, ...change } : answer))
  await calmDown(device)
  expect(placesOf(device).slice(before)).toEqual(['2/5', '1/1', '2/2', '2/3', '2/4', '2/5'])
  expect(device.link.status()).toMatchObject({ epoch: 2, backlog: 0, unacknowledgedSeq: null, conditions: [] })
})

test('an earlier epoch that is abandoned does not block the later ones', async () => {
  const device = await TestDevice.running()
  for (let epochs = 0; epochs < 2; epochs += 1) {
    await device.charge(1_000_000n)
    device.cloud.fence()
    await calmDown(device)
  }
  await loseThreeSegments(device)
  await device.charge(1_000_000n)
  const before = device.cloud.received.length
  changeAnswers(device, (answer) =>
    answer['epoch'] === 1 ? { outcome: 'BEHIND', deviceId: DEVICE, epoch: 1, seq: 0 } : answer,
  )
  await calmDown(device)
  expect(placesOf(device).slice(before, before + 3)).toEqual(['3/5', '1/1', '2/1'])
  expect(device.link.status()).toMatchObject({ epoch: 3, backlog: 0, unacknowledgedSeq: null, conditions: [] })
})

test('an earlier epoch that the cloud cannot read is left after an hour, and the current one continues', async () => {
  const device = await withTwoEpochs()
  device.network.intercept = async (request) => {
    const { segment } = JSON.parse(request.body ?? '{}') as { segment?: string }
    const isEarlier = segment !== undefined && (payloadOf(segment) as SegmentWire).epoch === 1
    return isEarlier ? json(422, { code: 'SEGMENT_REJECTED', message: 'no' }) : device.cloud.exchange(request)
  }
  await device.pass(REFUSED_FOR_MIN_MS / 2)
  expect(device.link.status().unacknowledgedSeq).not.toBeNull()
  await device.pass(REFUSED_FOR_MIN_MS)
  expect(device.link.status()).toMatchObject({ epoch: 2, fenced: false, backlog: 0, unacknowledgedSeq: null })
  expect(device.cloud.billedOn(ACCOUNT)).toBe(5_000_000n)
})

test('a segment that was acknowledged without a signed response is sent again alone', async () => {
  const device = await TestDevice.running()
  const restore = backupOf(device)
  await device.charge(1_000_000n)
  changeAnswers(device, (answer) =>
    answer['seq'] === 2 ? { outcome: 'KNOWN', deviceId: DEVICE, epoch: 1, seq: 2, hash: answer['hash'] } : answer,
  )
  await device.sync()
  device.network.intercept = null
  await device.charge(1_000_000n)
  await device.sync()
  restore()
  await device.charge(1_000_000n)
  const before = device.cloud.proofs.length
  await device.sync()
  expect(device.cloud.proofs.slice(before).map(({ seq, proofs }) => [seq, proofs.length])).toEqual([
    [5, 0],
    [2, 0],
    [3, 1],
    [4, 1],
    [5, 0],
  ])
  expect(device.cloud.billedOn(ACCOUNT)).toBe(3_000_000n)
})

test('a chain with a permanent gap is abandoned durably before the device attaches again', async () => {
  const device = await TestDevice.running()
  await loseThreeSegments(device)
  device.disk.change('DELETE FROM segment WHERE seq = 3')
  device.network.intercept = async (request) =>
    request.url.endsWith('/attach') ? json(503, { code: 'STOPPING', message: 'later' }) : device.cloud.exchange(request)
  await device.charge(1_000_000n)
  await device.sync()
  expect(device.link.status()).toMatchObject({ epoch: 1, fenced: true })
  await device.restart()
  expect(await device.charge(1n)).toBe('REFUSED')
  device.network.intercept = null
  await calmDown(device)
  expect(device.link.status()).toMatchObject({ epoch: 2, fenced: false })
  expect(device.cloud.billedOn(ACCOUNT)).toBe(device.durable.charged)
})

test('segments that the cloud turns out to know are not sent again', async () => {
  const device = await TestDevice.running()
  for (let i = 0; i < 3; i += 1) {
    await device.charge(1_000_000n)
    await device.sync()
  }
  await device.charge(1_000_000n)
  let isFirst = true
  changeAnswers(device, (answer) => {
    if (!isFirst) return answer
    isFirst = false
    return { outcome: 'BEHIND', deviceId: DEVICE, epoch: 1, seq: 1 }
  })
  const before = device.cloud.received.length
  await device.sync()
  expect(placesOf(device).slice(before)).toEqual(['1/5', '1/2', '1/5'])
  expect(device.link.status()).toMatchObject({ unacknowledgedSeq: null, conditions: [] })
  expect(device.cloud.billedOn(ACCOUNT)).toBe(4_000_000n)
})

test('a cloud that never accepts the entries that it reports as lost is reported, and is tried again', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  await device.sync()
  await device.charge(1_000_000n)
  const { received } = device.cloud
  changeAnswers(device, () => ({ outcome: 'BEHIND', deviceId: DEVICE, epoch: 1, seq: received.at(-1)!.seq - 2 }))
  await device.sync()
  const condition = device.link.status().conditions.find(({ subject }) => subject === 'sync')
  expect(condition).toMatchObject({ code: 'CLOUD_BEHIND' })
  expect(device.link.status()).toMatchObject({ epoch: 1, fenced: false, unacknowledgedSeq: 3 })
  device.network.intercept = null
  await calmDown(device)
  expect(device.conditions).toEqual([])
  expect(device.cloud.billedOn(ACCOUNT)).toBe(2_000_000n)
})

test('a segment that the cloud could read once is not given up when it cannot read it again', async () => {
  const device = await TestDevice.running()
  await loseThreeSegments(device)
  await device.charge(1_000_000n)
  device.network.intercept = async (request) => {
    const isAgain = request.url.endsWith('/sync') && !request.body?.includes(device.cloud.received.at(-1)!.document)
    const isFirst = device.cloud.received.at(-1)?.seq !== 5
    return isAgain && !isFirst ? json(422, { code: 'SEGMENT_REJECTED', message: 'no' }) : device.cloud.exchange(request)
  }
  await device.pass(3 * REFUSED_FOR_MIN_MS)
  expect(device.link.status()).toMatchObject({ epoch: 1, fenced: false })
  await calmDown(device).catch(() => undefined)
  device.network.intercept = null
  await calmDown(device)
  expect(device.link.status()).toMatchObject({ epoch: 1, fenced: false })
  expect(device.cloud.billedOn(ACCOUNT)).toBe(4_000_000n)
})
