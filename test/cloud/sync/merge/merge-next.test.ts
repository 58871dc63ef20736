// What a merged segment changes of its device, and what it does not.
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { lineAccount } from '../../../../src/core/accounts/account.ts'
import { MICRO_MAX } from '../../../../src/core/pricing/amount.ts'
import type { SegmentWire } from '../../../../src/protocol/edge/sync.ts'
import { entryHash } from '../../../../src/protocol/signing.ts'
import { setOfflinePolicy } from '../../../../src/cloud/policy/offline-policy.ts'
import type { Device } from '../../../../src/cloud/storage/device-records.ts'
import { listUsage } from '../../usage/list-usage.ts'
import { TestDevice, topUpRequest } from '../test-device.ts'
import { INSTANCE, START, Twin } from '../twin.ts'
import { shortagesIn } from '../grants/shortages.ts'

const LINE = lineAccount(INSTANCE, 'ACT-1', 0)
const OTHER = lineAccount(INSTANCE, 'ACT-2', 0)
const ANOTHER = '0b8a1a52-6f3e-4b53-a6a5-9a7f6a0d8d11'
const SESSION = '11111111-2222-4333-8444-555555555555'

let twin: Twin
let device: TestDevice
beforeEach(async () => {
  twin = await Twin.open()
  await twin.setLineItem('ACT-1', { quantity: 1_000n })
  await twin.setLineItem('ACT-2', { quantity: 1_000n })
  device = await TestDevice.join(twin)
})
afterEach(async () => twin[Symbol.asyncDispose]())

const charge = (amount: bigint, account = LINE) => ({ lineItemId: 'ACT-1', accounts: [account], amount })
const epoch = (number = 1) => twin.store.read((reader) => reader.edge.epochs.get(device.id, number))
const usage = async () => (await twin.store.read((reader) => listUsage(reader, { limit: 100 }))).records

const change = (part: Partial<Device>): Promise<void> => twin.changeDevice(device.id, part)

/** Sends the next segment with these changes, as the device would. */
async function send(part: Partial<SegmentWire>, from = device) {
  const sealed = await from.sealAs({ ...from.payload(), ...part })
  Object.assign(from.state, { unacknowledged: sealed, seq: sealed.seq, hash: sealed.hash })
  const taken = await twin.sync(from.id, sealed.document)
  if (!taken.accepted) throw new Error(taken.problem)
  return from.accept(taken.answer)
}

it('bills an item for which two line items together pay more than 64 bits', async () => {
  const lines = { 'ACT-1': LINE, 'ACT-2': OTHER }
  for (const id of ['ACT-1', 'ACT-2']) await twin.setLineItem(id, { quantity: MICRO_MAX })
  await device.sync(Object.values(lines).map((account) => topUpRequest(account, 0n, MICRO_MAX)))
  for (const account of Object.values(lines)) {
    device.state.counters.set(account, { ...device.counters(account), used: MICRO_MAX })
    device.state.changed.add(account)
  }
  const charged = String(MICRO_MAX)
  const parts = Object.keys(lines).map((lineItemId) => ({ lineItemId, rate: '1', actionId: null, charged }))
  const item = { item: 'Print', version: '', count: '1', outcome: 'GRANTED', total: String(2n * MICRO_MAX), parts }
  const postings = Object.values(lines).map((account) => ({ account, amount: charged }))
  device.record({ kind: 'access', items: [item], postings })
  expect((await device.sync()).outcome).toBe('MERGED')
  expect((await usage()).map(({ tokens }) => tokens)).toEqual([MICRO_MAX, MICRO_MAX])
})

