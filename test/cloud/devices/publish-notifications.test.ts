import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { NOTIFICATION_CLAIM_MS, NOTIFICATION_LOOK_MS } from '../../../src/cloud/devices/limits.ts'
import { NotificationPublisher, type PushMessage } from '../../../src/cloud/devices/publish-notifications.ts'
import type { Timers } from '../../../src/cloud/runtime/run-repeatedly.ts'
import { deviceTopic, policyTopic } from '../../../src/protocol/push.ts'
import { INSTANCE, Twin } from '../sync/twin.ts'

/** A broker that can be away. */
class FakeBroker {
  readonly published: PushMessage[] = []
  isConnected = true
  up = true
  /** Messages wait for this before they are acknowledged. */
  acknowledged: Promise<void> = Promise.resolve()
  /** Called after each message. */
  after: () => Promise<void> = async () => undefined

  async publish(message: PushMessage): Promise<void> {
    if (!this.up) throw new Error('the broker is away')
    this.published.push(message)
    await this.acknowledged
    await this.after()
  }
}

class HandTimers implements Timers {
  readonly calls = new Set<() => void | Promise<void>>()

  every(_ms: number, call: () => void | Promise<void>): () => void {
    this.calls.add(call)
    return () => this.calls.delete(call)
  }

  async fire(): Promise<void> {
    for (const call of this.calls) await call()
  }
}

let twin: Twin
let broker: FakeBroker
let timers: HandTimers
let publisher: NotificationPublisher
const logged: string[] = []
beforeEach(async () => {
  twin = await Twin.open()
  broker = new FakeBroker()
  timers = new HandTimers()
  logged.length = 0
  publisher = newPublisher()
})
afterEach(async () => {
  await publisher.stop()
  await twin[Symbol.asyncDispose]()
})

const newPublisher = () =>
  new NotificationPublisher({
    store: twin.store,
    broker,
    now: twin.now,
    timers,
    log: { info: (_, message) => void logged.push(message), warn: (_, message) => void logged.push(message) },
    lookEveryMs: 10_000,
  })

const notification = (revision: number) => ({ kind: 'policy', instanceId: INSTANCE, revision }) as const
const write = async (...revisions: number[]) =>
  twin.store.transaction((tx) => tx.outbox.append(revisions.map(notification), twin.time))
/** Notifications without a valid claim at this instant. */
const claimable = async (at: number) => {
  const ids: bigint[] = []
  const undo = new Error('undo')
  await twin.store
    .transaction(async (tx) => {
      ids.push(...(await tx.outbox.claim(100, at, at + NOTIFICATION_CLAIM_MS)).map(({ id }) => id))
      throw undo
    })
    .catch((error: unknown) => {
      if (error !== undo) throw error
    })
  return ids
}
const revisions = () => broker.published.map(({ payload }) => (JSON.parse(payload) as { revision: number }).revision)

