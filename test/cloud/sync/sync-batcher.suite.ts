// Syncs that share a transaction, for every store.
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import type { Store } from '../../../src/cloud/storage/store.ts'
import { openSegment } from '../../../src/cloud/sync/open-segment.ts'
import type { SyncOrder } from '../../../src/cloud/sync/receive-segment.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { revokeDevice } from '../../../src/cloud/devices/devices.ts'
import { listUsage } from '../usage/list-usage.ts'
import { type Asked, TestDevice, topUpRequest } from './test-device.ts'
import { INSTANCE, type Twin } from './twin.ts'

const LINE = lineAccount(INSTANCE, 'ACT-1', 0)
const DEVICES = 6

/** @param open a twin with nothing in it but the instance */
export function syncBatcherSuite(name: string, open: () => Promise<Twin>): void {
  describe(name, () => {
    let twin: Twin
    let devices: TestDevice[]
    beforeEach(async () => {
      twin = await open()
      devices = await fleetOf(twin)
    })
    afterEach(async () => twin[Symbol.asyncDispose]())

    const together = (asked: readonly Asked[] = [topUpRequest(LINE, 50n)]) =>
      Promise.all(devices.map((device) => device.sync(asked)))

    it('share one transaction when they wait at the same time', async () => {
      const orders = await Promise.all(devices.map((device) => orderOf(twin, device)))
      const transactions = vi.spyOn(twin.store, 'transaction')
      const results = await Promise.all(orders.map((order) => twin.syncDeps.together.receive(order)))
      expect(results.map(({ outcome }) => outcome)).toEqual(devices.map(() => 'MERGE'))
      expect(transactions).toHaveBeenCalledTimes(1)
      expect(await twin.pool(LINE)).toMatchObject({ billedByDevices: BigInt(DEVICES * 30) })
    })

    it('have the results of syncs with transactions for themselves', async () => {
      expect(await playedOn(open, true)).toEqual(await playedOn(open, false))
    })

    it('give each pool to one sync after another: together they get no more than there is', async () => {
      await twin.setLineItem('ACT-1', { quantity: 400n })
      for (let round = 0; round < 3; round += 1) {
        await together([topUpRequest(LINE, 100n)])
        const { grantedOut, charged } = await twin.pool(LINE)
        const held = devices.reduce((sum, device) => sum + device.counters(LINE).granted, 0n)
        expect(grantedOut).toBe(held)
        expect(charged + grantedOut).toBeLessThanOrEqual(400n)
      }
    })

    it('have transactions for themselves for a while after their account was short', async () => {
      await twin.setLineItem('ACT-1', { quantity: BigInt(DEVICES * 50) })
      // The first time notes that they are short, and the second time finds the notes.
      for (let time = 0; time < 2; time += 1) await together([topUpRequest(LINE, 100n, 100n)])
      const shared = vi.spyOn(twin.store, 'transaction')
      const orders = await Promise.all(devices.map((device) => orderOf(twin, device)))
      await Promise.all(orders.map((order) => twin.syncDeps.together.receive(order)))
      expect(shared).toHaveBeenCalledTimes(DEVICES)
    })

    it('answer a segment that comes twice at the same time with the same bytes, and bill it once', async () => {
      const [device] = devices as [TestDevice]
      const { document } = await chargedBy(device)
      const results = await Promise.all([1, 2].map(() => twin.sync(device.id, document)))
      const answers = results.map((result) => result.taken && result.answer)
      expect(answers[0]).toEqual(expect.any(String))
      expect(answers[1]).toBe(answers[0])
      expect((await twin.pool(LINE)).billedByDevices).toBe(30n)
    })

    it('leave no trace of one that is refused, and take the others', async () => {
      const [revoked, liar, ...honest] = devices as [TestDevice, TestDevice, ...TestDevice[]]
      const segments = await Promise.all([revoked, ...honest].map((device) => chargedBy(device)))
      liar.charge({ lineItemId: 'ACT-1', accounts: [LINE], amount: 30n })
      const payload = liar.payload()
      const lie = await liar.sealAs({
        ...payload,
        counters: payload.counters.map((counter) => ({ ...counter, used: '31' })),
      })
      await revokeDevice(twin, revoked.id)
      const results = await Promise.allSettled([
        ...[revoked, ...honest].map(({ id }, index) => twin.sync(id, segments[index]?.document ?? '')),
        twin.sync(liar.id, lie.document),
      ])
      const [ofRevoked, ...others] = results
      expect(ofRevoked).toMatchObject({ status: 'rejected', reason: { code: 'DEVICE_REVOKED' } })
      expect(others.map((each) => each.status === 'fulfilled' && each.value.taken)).toEqual([
        ...honest.map(() => true),
        false,
      ])
      expect((await twin.pool(LINE)).billedByDevices).toBe(BigInt(honest.length * 30))
    })

    it('have transactions for themselves after a failure that one of them may have caused', async () => {
      const orders = await Promise.all(devices.map((device) => orderOf(twin, device)))
      failOnce(twin.store, new Error('a value is refused'))
      const results = await Promise.all(orders.map((order) => twin.syncDeps.together.receive(order)))
      expect(results.map(({ outcome }) => outcome)).toEqual(devices.map(() => 'MERGE'))
      expect((await twin.pool(LINE)).billedByDevices).toBe(BigInt(DEVICES * 30))
    })

    it('all fail if the outcome of their transaction is unknown', async () => {
      const orders = await Promise.all(devices.map((device) => orderOf(twin, device)))
      failOnce(twin.store, new CodedError('OUTCOME_UNKNOWN', 'The connection was lost.'))
      for (const each of await Promise.allSettled(orders.map((order) => twin.syncDeps.together.receive(order)))) {
        expect(each).toMatchObject({ status: 'rejected', reason: { code: 'OUTCOME_UNKNOWN' } })
      }
    })
  })
}

