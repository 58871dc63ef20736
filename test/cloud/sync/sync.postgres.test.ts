import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Session } from '../../../src/core/sessions/session.ts'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { type PostgresStore, openPostgresStore } from '../../../src/cloud/storage/postgres/store.ts'
import { SyncBatcher } from '../../../src/cloud/sync/sync-batcher.ts'
import { sync } from '../../../src/cloud/sync/sync.ts'
import { PostgresNodes } from '../../support/postgres-nodes.ts'
import { postgres } from '../../support/servers.ts'
import { deviceKeySuite } from '../devices/device-key.suite.ts'
import { restoredSuite } from './recovery/restored.suite.ts'
import { rebalanceSuite } from './grants/rebalance.suite.ts'
import { expireInactiveSuite } from './grants/expire-inactive.suite.ts'
import { openSessions, openedOf, syncBatcherSuite } from './sync-batcher.suite.ts'
import { syncSuite } from './sync.suite.ts'
import { undeliveredSuite } from './merge/undelivered.suite.ts'
import { TestDevice, newDeviceKeys, topUpRequest } from './test-device.ts'
import { DAY, INSTANCE, Twin } from './twin.ts'
import { listUsage } from '../usage/list-usage.ts'

const LINE = lineAccount(INSTANCE, 'ACT-1', 0)

const stores = new PostgresNodes(postgres())
const openTwin = async () => Twin.over(await stores.first())

syncSuite('segments, over PostgreSQL', openTwin)
syncBatcherSuite('concurrent syncs, over PostgreSQL', openTwin)
undeliveredSuite('undelivered entries, over PostgreSQL', openTwin)
rebalanceSuite('scarcity, over PostgreSQL', openTwin)
restoredSuite('a restored twin, over PostgreSQL', openTwin)
expireInactiveSuite('silence, over PostgreSQL', openTwin)
deviceKeySuite('the key of a device, over PostgreSQL', openTwin)

describe('concurrent syncs beside other transactions, over PostgreSQL', () => {
  let twin: Twin
  let devices: TestDevice[]
  beforeEach(async () => {
    twin = await openTwin()
    await twin.setLineItem('ACT-1', { quantity: 100_000n })
    devices = []
    while (devices.length < 4) devices.push(await TestDevice.join(twin))
    for (const device of devices) await device.sync([topUpRequest(LINE, 50n)])
  })
  afterEach(async () => twin[Symbol.asyncDispose]())

  it.each(['device', 'session'])('delay no sync of another device while one %s is locked', async (kind) => {
    const [locked, ...others] = devices as [TestDevice, ...TestDevice[]]
    const [session] = (await openSessions(twin, devices)) as [Session]
    const held = Promise.withResolvers<undefined>()
    const release = Promise.withResolvers<undefined>()
    const holder = twin.store.transaction(async (tx) => {
      await (kind === 'device' ? tx.edge.devices.lock(locked.id) : tx.sessions.lock(session.id))
      held.resolve(undefined)
      await release.promise
    })
    await held.promise
    twin.time += 60_000
    const orders = await Promise.all(devices.map((device) => openedOf(twin, device, [topUpRequest(LINE, 51n)])))
    const answered: string[] = []
    const syncs = orders.map(async (order) => {
      await twin.syncDeps.syncBatcher.receive(order)
      answered.push(order.deviceId)
    })
    try {
      // Less than the lock timeout.
      await expect.poll(() => answered.length, { timeout: 3_000 }).toBe(others.length)
      expect(answered).not.toContain(locked.id)
    } finally {
      release.resolve(undefined)
    }
    await Promise.all([holder, ...syncs])
    const { lastHeartbeat } = (await twin.store.read((reader) => reader.sessions.get(session.id))) ?? {}
    expect(lastHeartbeat).toBe(twin.time)
  })

  it('have no deadlock with a change of all epochs', async () => {
    const reruns: unknown[] = []
    const nodes = await Promise.all(
      [1, 2].map(() =>
        openPostgresStore({
          url: stores.url,
          onConnectionLost: () => undefined,
          onRerun: (cause) => void reruns.push(cause),
        }),
      ),
    )
    const [forSyncs, forMoves] = nodes as [PostgresStore, PostgresStore]
    while (devices.length < 16) {
      const device = await TestDevice.join(twin)
      await device.sync([topUpRequest(LINE, 50n)])
      devices.push(device)
    }
    const batcher = new SyncBatcher({ ...twin.syncDeps, store: forSyncs }, setImmediate)
    const state = { isOver: false }
    const moves = (async () => {
      while (!state.isOver) await forMoves.transaction((tx) => tx.edge.epochs.moveInactivity(1, twin.now() + DAY))
    })()
    for (let round = 0; round < 10; round += 1) {
      twin.time += 1_000
      // Another sequence in each round.
      devices.push(...devices.splice(0, 5))
      await Promise.all(
        devices.map(async (device) => {
          const { document } = await device.seal([topUpRequest(LINE, 50n)])
          const { accepted, ...result } = await sync(
            { ...twin.syncDeps, store: forSyncs, syncBatcher: batcher },
            await twin.device(device.id),
            document,
          )
          if (!accepted || !('answer' in result)) throw new Error('each is merged')
          await device.accept(result.answer ?? '')
        }),
      )
    }
    state.isOver = true
    await moves
    expect(reruns).toEqual([])
    await Promise.all(nodes.map((node) => node.close()))
  })
})

