// Syncs that share a transaction, for every store.
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { randomUUID } from 'node:crypto'
import { type Session, newSession } from '../../../src/core/sessions/session.ts'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { NO_SHORTAGES } from '../../../src/cloud/storage/device-records.ts'
import type { Store } from '../../../src/cloud/storage/store.ts'
import { Unusual } from '../../../src/cloud/sync/loaded-syncs.ts'
import type { SyncDeps } from '../../../src/cloud/sync/merge-context.ts'
import { SyncBatcher } from '../../../src/cloud/sync/sync-batcher.ts'
import { setOfflinePolicy } from '../../../src/cloud/policy/offline-policy.ts'
import { openSegment } from '../../../src/cloud/sync/open-segment.ts'
import { shortTimes } from '../../../src/cloud/sync/grants/rebalance.ts'
import { type OpenedSync, receiveSegment } from '../../../src/cloud/sync/receive-segment.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { revokeDevice } from '../../../src/cloud/devices/devices.ts'
import { listUsage } from '../usage/list-usage.ts'
import { type Asked, TestDevice, topUpRequest } from './test-device.ts'
import { DAY, HOUR, INSTANCE, type Twin } from './twin.ts'

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

    const epochOf = ({ id }: TestDevice) => twin.store.read((reader) => reader.edge.epochs.get(id, 1))

    /** A sync of each device, which has charged 30 tokens. */
    const openedSyncs = () => Promise.all(devices.map((device) => chargedSync(twin, device)))

    /** Receives them at the same time. */
    const receive = (syncs: readonly OpenedSync[], batcher = twin.syncDeps.syncBatcher) =>
      Promise.all(syncs.map((sync) => batcher.receive(sync)))

    const expectMerged = (results: Awaited<ReturnType<typeof receive>>) =>
      expect(results.map(({ outcome }) => outcome)).toEqual(devices.map(() => 'MERGE'))

    /** The sync of a device fails after all of its work, and only that one. */
    const receiveWithFailureOf = async (failing: TestDevice) => {
      const heartbeat: SyncDeps['heartbeat'] = async (tx, device, ...rest) => {
        await twin.syncDeps.heartbeat(tx, device, ...rest)
        if (device.id === failing.id) throw new CodedError('GRANTS_FORGOTTEN', 'at the end')
      }
      const batcher = new SyncBatcher({ ...twin.syncDeps, heartbeat }, setImmediate)
      const syncs = await openedSyncs()
      const results = await Promise.allSettled(syncs.map((sync) => batcher.receive(sync)))
      const failed = results.map(({ status }) => status === 'rejected')
      expect(failed).toEqual(devices.map((device) => device === failing))
    }

    const together = (asked: readonly Asked[] = [topUpRequest(LINE, 50n)]) =>
      Promise.all(devices.map((device) => device.sync(asked)))

    it('share one transaction when they wait at the same time', async () => {
      const syncs = await openedSyncs()
      const transactions = vi.spyOn(twin.store, 'transaction')
      const results = await receive(syncs)
      expectMerged(results)
      expect(transactions).toHaveBeenCalledTimes(1)
      expect(await twin.pool(LINE)).toMatchObject({ billedByDevices: BigInt(DEVICES * 30) })
    })

    it('all count as waiting for their transaction', async () => {
      const syncs = await openedSyncs()
      const waiting: number[] = []
      const counting: Pick<Store, 'transaction'> = {
        transaction: (work) =>
          twin.store.transaction((tx) => work({ ...tx, serves: (count) => void waiting.push(count) })),
      }
      const batcher = new SyncBatcher({ ...twin.syncDeps, store: { ...twin.store, ...counting } }, setImmediate)
      await receive(syncs, batcher)
      expect(waiting).toEqual([DEVICES])
    })

    it.each([100_000n, 450n, 350n])(
      'have the results of syncs with transactions for themselves if there are %s tokens',
      async (quantity) => {
        expect(await playedOn(open, quantity, true)).toEqual(await playedOn(open, quantity, false))
      },
    )

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

    it('grant in advance at most a fair share when all devices were silent for longer than the grant horizon', async () => {
      twin.time += 2 * DAY
      const last = devices.at(-1)
      const syncs = []
      for (const device of devices) {
        syncs.push(await openedOf(twin, device, [topUpRequest(LINE, device === last ? 100_000n : 60n)]))
      }
      const transactions = vi.spyOn(twin.store, 'transaction')
      const results = await receive(syncs)
      expect(transactions).toHaveBeenCalledTimes(1)
      for (const [index, device] of devices.entries()) await device.accept(answerOf(results[index]))
      const granted = devices.map((device) => device.counters(LINE).granted)
      expect(granted).toEqual([...Array<bigint>(DEVICES - 1).fill(60n), 100_000n / BigInt(DEVICES)])
    })

    it('share one transaction while their account is short', async () => {
      await twin.setLineItem('ACT-1', { quantity: BigInt(DEVICES * 50) })
      await together([topUpRequest(LINE, 100n, 100n)])
      const transactions = vi.spyOn(twin.store, 'transaction')
      const syncs = await openedSyncs()
      const results = await receive(syncs)
      expectMerged(results)
      expect(transactions).toHaveBeenCalledTimes(1)
      expect(await twin.pool(LINE)).toMatchObject({ billedByDevices: BigInt(DEVICES * 30) })
    })

    it('have transactions for themselves if one with a short account fails after its balances were written', async () => {
      await twin.setLineItem('ACT-1', { quantity: BigInt(DEVICES * 50) })
      await together([topUpRequest(LINE, 100n, 100n)])
      const [failing, ...others] = devices as [TestDevice, ...TestDevice[]]
      const before = await epochOf(failing)
      await receiveWithFailureOf(failing)
      expect(await epochOf(failing)).toEqual(before)
      expect((await twin.pool(LINE)).billedByDevices).toBe(BigInt(others.length * 30))
    })

    it('are written in parts if there are many', async () => {
      // The store remembers figures of many devices, and later tests begin at an earlier time.
      twin.time += DAY
      while (devices.length < 40) {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 50n)])
        devices.push(device)
      }
      const syncs = await openedSyncs()
      const transactions = vi.spyOn(twin.store, 'transaction')
      const results = await receive(syncs)
      expect(transactions).toHaveBeenCalledTimes(1)
      for (const [index, device] of devices.entries()) {
        await device.accept(answerOf(results[index]))
        device.charge({ lineItemId: 'ACT-1', accounts: [LINE], amount: 1n })
      }
      // The next segments continue what was written.
      await together()
      expect((await twin.pool(LINE)).billedByDevices).toBe(BigInt(devices.length * 31))
    })

    it('answer a segment that comes twice at the same time with the same bytes, in a second transaction, and bill it once', async () => {
      const [device] = devices as [TestDevice]
      const sync = await chargedSync(twin, device)
      const transactions = vi.spyOn(twin.store, 'transaction')
      const results = await receive([sync, { ...sync }])
      expect(results.map(({ outcome }) => outcome)).toEqual(['MERGE', 'REPEAT'])
      expect(transactions).toHaveBeenCalledTimes(2)
      const answers = results.map(({ merge }) => merge.accepted && merge.answer)
      expect(answers[0]).toEqual(expect.any(String))
      expect(answers[1]).toBe(answers[0])
      expect((await twin.pool(LINE)).billedByDevices).toBe(30n)
    })

    it('roll back a refused one, and commit the others', async () => {
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
      expect(others.map((each) => each.status === 'fulfilled' && each.value.accepted)).toEqual([
        ...honest.map(() => true),
        false,
      ])
      expect((await twin.pool(LINE)).billedByDevices).toBe(BigInt(honest.length * 30))
    })

    it('roll back one that fails at its end, and commit the others', async () => {
      const [failing, ...others] = devices as [TestDevice, ...TestDevice[]]
      const before = await epochOf(failing)
      await receiveWithFailureOf(failing)
      expect(await epochOf(failing)).toEqual(before)
      expect((await twin.pool(LINE)).billedByDevices).toBe(BigInt(others.length * 30))
    })

    it('roll back one that needs its own transaction, and run it there', async () => {
      const [unusual] = devices as [TestDevice]
      const syncs = await openedSyncs()
      let calls = 0
      const heartbeat = async (_tx: unknown, { id }: Pick<TestDevice, 'id'>): Promise<void> => {
        if (id === unusual.id && ++calls === 1) throw new Unusual()
      }
      const transactions = vi.spyOn(twin.store, 'transaction')
      const batcher = new SyncBatcher({ ...twin.syncDeps, heartbeat }, setImmediate)
      const results = await receive(syncs, batcher)
      expectMerged(results)
      expect(transactions).toHaveBeenCalledTimes(2)
      expect((await twin.pool(LINE)).billedByDevices).toBe(BigInt(DEVICES * 30))
    })

    it('share one transaction if their devices have sessions in the cloud, and are heartbeats of these', async () => {
      const [, none, two] = devices as [TestDevice, TestDevice, TestDevice]
      const sessions = await openSessions(twin, [...devices.filter((device) => device !== none), two])
      const [locked, ...live] = sessions as [Session, ...Session[]]
      await twin.store.transaction((tx) => tx.sessions.save({ ...locked, state: 'LOCKED' }))
      twin.time += 60_000
      const syncs = await openedSyncs()
      const transactions = vi.spyOn(twin.store, 'transaction')
      const results = await receive(syncs)
      expectMerged(results)
      expect(transactions).toHaveBeenCalledTimes(1)
      const stored = (id: string) => twin.store.read((reader) => reader.sessions.get(id))
      for (const session of live) expect(await stored(session.id)).toEqual({ ...session, lastHeartbeat: twin.time })
      expect(await stored(locked.id)).toEqual({ ...locked, state: 'LOCKED' })
    })

    it('do not change the session of one that fails', async () => {
      const [failing] = devices as [TestDevice]
      const [session] = (await openSessions(twin, devices)) as [Session]
      twin.time += 60_000
      await receiveWithFailureOf(failing)
      expect(await twin.store.read((reader) => reader.sessions.get(session.id))).toEqual(session)
    })

    it('have a transaction for themselves if their device keeps a session', async () => {
      const [keeper] = devices as [TestDevice]
      const kept = {
        ...newSession({ id: randomUUID(), instanceId: INSTANCE, deviceId: null }, twin.time),
        keptBy: keeper.id,
      }
      await twin.store.transaction((tx) => tx.sessions.insert(kept))
      const syncs = await openedSyncs()
      const transactions = vi.spyOn(twin.store, 'transaction')
      const results = await receive(syncs)
      expectMerged(results)
      expect(transactions).toHaveBeenCalledTimes(2)
    })

    it('learn at once of an account that another one brings above its cap', async () => {
      await twin.setLineItem('ACT-1', { quantity: BigInt(DEVICES * 50) })
      await setOfflinePolicy(twin, INSTANCE, 'ACT-1', 50n)
      const [above, idle] = devices as [TestDevice, TestDevice]
      above.chargeInOverspend({ lineItemId: 'ACT-1', accounts: [LINE], amount: 70n })
      const syncs = [await openedOf(twin, above, []), await openedOf(twin, idle, [])]
      const transactions = vi.spyOn(twin.store, 'transaction')
      const results = await receive(syncs)
      expect(transactions).toHaveBeenCalledTimes(1)
      expect(await idle.accept(answerOf(results[1]))).toMatchObject({ releases: [{ account: LINE }] })
    })

    it('are run again by the store after a failure of the store', async () => {
      const syncs = await openedSyncs()
      const lost = new Error('the connection was lost')
      const failures: unknown[] = []
      const heartbeat = async (): Promise<void> => {
        if (failures.length === 0) throw lost
      }
      const transaction = twin.store.transaction.bind(twin.store)
      vi.spyOn(twin.store, 'transaction').mockImplementation(async (work) => {
        try {
          return await transaction(work)
        } catch (error) {
          failures.push(error)
          return transaction(work)
        }
      })
      const batcher = new SyncBatcher({ ...twin.syncDeps, heartbeat }, setImmediate)
      const results = await receive(syncs, batcher)
      expect(failures).toEqual([lost])
      expectMerged(results)
      expect((await twin.pool(LINE)).billedByDevices).toBe(BigInt(DEVICES * 30))
    })

    it('have transactions for themselves after a failure that one of them may have caused', async () => {
      const syncs = await openedSyncs()
      failOnce(twin.store, new Error('a value is refused'))
      const results = await receive(syncs)
      expectMerged(results)
      expect((await twin.pool(LINE)).billedByDevices).toBe(BigInt(DEVICES * 30))
    })

    it('all fail if the outcome of their transaction is unknown', async () => {
      const syncs = await openedSyncs()
      failOnce(twin.store, new CodedError('OUTCOME_UNKNOWN', 'The connection was lost.'))
      for (const each of await Promise.allSettled(syncs.map((sync) => twin.syncDeps.syncBatcher.receive(sync)))) {
        expect(each).toMatchObject({ status: 'rejected', reason: { code: 'OUTCOME_UNKNOWN' } })
      }
    })
  })
}

