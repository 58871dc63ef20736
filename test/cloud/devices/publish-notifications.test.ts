import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import {
  NotificationPublisher,
  type PushMessage,
  announcePolicies,
} from '../../../src/cloud/devices/publish-notifications.ts'
import type { Timers } from '../../../src/cloud/runtime/run-repeatedly.ts'
import { deviceTopic, policyTopic } from '../../../src/protocol/push.ts'
import { INSTANCE, Twin } from '../sync/twin.ts'

/** A broker that can be away. */
class FakeBroker {
  readonly published: PushMessage[] = []
  up = true

  async publish(message: PushMessage): Promise<void> {
    if (!this.up) throw new Error('the broker is away')
    this.published.push(message)
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
beforeEach(async () => {
  twin = await Twin.open()
  broker = new FakeBroker()
  timers = new HandTimers()
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
    log: { warn: () => undefined },
    lookEveryMs: 10_000,
  })

const notification = (revision: number) => ({ kind: 'policy', instanceId: INSTANCE, revision }) as const
const write = async (...revisions: number[]) =>
  twin.store.transaction((tx) => tx.outbox.append(revisions.map(notification), twin.time))
const revisions = () => broker.published.map(({ payload }) => (JSON.parse(payload) as { revision: number }).revision)

describe('publishing change notifications', () => {
  it('publishes what is there at the start and what is written later, at once, and once', async () => {
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

  it('keeps nothing of a change notification to one device at the broker', async () => {
    publisher.start()
    const order = { kind: 'device', deviceId: 'd', reason: 'sync' } as const
    await twin.store.transaction((tx) => tx.outbox.append([order], twin.time))
    await publisher.idle()
    expect(broker.published).toEqual([{ topic: deviceTopic('d'), payload: '{"reason":"sync"}', retain: false }])
  })

  it('tries again when the broker is back', async () => {
    broker.up = false
    publisher.start()
    await write(2)
    await publisher.idle()
    broker.up = true
    await timers.fire()
    expect(revisions()).toEqual([])
    twin.time += 30_001
    await timers.fire()
    expect(revisions()).toEqual([2])
  })

  it('leaves alone what another node is publishing, until that node has had its time', async () => {
    await write(2)
    await twin.store.transaction((tx) => tx.outbox.claim(100, twin.time, twin.time + 30_000))
    publisher.start()
    await publisher.idle()
    expect(revisions()).toEqual([])
    twin.time += 30_001
    await timers.fire()
    expect(revisions()).toEqual([2])
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

it('announces the newest policy of every instance', async () => {
  await twin.setLineItem('ACT-1', { quantity: 1n })
  for (let n = 0; n < 3; n++) await twin.addInstance(`00000000-0000-4000-8000-00000000000${n}`)
  await announcePolicies(twin.store, broker)
  expect(revisions().sort()).toEqual([1, 1, 1, 2])
})