/** The books of a twin whose devices have charged, refunded and returned tokens. */
async function playedOn(open: () => Promise<Twin>, sharesTransactions: boolean) {
  await using twin = await open()
  twin.sharesTransactions = sharesTransactions
  const devices = await fleetOf(twin)
  for (let round = 1n; round <= 4n; round += 1n) {
    for (const [index, device] of devices.entries()) {
      const amount = round * BigInt(index + 1)
      device.charge({ lineItemId: 'ACT-1', accounts: [LINE], amount })
      if (round === 2n) device.refund({ lineItemId: 'ACT-1', accounts: [LINE], amount: 1n })
      if (round === 3n) device.giveBack(LINE, 20n)
    }
    const asked = [topUpRequest(LINE, 40n + round)]
    if (sharesTransactions) await Promise.all(devices.map((device) => device.sync(asked)))
    else for (const device of devices) await device.sync(asked)
  }
  const epochs = await twin.store.read(async (reader) => {
    const found = []
    for (const { id } of devices) found.push(await reader.edge.epochs.get(id, 1))
    return found.map((epoch) => ({ status: epoch?.status, seq: epoch?.lastSeq, entry: epoch?.lastEntry }))
  })
  const { records } = await twin.store.read((reader) => listUsage(reader, { limit: 1_000 }))
  return {
    pool: await twin.pool(LINE),
    counters: devices.map((device) => device.counters(LINE)),
    devices: (await Promise.all(devices.map(({ id }) => twin.device(id)))).map(withoutIdentity),
    epochs,
    usage: records.map(({ operation, status, tokens }) => `${operation} ${status} ${tokens}`).sort(),
  }
}

/** Devices that have tokens. */
async function fleetOf(twin: Twin): Promise<TestDevice[]> {
  await twin.setLineItem('ACT-1', { quantity: 100_000n })
  const fleet: TestDevice[] = []
  while (fleet.length < DEVICES) fleet.push(await TestDevice.join(twin))
  for (const device of fleet) await device.sync([topUpRequest(LINE, 50n)])
  return fleet
}

function chargedBy(device: TestDevice) {
  device.charge({ lineItemId: 'ACT-1', accounts: [LINE], amount: 30n })
  return device.seal([topUpRequest(LINE, 50n)])
}

/** A sync whose segment was opened. */
async function orderOf(twin: Twin, device: TestDevice): Promise<SyncOrder> {
  const { document } = await chargedBy(device)
  const opening = await openSegment(device, device.keys.jwk, document)
  if (!opening.opened) throw new Error(opening.problem)
  const shown = { proofs: [], rules: [] }
  return { deviceId: device.id, segment: opening.segment, shown, now: twin.now(), present: twin.present() }
}

function withoutIdentity(device: Awaited<ReturnType<Twin['device']>>) {
  const { id: _id, publicKey: _key, thumbprint: _thumbprint, ...rest } = device
  return rest
}

/** At the end of the next transaction. */
function failOnce(store: Store, failure: Error): void {
  const transaction = store.transaction.bind(store)
  vi.spyOn(store, 'transaction').mockImplementationOnce((work) =>
    transaction(async (tx) => {
      await work(tx)
      throw failure
    }),
  )
}