describe('publishing change notifications', () => {
  it('publishes waiting and new notifications at once, and only once', async () => {
    await write(2)
    publisher.start()
    await publisher.idle()
    await write(3)
    await publisher.idle()
    await timers.fire()
    expect(revisions()).toEqual([2, 3])
    expect(broker.published[0]).toEqual({
      topic: policyTopic(INSTANCE),
      payload: JSON.stringify({ instanceId: INSTANCE, revision: 2 }),
      retain: true,
    })
  })

  it('says only the newest of many about one instance', async () => {
    await write(2, 3, 4)
    publisher.start()
    await publisher.idle()
    expect(revisions()).toEqual([4])
  })

  it('logs that the broker does not take them, and that it does again', async () => {
    broker.up = false
    await write(2)
    publisher.start()
    await publisher.idle()
    await timers.fire()
    await publisher.idle()
    expect(logged).toEqual(['change notifications were not published'])
    broker.up = true
    for (let look = 0; look < 2; look += 1) {
      await timers.fire()
      await publisher.idle()
    }
    expect(logged).toEqual(['change notifications were not published', 'change notifications are published again'])
  })

  it('keeps nothing of a change notification to one device at the broker', async () => {
    publisher.start()
    const order = { kind: 'device', deviceId: 'd', reason: 'sync' } as const
    await twin.store.transaction((tx) => tx.outbox.append([order], twin.time))
    await publisher.idle()
    expect(broker.published).toEqual([{ topic: deviceTopic('d'), payload: '{"reason":"sync"}', retain: false }])
  })

  it('tries again at the next look after a failure, without waiting for its own claim', async () => {
    broker.up = false
    publisher.start()
    await write(2)
    await publisher.idle()
    broker.up = true
    await timers.fire()
    expect(revisions()).toEqual([2])
  })

  it('leaves notifications to other nodes while it has no connection', async () => {
    broker.isConnected = false
    publisher.start()
    await write(2)
    await timers.fire()
    expect((await twin.store.transaction((tx) => tx.outbox.claim(9, twin.time, twin.time + 1))).length).toBe(1)
  })

  it('removes the notifications published before a failure, and releases the rest', async () => {
    const [first, second] = ['one', 'two'].map((deviceId) => ({ kind: 'device', deviceId, reason: 'sync' }) as const)
    broker.after = async () => {
      broker.up = false
    }
    publisher.start()
    await twin.store.transaction((tx) =>
      tx.outbox.append(
        [first, second].flatMap((one) => one ?? []),
        twin.time,
      ),
    )
    await publisher.idle()
    const left = await twin.store.transaction((tx) => tx.outbox.claim(9, twin.time, twin.time + 1))
    expect(left.map(({ notification }) => notification)).toEqual([second])
  })

  it('takes over from a node that died, within a second', async () => {
    await write(2)
    await twin.store.transaction((tx) => tx.outbox.claim(100, twin.time, twin.time + NOTIFICATION_CLAIM_MS))
    publisher.start()
    await publisher.idle()
    expect(revisions()).toEqual([])
    twin.time += NOTIFICATION_CLAIM_MS
    await timers.fire()
    expect(revisions()).toEqual([2])
    expect(NOTIFICATION_CLAIM_MS + NOTIFICATION_LOOK_MS).toBeLessThanOrEqual(1_000)
  })

  it('keeps its claim while it waits for the acknowledgement of the broker', async () => {
    const acknowledgement = Promise.withResolvers<undefined>()
    broker.acknowledged = acknowledgement.promise
    const second = newPublisher()
    publisher.start()
    await write(2)
    await expect.poll(revisions).toEqual([2])
    twin.time += NOTIFICATION_CLAIM_MS - 1
    const looks = timers.fire()
    await expect.poll(async () => (await claimable(twin.time + 1)).length).toBe(0)
    twin.time += 1
    second.start()
    await second.idle()
    expect(revisions()).toEqual([2])
    acknowledgement.resolve(undefined)
    await looks
    await second.stop()
    expect(await claimable(Number.MAX_SAFE_INTEGER)).toEqual([])
  })

  it('loses nothing between two nodes that work at the same time', async () => {
    const second = newPublisher()
    publisher.start()
    second.start()
    for (let revision = 2; revision < 30; revision++) await write(revision)
    await Promise.all([publisher.idle(), second.idle()])
    expect(Math.max(...revisions())).toBe(29)
    expect(await twin.store.transaction((tx) => tx.outbox.claim(1, Number.MAX_SAFE_INTEGER, 0))).toEqual([])
    await second.stop()
  })

  it('publishes nothing after it was stopped', async () => {
    publisher.start()
    await publisher.stop()
    await write(2)
    publisher.wake()
    await publisher.idle()
    expect(revisions()).toEqual([])
  })
})

describe('announcing policies', () => {
  it('publishes the newest policy of every instance', async () => {
    await twin.setLineItem('ACT-1', { quantity: 1n })
    for (let n = 0; n < 3; n++) await twin.addInstance(`00000000-0000-4000-8000-00000000000${n}`)
    await emptyOutbox()
    publisher.start()
    publisher.announcePolicies()
    await publisher.idle()
    expect(revisions().sort()).toEqual([1, 1, 1, 2])
  })

  it('continues after a failure', async () => {
    await twin.setLineItem('ACT-1', { quantity: 1n })
    await emptyOutbox()
    broker.up = false
    publisher.start()
    publisher.announcePolicies()
    await publisher.idle()
    broker.up = true
    await timers.fire()
    expect(revisions()).toEqual([2])
  })

  it('publishes a revision again that another node bumped meanwhile', async () => {
    await twin.setLineItem('ACT-1', { quantity: 1n })
    await emptyOutbox()
    broker.after = async () => {
      broker.after = async () => undefined
      await twin.setLineItem('ACT-1', { quantity: 2n })
      await emptyOutbox()
    }
    publisher.start()
    publisher.announcePolicies()
    await publisher.idle()
    expect(revisions().at(-1)).toBe(3)
  })
})

/** As if another node had published everything. */
async function emptyOutbox(): Promise<void> {
  await twin.store.transaction(async (tx) => {
    const waiting = await tx.outbox.claim(100, Number.MAX_SAFE_INTEGER, 0)
    await tx.outbox.remove(waiting.map(({ id }) => id))
  })
}