describe('the current epoch', () => {
  it('reports clock, backlog and the rules in use, of its own instances', async () => {
    twin.time = START + 5
    const policies = [
      { instanceId: INSTANCE, revision: 3 },
      { instanceId: ANOTHER, revision: 4 },
    ]
    await send({ backlog: 6, policies })
    expect(await twin.device(device.id)).toMatchObject({
      ...{ lastSyncAt: twin.time, backlog: 6, appliedPolicies: [{ instanceId: INSTANCE, revision: 3 }] },
      clock: { now: START, earliest: START, latest: null, takenAt: twin.time },
    })
    expect(twin.heartbeats).toEqual([device.id])
    expect(await epoch()).toMatchObject({ lastSeq: 1, quietSince: twin.time })
  })

  it('is asked to return its tokens until it has none, and the order ends with that', async () => {
    await device.sync([topUpRequest(LINE, 10n)])
    await change({ releaseRequested: true })
    expect(await device.sync()).toMatchObject({ directives: ['release'] })
    expect(await twin.device(device.id)).toMatchObject({ releaseRequested: true })
    device.giveBack(LINE)
    expect(await device.sync()).toMatchObject({ directives: [] })
    expect(await twin.device(device.id)).toMatchObject({ releaseRequested: false })
  })

  it('is granted nothing while the device is locked, nor with its last segment', async () => {
    await change({ suspension: { state: 'LOCKED', since: START, by: 'ada' } })
    expect(await device.sync([topUpRequest(LINE, 10n)])).toMatchObject({ outcome: 'MERGED', grant: { accounts: [] } })
    await change({ suspension: null })
    const last = await device.sync([topUpRequest(LINE, 10n)], true)
    expect(last).toMatchObject({ outcome: 'FENCED', closed: true })
    expect(await twin.store.read((reader) => reader.edge.deviceAccounts.ofEpoch(device.id, 1))).toEqual(new Map())
    expect(await epoch()).toMatchObject({ status: 'CLOSED' })
  })

  it('uses an account from the segment on in which it has charged it', async () => {
    // Others were refused tokens of the pool, so only a device that uses the account gets some in advance.
    const others = await Promise.all(Array.from({ length: 4 }, () => TestDevice.join(twin)))
    await others[0]?.sync([topUpRequest(LINE, 0n, 800n)])
    await device.sync([topUpRequest(LINE, 0n, 150n)])
    await others[1]?.sync([topUpRequest(LINE, 0n, 400n)])
    await device.sync([topUpRequest(LINE, 500n)])
    expect(device.available(LINE)).toBe(150n)
    expect(device.charge(charge(150n))).toBe(true)
    expect(await device.sync([topUpRequest(LINE, 500n)])).toMatchObject({ outcome: 'MERGED' })
    const [note] = await shortagesIn(twin.store, LINE, [device.id])
    expect(note?.keep).not.toBeNull()
  })

  it('says which session it no longer keeps with its first segment only', async () => {
    const session = {
      ...{ id: SESSION, instanceId: INSTANCE, state: 'ACTIVE' as const, created: START, since: START },
      ...{ lastHeartbeat: 0, lastAccessRequest: START, requester: { type: 'user', value: 'ada' }, charge: null },
    }
    const stateOf = async () => (await twin.store.read((reader) => reader.sessions.get(SESSION)))?.state
    await send({ sessions: [session] })
    expect(await stateOf()).toBe('ACTIVE')
    await send({ sessions: [] })
    expect(await stateOf()).toBe('ACTIVE')
    await device.attach()
    await send({ sessions: [session] })
    expect(await stateOf()).toBe('ACTIVE')
    await device.attach()
    await send({ sessions: [] })
    expect(await stateOf()).toBe('DISCONNECTED')
  })
})

describe('an earlier epoch', () => {
  it('neither reports for its device nor returns tokens for it', async () => {
    await device.sync([topUpRequest(LINE, 10n)])
    device.charge(charge(4n))
    const late = device.copy()
    await device.attach()
    await send({ backlog: 2 })
    await change({ releaseRequested: true })
    const answer = await send({ backlog: 9, policies: [{ instanceId: INSTANCE, revision: 9 }] }, late)
    expect(answer).toMatchObject({ outcome: 'FENCED', closed: false })
    expect(await twin.device(device.id)).toMatchObject({
      ...{ backlog: 2, appliedPolicies: [{ instanceId: INSTANCE, revision: 1 }], releaseRequested: true },
    })
    expect((await usage()).map(({ tokens }) => tokens)).toEqual([4n])
  })

  it('is closed by the final segment with all of its entries', async () => {
    await device.sync([topUpRequest(LINE, 10n)])
    device.charge(charge(4n))
    const late = device.copy()
    await device.attach()
    expect(await late.sync([], true)).toMatchObject({ outcome: 'FENCED', closed: true })
    expect(await epoch()).toMatchObject({ status: 'CLOSED', lastEntry: 1 })
    expect((await twin.pool(LINE)).grantedOut).toBe(4n)
  })
})

describe('an entry', () => {
  it('that was billed before is not billed again with a segment that repeats it', async () => {
    await device.sync([topUpRequest(LINE, 100n)])
    device.charge(charge(4n))
    await device.sync()
    device.charge(charge(5n))
    await device.sync()
    expect((await usage()).map(({ tokens }) => tokens)).toEqual([5n, 4n])
    expect(await epoch()).toMatchObject({ lastEntry: 2 })
  })
})

describe('use above the grant', () => {
  it('of an essential line item becomes a part of the grant, which the device receives without a request', async () => {
    await setOfflinePolicy(twin, INSTANCE, 'ACT-1', 50n)
    await device.sync([topUpRequest(LINE, 10n), topUpRequest(OTHER, 10n)])
    device.chargeInOverspend(charge(30n))
    device.charge({ ...charge(3n, OTHER), lineItemId: 'ACT-2' })
    const answer = await device.sync()
    expect(answer).toMatchObject({ outcome: 'MERGED', grant: { accounts: [{ account: LINE, granted: 30n }] } })
    if (answer.outcome === 'MERGED') expect(answer.grant?.accounts).toHaveLength(1)
    expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 30n, billedByDevices: 30n })
  })

  it('beyond any counter is refused as a whole', async () => {
    await twin.setLineItem('ACT-1', { quantity: 1_000n, overdraft: 'UNLIMITED' })
    await device.sync([topUpRequest(LINE, 10n)])
    const body = device.payload()
    const text = JSON.stringify({ n: 1 })
    const forged: SegmentWire = {
      ...body,
      counters: [{ account: LINE, used: String(MICRO_MAX), refunded: '0', returned: '0' }],
      entries: { ...body.entries, bodies: [text], head: entryHash(body.entries.head, text) },
    }
    const sealed = await device.sealAs(forged)
    expect(await twin.sync(device.id, sealed.document)).toMatchObject({ accepted: false })
    expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 0n, billedByDevices: 0n })
  })
})