/** The books of a twin whose devices have charged, refunded and returned tokens. */
async function playedOn(open: () => Promise<Twin>, quantity: bigint, sharesTransactions: boolean) {
  await using twin = await open()
  twin.sharesTransactions = sharesTransactions
  const devices = await fleetOf(twin)
  const sessions = await openSessions(twin, devices.slice(1))
  await twin.setLineItem('ACT-1', { quantity })
  const answers = []
  for (let round = 1n; round <= 4n; round += 1n) {
    // After an outage, no device was in contact until it syncs.
    twin.time += round === 4n ? HOUR : 1_000
    for (const [index, device] of devices.entries()) {
      const amount = round * BigInt(index + 1)
      device.charge({ lineItemId: 'ACT-1', accounts: [LINE], amount })
      if (round === 2n) device.refund({ lineItemId: 'ACT-1', accounts: [LINE], amount: 1n })
      if (round === 3n) device.giveBack(LINE, 20n)
    }
    const asked = [topUpRequest(LINE, 40n + 20n * round, 60n + round)]
    // The same sequence in both cases.
    const syncs = []
    for (const device of devices) syncs.push(await openedOf(twin, device, asked))
    const { syncDeps } = twin
    const judged = []
    if (sharesTransactions) {
      judged.push(...(await Promise.all(syncs.map((sync) => syncDeps.syncBatcher.receive(sync)))))
    } else {
      for (const sync of syncs) judged.push(await twin.store.transaction((tx) => receiveSegment(syncDeps, tx, sync)))
    }
    for (const [index, device] of devices.entries()) answers.push(await device.accept(answerOf(judged[index])))
  }
  const epochs = await twin.store.read(async (reader) => {
    const found = []
    for (const { id } of devices) found.push(await reader.edge.epochs.get(id, 1))
    return found.map((epoch) => ({ status: epoch?.status, seq: epoch?.lastSeq, entry: epoch?.lastEntry }))
  })
  const times = shortTimes(twin.time, twin.syncDeps.terms)
  const shortages = await twin.store.read(async ({ edge }) => {
    const found = []
    for (const { id } of devices) {
      const { own, ...others } = (await edge.shortages.of([LINE], times, id)).get(LINE) ?? NO_SHORTAGES
      found.push({ ...others, own: own && { ...own, who: null } })
    }
    return found
  })
  const { records } = await twin.store.read((reader) => listUsage(reader, { limit: 1_000 }))
  return {
    pool: await twin.pool(LINE),
    counters: devices.map((device) => device.counters(LINE)),
    heartbeats: await twin.store.read(async (reader) => {
      const found = []
      for (const { id } of sessions) found.push((await reader.sessions.get(id))?.lastHeartbeat)
      return found
    }),
    devices: (await Promise.all(devices.map(({ id }) => twin.device(id)))).map(withoutIdentity),
    epochs,
    shortages,
    grants: answers.map((answer) => answer.outcome === 'MERGED' && [answer.grant?.accounts, answer.releases]),
    usage: records.map(({ operation, status, tokens }) => `${operation} ${status} ${tokens}`).sort(),
  }
}

function answerOf(result: Awaited<ReturnType<SyncBatcher['receive']>> | undefined): string {
  if (result?.merge.accepted !== true) throw new Error('each sync is merged')
  return result.merge.answer
}

/** One for each, as its agent opens it. */
export async function openSessions(twin: Twin, devices: readonly TestDevice[]): Promise<readonly Session[]> {
  const sessions = devices.map(({ id }) =>
    newSession({ id: randomUUID(), instanceId: INSTANCE, deviceId: id }, twin.time),
  )
  await twin.store.transaction(async (tx) => {
    for (const session of sessions) await tx.sessions.insert(session)
  })
  return sessions
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

async function chargedSync(twin: Twin, device: TestDevice): Promise<OpenedSync> {
  device.charge({ lineItemId: 'ACT-1', accounts: [LINE], amount: 30n })
  return openedOf(twin, device, [topUpRequest(LINE, 50n)])
}

/** A sync whose segment was opened. */
export async function openedOf(twin: Twin, device: TestDevice, asked: readonly Asked[]): Promise<OpenedSync> {
  const { document } = await device.seal(asked)
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