describe('two nodes over one PostgreSQL', () => {
  let nodes: [Twin, Twin]
  beforeEach(async () => {
    const first = await openTwin()
    nodes = [first, await first.anotherNode(await stores.another())]
    await first.setLineItem('ACT-1', { quantity: 1_000n })
  })
  afterEach(async () => {
    for (const node of nodes) await node[Symbol.asyncDispose]()
  })
  const eachNode = <T>(work: (node: Twin) => Promise<T>): Promise<T[]> => Promise.all([...nodes, ...nodes].map(work))

  it('settle a silent device once, also when two nodes look at the same time', async () => {
    const [node] = nodes
    const device = await TestDevice.join(node)
    await device.sync([topUpRequest(LINE, 100n)])
    for (const each of nodes) each.time += 31 * DAY
    await eachNode((each) => each.settle())
    expect((await node.pool(LINE)).billedByDevices).toBe(100n)
    const { records } = await node.store.read((reader) => listUsage(reader, { limit: 10 }))
    expect(records.map(({ status, tokens }) => [status, tokens])).toEqual([['PRESUMED', 100n]])
  })

  it('give one answer to a segment that reaches both at the same time, and bill it once', async () => {
    const [node] = nodes
    const device = await TestDevice.join(node)
    await device.sync([topUpRequest(LINE, 100n)])
    device.charge({ lineItemId: 'ACT-1', accounts: [LINE], amount: 30n })
    const { document } = await device.seal([topUpRequest(LINE, 100n)])
    const answers = await eachNode((each) => each.sync(device.id, document))
    expect(new Set(answers.map((taken) => taken.accepted && taken.answer)).size).toBe(1)
    expect(await node.pool(LINE)).toMatchObject({ grantedOut: 130n, billedByDevices: 30n })
  })

  it('give one epoch for one nonce', async () => {
    const [node] = nodes
    const device = await TestDevice.join(node)
    const answers = await eachNode((each) => each.attach(device.id, 'one nonce for all of them'))
    expect(new Set(answers).size).toBe(1)
    expect(await node.device(device.id)).toMatchObject({ epoch: 2 })
  })

  it('let one device in by one token, also when it asks both at the same time', async () => {
    const [node] = nodes
    const keys = await newDeviceKeys()
    const token = await node.enrollmentToken()
    const enrolled = await eachNode((each) => each.enroll(token, keys.jwk))
    expect(new Set(enrolled.map(({ deviceId }) => deviceId)).size).toBe(1)
  })

  it('never grant together more than there is, also for concurrent requests', { timeout: 120_000 }, async () => {
    const devices = await Promise.all(Array.from({ length: 8 }, async (_, index) => TestDevice.join(nodes[index % 2]!)))
    let spent = 0n
    for (let round = 0; round < 5; round++) {
      await Promise.all(
        devices.map(async (device, index) => {
          await device.sync([topUpRequest(LINE, 300n, 50n)])
          if (device.charge({ lineItemId: 'ACT-1', accounts: [LINE], amount: 40n })) spent += 40n
          if (index % 3 === 0) device.giveBack(LINE)
          if (index % 4 === 0) await nodes[0].chargeDirectly(LINE, 7n)
        }),
      )
      const pool = await nodes[1].pool(LINE)
      expect(pool.charged + pool.grantedOut <= 1_000n).toBe(true)
    }
    for (const device of devices) await device.sync([], true)
    const { charged, grantedOut, billedByDevices } = await nodes[0].pool(LINE)
    expect(billedByDevices).toBe(spent)
    expect(grantedOut).toBe(spent)
    expect(charged + grantedOut <= 1_000n).toBe(true)
    expect(spent).toBeGreaterThan(0n)
  })
})
