// Events out of any store: nothing lost, nothing in another order, one node at a time.
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { announcePools } from '../../../src/cloud/events/announce-pools.ts'
import {
  discardDeadLetters,
  findEvent,
  forgetSink,
  listEvents,
  replayAfter,
  replayDeadLetters,
  retrySink,
  showSinks,
} from '../../../src/cloud/events/administer-sinks.ts'
import { type OutgoingEvent, usageEvent } from '../../../src/cloud/events/outgoing-event.ts'
import { EventRetention } from '../../../src/cloud/events/event-retention.ts'
import { EventPublisher } from '../../../src/cloud/events/publish-events.ts'
import { EventsRejected, SinkUnavailable, type Sink } from '../../../src/cloud/events/sink.ts'
import { revokeDevice } from '../../../src/cloud/devices/devices.ts'
import { type EventRecord, USAGE_ROW_POSITIONS } from '../../../src/cloud/storage/records.ts'
import type { Store } from '../../../src/cloud/storage/store.ts'
import { exportUsage } from '../../../src/cloud/usage/export-usage.ts'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { usage } from '../storage/suite.ts'
import { TestDevice, topUpRequest } from '../sync/test-device.ts'
import { DAY, INSTANCE, Twin } from '../sync/twin.ts'
import { usageIn } from '../usage/list-usage.ts'

const LINE = lineAccount(INSTANCE, 'ACT-1', 0)
const TENANT = 'a tenant'

/** A receiver inside the test. */
class TestSink implements Sink {
  readonly name = 'test'
  readonly kind = 'webhook'
  readonly address = 'test:'
  groups: Sink['groups'] = ['usage', 'line-item', 'device']
  batchMax = 3
  readonly received: OutgoingEvent[] = []
  readonly calls: number[] = []
  /** Throws for what it does not take. */
  check: (events: readonly OutgoingEvent[]) => void | Promise<void> = () => undefined

  async send(events: readonly OutgoingEvent[]): Promise<void> {
    this.calls.push(events.length)
    await this.check(events)
    this.received.push(...events)
  }

  async close(): Promise<void> {
    // Nothing is open.
  }
}

/** @param open a cloud with nothing in it but an instance; `other`: another node of it, over connections of its own */
export function publishEventsSuite(
  name: string,
  open: () => Promise<{ readonly twin: Twin; readonly other: () => Promise<Store> }>,
): void {
  describe(name, () => {
    let twin: Twin
    let other: () => Promise<Store>
    let sink: TestSink
    let publisher: EventPublisher
    const watched = { delivered: 0, rejected: 0, failing: false }

    const publisherOf = (store: Store, nodeId: string, of: Sink = sink) =>
      new EventPublisher({
        ...{ store, nodeId, tenantId: TENANT, sink: of, now: () => twin.time, fraction: () => 1 },
        log: { info: () => undefined, warn: () => undefined },
        watcher: {
          eventsDelivered: (_, count) => (watched.delivered += count),
          eventRejected: () => (watched.rejected += 1),
          sinkFailing: (_, failing) => (watched.failing = failing),
        },
      })
    const run = async (of = publisher): Promise<void> => {
      while (await of.step()) continue
    }
    const write = (...numbers: readonly number[]) =>
      twin.store.transaction((tx) => tx.usage.append(numbers.map((n) => usage(n))))
    const correlations = () => sink.received.map(({ json }) => (JSON.parse(json) as Sent).data['correlationId'])
    const state = async () => (await showSinks({ store: twin.store, sinks: [sink] }))[0]

    interface Sent {
      readonly id: string
      readonly type: string
      readonly data: Readonly<Record<string, unknown>>
    }
    const sent = (): readonly Sent[] => sink.received.map(({ json }) => JSON.parse(json) as Sent)

    beforeEach(async () => {
      ;({ twin, other } = await open())
      await twin.setLineItem('ACT-1', { quantity: 1_000n })
      Object.assign(watched, { delivered: 0, rejected: 0, failing: false })
      sink = new TestSink()
      publisher = publisherOf(twin.store, 'node')
    })
    afterEach(async () => twin[Symbol.asyncDispose]())

    const charge = (amount: bigint) => ({ lineItemId: 'ACT-1', accounts: [LINE], amount })

    it('sends only events written after its first run', async () => {
      await write(1)
      await run()
      await write(2)
      await run()
      expect(correlations()).toEqual(['correlation-2'])
      expect(watched.delivered).toBe(1)
    })

    it('sends exactly the records of the usage export, of devices, copies and the cloud, each with its id', async () => {
      await run()
      const device = await TestDevice.join(twin)
      await device.sync([topUpRequest(LINE, 100n)])
      await write(1, 2)
      device.charge(charge(10n))
      device.charge(charge(20n))
      const copy = device.copy()
      await device.sync()
      device.refund(charge(5n))
      await device.sync()
      copy.charge(charge(7n))
      await copy.sync()
      await write(3)
      const lost = await TestDevice.join(twin)
      await lost.sync([topUpRequest(LINE, 50n)])
      twin.time += 31 * DAY
      await twin.settle()
      await run()

      const terms = { format: 'ndjson', tenantId: TENANT, after: null, instanceId: null, from: null, to: null } as const
      let exported = ''
      for await (const piece of (await exportUsage({ store: twin.store, giveWay: () => undefined }, terms)).pieces)
        exported += piece
      const usageSent = sink.received.filter(({ type }) => type === 'usage')
      const data = usageSent.map(({ json }) => /,"data":(.*)\}$/.exec(json)?.[1])
      expect(data).toEqual(exported.trimEnd().split('\n'))
      expect(data.length).toBeGreaterThan(7)
      const ids = sink.received.map(({ id }) => id)
      expect(new Set(ids).size).toBe(ids.length)
      expect(usageSent.filter(({ id }) => id.startsWith(`${device.id}/1/`)).length).toBe(4)
      for (const { id, json } of sink.received) {
        expect((await findEvent({ store: twin.store, tenantId: TENANT }, id)).json).toBe(json)
      }
      const types = sent().map(({ type }) => type)
      expect(types.filter((type) => type !== 'tallygate.usage')).toEqual([
        'tallygate.device.enrolled',
        'tallygate.device.forked',
        'tallygate.device.enrolled',
        'tallygate.device.settled',
        'tallygate.device.settled',
      ])
    })

    it('finds a record by its id also among the long positions after a restore', async () => {
      await run()
      await twin.store.transaction((tx) => tx.usage.passForgotten(4n * 10n ** 18n))
      await write(1)
      await run()
      const [event] = sink.received
      expect(event?.id).toMatch(/^usage\/correlation-1\/4\d{18}$/)
      expect((await findEvent({ store: twin.store, tenantId: TENANT }, event!.id)).json).toBe(event!.json)
    })

    it('gives an entry the same id wherever it arrives', async () => {
      const device = await TestDevice.join(twin)
      await device.sync([topUpRequest(LINE, 100n)])
      for (let n = 0; n < 5; n += 1) device.charge(charge(1n))
      await device.sync()
      const range = {
        after: 0n,
        upTo: 2n ** 62n,
        instanceId: null,
        from: null,
        to: null,
        limit: 9,
        entries: true,
      } as const
      const all = await twin.store.read((reader) => usageIn(reader, range))
      const ids = all.map((each) => usageEvent(TENANT, each).id)
      expect(ids[1]).toMatch(new RegExp(`^${device.id}/1/2/[0-9a-f]{16}/0$`))
      // Also if a page begins inside of the delivery.
      const some = await twin.store.read((reader) => usageIn(reader, { ...range, after: all[2]!.position }))
      expect(some.map((each) => usageEvent(TENANT, each).id)).toEqual(ids.slice(3))
    })

    it('sends usage and other events in one sequence, in the order of their commits', async () => {
      await run()
      const device = await TestDevice.join(twin)
      await write(1)
      await revokeDevice({ store: twin.store, now: twin.now, present: twin.now }, device.id)
      await write(2)
      await run()
      expect(sent().map(({ type }) => type)).toEqual([
        'tallygate.device.enrolled',
        'tallygate.usage',
        'tallygate.device.revoked',
        'tallygate.usage',
      ])
      const positions = sink.received.map(({ position }) => position)
      expect(positions).toEqual([...positions].sort((a, b) => (a < b ? -1 : 1)))
    })

    it('sends only subscribed events and skips the others', async () => {
      sink.groups = ['device']
      await run()
      await write(1, 2, 3)
      await TestDevice.join(twin)
      await write(4)
      await run()
      expect(sink.received.map(({ type }) => type)).toEqual(['device.enrolled'])
      expect(await state()).toMatchObject({ behind: false })
    })

    it('retries after an outage with growing pauses, and loses no event', async () => {
      await run()
      await write(1, 2, 3, 4, 5)
      sink.check = () => {
        throw new Error('out of order')
      }
      await run()
      expect(await state()).toMatchObject({ failingSince: twin.time, problem: 'out of order', behind: true })
      expect(watched.failing).toBe(true)
      const began = twin.time
      const tries: number[] = []
      for (let step = 0; step < 40; step += 1) {
        twin.time += 500
        const calls = sink.calls.length
        await run()
        if (sink.calls.length > calls) tries.push(twin.time - began)
      }
      expect(tries).toEqual([1_000, 3_000, 7_000, 15_000])
      sink.check = () => undefined
      twin.time += 5 * 60_000
      await run()
      expect(correlations()).toEqual([1, 2, 3, 4, 5].map((n) => `correlation-${n}`))
      expect(await state()).toMatchObject({ failingSince: null, problem: null, behind: false, deliveredAt: twin.time })
      expect(watched.failing).toBe(false)
    })

    it('waits as long as the receiver requests, up to five minutes', async () => {
      await run()
      await write(1)
      const busy = async (waitMs: number) => {
        sink.check = () => {
          throw new SinkUnavailable('busy', waitMs)
        }
        await run()
        sink.check = () => undefined
      }
      await busy(30_000)
      twin.time += 29_999
      await run()
      expect(correlations()).toEqual([])
      twin.time += 1
      await busy(24 * 60 * 60_000)
      twin.time += 5 * 60_000
      await run()
      expect(correlations()).toEqual(['correlation-1'])
    })

    it('retries a sink at once on any node when an administrator requests it, and otherwise when its pause ends', async () => {
      const store = await other()
      const second = publisherOf(store, 'second')
      for (const each of [publisher, second]) await run(each)
      await write(1)
      sink.check = () => {
        throw new SinkUnavailable('busy', 5 * 60_000)
      }
      await run()
      expect(await state()).toMatchObject({ retryAt: twin.time + 5 * 60_000 })
      sink.check = () => undefined
      twin.time += 4 * 60_000
      for (const each of [publisher, second]) await run(each)
      expect(correlations()).toEqual([])
      await retrySink({ store }, 'test', twin.time)
      expect(await state()).toMatchObject({ retryAt: null })
      await run(second)
      expect(correlations()).toEqual(['correlation-1'])
      expect(await state()).toMatchObject({ failingSince: null, problem: null, retryAt: null })
      await expect(retrySink({ store }, 'none', twin.time)).rejects.toMatchObject({ code: 'NOT_FOUND' })
      if (store !== twin.store) await store.close()
    })

    it('retries a sink when its lease ends after a node was killed during a pause, and keeps the length of the pause', async () => {
      await run()
      await write(1)
      sink.check = () => {
        throw new SinkUnavailable('busy', 5 * 60_000)
      }
      await run()
      const next = publisherOf(twin.store, 'next')
      await run(next)
      expect(sink.calls).toEqual([1])
      twin.time += 30_000
      await run(next)
      await run(next)
      expect(sink.calls).toEqual([1, 1])
      expect(await state()).toMatchObject({ retryAt: twin.time + 5 * 60_000 })
    })

    it('retries a sink at once after a restart, a replay, or a clock that was set back', async () => {
      await run()
      await write(1, 2)
      const calls = async (publishers: readonly EventPublisher[]) => {
        sink.calls.length = 0
        for (const each of publishers) await run(each)
        return sink.calls.length
      }
      sink.check = () => {
        throw new SinkUnavailable('busy', 5 * 60_000)
      }
      expect(await calls([publisher])).toBe(1)
      await publisher.release()
      publisher = publisherOf(twin.store, 'node')
      expect(await calls([publisher, publisher])).toBe(1)
      await replayAfter({ store: twin.store }, 'test', 0n, twin.time)
      expect(await calls([publisher, publisher])).toBe(1)
      twin.time -= DAY
      expect(await calls([publisher, publisher])).toBe(1)
    })

    it('pauses before it reads again from a database that did not respond', async () => {
      await run()
      await write(1)
      let asked = 0
      const store: Store = {
        ...twin.store,
        transaction: async () => {
          asked += 1
          throw new Error('no answer')
        },
      }
      const failing = publisherOf(store, 'other')
      await expect(failing.step()).rejects.toThrow('no answer')
      await failing.step()
      expect(asked).toBe(1)
      twin.time += 1_001
      await expect(failing.step()).rejects.toThrow('no answer')
      twin.time += 1_001
      await failing.step()
      expect(asked).toBe(2)
    })

    it('halves the batch size after each outage, down to one, and doubles it after each delivery', async () => {
      sink.batchMax = 8
      await run()
      await write(...Array.from({ length: 30 }, (_, n) => n))
      let most = 0
      sink.check = (events) => {
        if (events.length > most) throw new Error('too slow')
      }
      const settle = async () => {
        sink.calls.length = 0
        for (let round = 0; round < 5; round += 1) {
          await run()
          twin.time += 5 * 60_000
        }
        return sink.calls
      }
      expect(await settle()).toEqual([8, 4, 2, 1, 1])
      most = 8
      expect(await settle()).toEqual([1, 2, 4, 8, 8, 7])
      expect(correlations()).toEqual(Array.from({ length: 30 }, (_, n) => `correlation-${n}`))
    })

    it('sends at most 512 KiB at a time in any script', async () => {
      sink.batchMax = 100
      await run()
      const requesterValue = 'Ж'.repeat(100 * 1_024)
      await twin.store.transaction((tx) => tx.usage.append([1, 2, 3].map((n) => usage(n, { requesterValue }))))
      await run()
      expect(sink.calls).toEqual([2, 1])
    })

    it('sets an event aside that is rejected three times, and delivers the others in order', async () => {
      await run()
      await write(1, 2, 3, 4)
      sink.check = (events) => {
        if (events.some(({ json }) => json.includes('correlation-2'))) throw new EventsRejected('no such customer')
      }
      for (let round = 0; round < 3; round += 1) {
        await run()
        twin.time += 5 * 60_000
      }
      expect(correlations()).toEqual([1, 3, 4].map((n) => `correlation-${n}`))
      expect(await state()).toMatchObject({ deadLetters: 1, behind: false })
      expect(watched.rejected).toBe(1)
      const [letter] = await twin.store.read((reader) => reader.eventSinks.deadLetters('test', 0n, 10))
      expect(letter).toMatchObject({ problem: 'no such customer', type: 'usage' })
      // It is still needed: an archive must keep it.
      expect(await twin.store.read((reader) => reader.eventSinks.neededAfter())).toBe(letter!.position - 1n)

      await replayDeadLetters({ store: twin.store }, 'test', twin.time)
      expect(await state()).toMatchObject({ deadLetters: 1, behind: true })
      await run()
      expect(await state()).toMatchObject({ deadLetters: 1, behind: false })
      sink.check = () => undefined
      await replayDeadLetters({ store: twin.store }, 'test', twin.time)
      await run()
      expect(sink.received.at(-1)?.id).toBe(letter?.eventId)
      expect(await state()).toMatchObject({ deadLetters: 0 })
    })

    const archiveUpTo = (upTo: bigint) =>
      twin.store.transaction((tx) =>
        tx.usageArchives.record({
          ...{ after: 0n, upTo, records: 1, latestUse: 0, usedAhead: null, archivedAt: 0 },
          ...{ place: '/archive', manifest: 'usage.manifest.json', sha256: '' },
        }),
      )

    it('shows that the next events are archived, and sends nothing until an administrator decides', async () => {
      await run()
      await write(1, 2, 3)
      await run()
      const [first] = sink.received.splice(0)
      await archiveUpTo(first!.position)
      await twin.store.transaction((tx) => tx.eventSinks.moveTo('test', 0n))
      for (let round = 0; round < 3; round += 1) await run()
      expect(await state()).toMatchObject({ problem: expect.stringContaining('are archived in /archive') as string })
      expect(watched.failing).toBe(true)
      expect(sink.received).toEqual([])
      await replayAfter({ store: twin.store }, 'test', first!.position, twin.time)
      twin.time += 5 * 60_000
      await run()
      expect(correlations()).toEqual([2, 3].map((n) => `correlation-${n}`))
      expect(await state()).toMatchObject({ problem: null })
    })

    describe('a dead letter that is sent again', () => {
      const reject = async () => {
        await run()
        await write(1, 2)
        sink.check = (events) => {
          if (events.some(({ json }) => json.includes('correlation-1'))) throw new EventsRejected('no such customer')
        }
        for (let round = 0; round < 3; round += 1) {
          await run()
          twin.time += 5 * 60_000
        }
        expect(await state()).toMatchObject({ deadLetters: 1 })
        await replayDeadLetters({ store: twin.store }, 'test', twin.time)
        return (await twin.store.read((reader) => reader.eventSinks.deadLetters('test', 0n, 10)))[0]!
      }

      it('stays one if it is archived, and delays no other event', async () => {
        const { position } = await reject()
        await archiveUpTo(position)
        await write(3)
        await run()
        expect(correlations()).toEqual([2, 3].map((n) => `correlation-${n}`))
        const [letter] = await twin.store.read((reader) => reader.eventSinks.deadLetters('test', 0n, 10))
        expect(letter!.problem).toContain('are archived in /archive')
        expect(await state()).toMatchObject({ problem: null, deadLetters: 1 })
      })

      it('stays one if the sink does not receive its type', async () => {
        await reject()
        sink.groups = ['device']
        await run()
        const [letter] = await twin.store.read((reader) => reader.eventSinks.deadLetters('test', 0n, 10))
        expect(letter!.problem).toBe('The types of the sink do not include this event.')
      })

      it('updates the time of the last progress, and ends the outage', async () => {
        await reject()
        const { position } = (await state())!
        sink.check = () => {
          throw new Error('out of order')
        }
        await run()
        expect(await state()).toMatchObject({ failingSince: twin.time, problem: 'out of order' })
        sink.check = () => undefined
        twin.time += 5 * 60_000
        await run()
        expect(await state()).toMatchObject({ position, deadLetters: 0, deliveredAt: twin.time })
        expect(await state()).toMatchObject({ failingSince: null, problem: null })
        expect(watched.failing).toBe(false)
      })

      it('ends an outage when it is rejected again', async () => {
        await reject()
        const rejecting = sink.check
        sink.check = () => {
          throw new Error('out of order')
        }
        await run()
        sink.check = rejecting
        await replayDeadLetters({ store: twin.store }, 'test', twin.time)
        await run()
        expect(await state()).toMatchObject({ deadLetters: 1, failingSince: null, problem: null })
        expect(watched.failing).toBe(false)
      })

      it('does not return if it is discarded meanwhile', async () => {
        await reject()
        sink.check = async () => {
          await discardDeadLetters({ store: twin.store }, 'test', twin.time)
          throw new EventsRejected('still no such customer')
        }
        await publisher.step()
        expect(await state()).toMatchObject({ deadLetters: 0 })
      })
    })

    describe('old events', () => {
      const HOUR = 3_600_000
      const warned: unknown[] = []
      let terms = { retentionMs: 10 * HOUR, undeliveredRetentionMs: 100 * HOUR }
      let isTrusted = true
      beforeEach(() => {
        warned.length = 0
        terms = { retentionMs: 10 * HOUR, undeliveredRetentionMs: 100 * HOUR }
        isTrusted = true
      })
      const retention = () =>
        new EventRetention({
          ...{ store: twin.store, now: () => twin.time, trustsClock: () => isTrusted, terms: () => terms },
          log: { warn: (fields) => void warned.push(fields) },
        })
      const forget = async (): Promise<void> => {
        const of = retention()
        while (await of.step()) continue
      }
      const happen = (...ids: readonly string[]) =>
        twin.store.transaction((tx) =>
          tx.events.append(
            ...ids.map((id): EventRecord => ({
              id,
              type: 'device.enrolled',
              at: twin.time,
              instanceId: null,
              deviceId: 'd',
              data: {},
            })),
          ),
        )
      const left = async () => {
        const { events } = await listEvents({ store: twin.store, tenantId: TENANT }, {}, 2_000)
        return events.map(({ id }) => id).toReversed()
      }
      const end = () => twin.store.transaction((tx) => tx.usage.settled())

      it('are deleted once every sink has passed them, except for the newest', async () => {
        await run()
        await happen('a', 'b')
        await run()
        twin.time += 5 * HOUR
        await happen('c')
        await run()
        await forget()
        expect(await left()).toEqual(['a', 'b', 'c'])
        twin.time += 5 * HOUR + 1
        await forget()
        expect(await left()).toEqual(['c'])
        twin.time += 500 * HOUR
        const before = await end()
        await forget()
        expect(await left()).toEqual(['c'])
        expect(await end()).toBe(before)
        expect(warned).toEqual([])
        await happen('d')
        await run()
        expect(sink.received.map(({ id }) => id)).toEqual(['a', 'b', 'c', 'd'])
      })

      it('are kept longer for a sink that is stuck', async () => {
        await run()
        await twin.store.transaction((tx) =>
          tx.eventSinks.claim('stuck', { by: 'x', now: 1, until: 2 }, () => tx.usage.settled()),
        )
        await happen('a', 'b', 'c')
        await run()
        twin.time += 100 * HOUR
        await forget()
        expect(await left()).toEqual(['a', 'b', 'c'])
        twin.time += 1
        await forget()
        expect(await left()).toEqual(['c'])
        expect(warned).toEqual([{ events: 2 }])
      })

      it('are kept while they are dead letters, without keeping later events', async () => {
        await run()
        sink.check = (events) => {
          if (events.some(({ id }) => id === 'b')) throw new EventsRejected('unknown device')
        }
        await happen('a', 'b', 'c', 'd')
        for (let round = 0; round < 4; round += 1) {
          await run()
          twin.time += HOUR
        }
        expect(await state()).toMatchObject({ deadLetters: 1, behind: false })
        twin.time += 10 * HOUR
        await forget()
        expect(await left()).toEqual(['b', 'd'])
        sink.check = () => undefined
        await replayDeadLetters({ store: twin.store }, 'test', twin.time)
        await run()
        await forget()
        expect(await left()).toEqual(['d'])
        expect(sink.received.map(({ id }) => id)).toEqual(['a', 'c', 'd', 'b'])
      })

      it('are deleted in parts, even after many that are kept', async () => {
        await run()
        const ids = Array.from({ length: 1_300 }, (_, n) => `event-${n}`)
        await happen(...ids)
        const first = (await twin.store.read((reader) => reader.events.get('event-0')))!.position
        sink.batchMax = 1_000
        await run()
        await twin.store.transaction(async (tx) => {
          for (let n = 0n; n < 600n; n += 1n) {
            const letter = { position: first + n * USAGE_ROW_POSITIONS, eventId: '', type: 'usage', problem: '', at: 0 }
            await tx.eventSinks.addDeadLetter('test', letter)
          }
        })
        twin.time += 10 * HOUR + 1
        const of = retention()
        const steps: boolean[] = []
        do steps.push(await of.step())
        while (steps.at(-1) === true)
        expect(steps).toEqual([true, true, false])
        expect(await left()).toEqual([...ids.slice(0, 600), ids.at(-1)])
      })

      it('are all deleted without sinks, and kept if the setting says so or the clock is not trusted', async () => {
        await happen('a', 'b')
        twin.time += 1_000 * HOUR
        isTrusted = false
        await forget()
        isTrusted = true
        terms = { retentionMs: 0, undeliveredRetentionMs: 0 }
        await forget()
        expect(await left()).toEqual(['a', 'b'])
        terms = { retentionMs: HOUR, undeliveredRetentionMs: 0 }
        await forget()
        expect(await left()).toEqual(['b'])
      })

      it('are kept forever for a sink that is stuck if the setting says so', async () => {
        await run()
        await happen('a', 'b')
        terms = { retentionMs: HOUR, undeliveredRetentionMs: 0 }
        twin.time += 100_000 * HOUR
        await forget()
        expect(await left()).toEqual(['a', 'b'])
      })

      it('are kept for a sink that delivers, whatever time the clock showed', async () => {
        await run()
        await happen('a')
        await run()
        const now = twin.time
        twin.time = 0
        await happen('b', 'c')
        twin.time = now + 1
        await forget()
        expect(await left()).toEqual(['a', 'b', 'c'])
        await run()
        await forget()
        expect(await left()).toEqual(['a', 'c'])
        expect(warned).toEqual([])
      })
    })

    it('replays from a position with the same ids', async () => {
      await run()
      await write(1, 2, 3, 4, 5)
      await run()
      const before = [...sink.received]
      await replayAfter({ store: twin.store }, 'test', before[1]!.position, twin.time)
      await run()
      expect(sink.received.slice(5)).toEqual(before.slice(2))
      const beyond = replayAfter({ store: twin.store }, 'test', before[4]!.position * 2n, twin.time)
      await expect(beyond).rejects.toMatchObject({ code: 'CURSOR_UNKNOWN' })
    })

    it('replays while a batch is in progress', async () => {
      await run()
      await write(0)
      await run()
      await write(1, 2, 3, 4, 5)
      let moved = false
      sink.check = async () => {
        if (moved) return
        moved = true
        await replayAfter({ store: twin.store }, 'test', 0n, twin.time)
      }
      await run()
      expect(correlations().filter((each) => each === 'correlation-1')).toHaveLength(2)
      expect(correlations().slice(-5)).toEqual([1, 2, 3, 4, 5].map((n) => `correlation-${n}`))
    })

    it('forgets a deleted sink, for which no events are kept', async () => {
      await run()
      await write(1)
      expect(await twin.store.read((reader) => reader.eventSinks.neededAfter())).not.toBeNull()
      await forgetSink({ store: twin.store }, 'test', twin.time)
      expect(await twin.store.read((reader) => reader.eventSinks.neededAfter())).toBeNull()
      await expect(discardDeadLetters({ store: twin.store }, 'test', twin.time)).rejects.toMatchObject({
        code: 'NOT_FOUND',
      })
    })

    it('sends from one node until its lease ends or it stops', async () => {
      const store = await other()
      const second = publisherOf(store, 'second')
      await run()
      await write(1)
      let stuck = Promise.withResolvers<undefined>()
      const arrived = Promise.withResolvers<undefined>()
      sink.check = async () => {
        arrived.resolve(undefined)
        await stuck.promise
      }
      const sending = publisher.step()
      await arrived.promise
      await run(second)
      expect(sink.calls).toEqual([1])
      // The first node hangs: the second one continues, and the cursor ignores the first.
      twin.time += 60_000
      sink.check = () => undefined
      await run(second)
      expect(correlations()).toEqual(['correlation-1'])
      await write(2)
      stuck.resolve(undefined)
      stuck = Promise.withResolvers()
      await sending
      await run(publisher)
      expect(correlations()).toEqual(['correlation-1', 'correlation-1'])
      await second.release()
      await run(publisher)
      expect(correlations()).toEqual(['correlation-1', 'correlation-1', 'correlation-2'])
      if (store !== twin.store) await store.close()
    })

    it('makes three attempts for each event, even after another node has set one aside', async () => {
      const store = await other()
      const second = publisherOf(store, 'second')
      await run()
      sink.check = () => {
        throw new EventsRejected('no such customer')
      }
      const attempt = async (by: EventPublisher): Promise<void> => {
        await run(by)
        twin.time += 20_000
      }
      await write(1)
      for (const by of [publisher, publisher]) await attempt(by)
      twin.time += 60_000
      for (const by of [second, second, second]) await attempt(by)
      expect(await state()).toMatchObject({ deadLetters: 1, behind: false })
      await write(2)
      twin.time += 60_000
      for (const by of [publisher, publisher]) await attempt(by)
      expect(await state()).toMatchObject({ deadLetters: 1 })
      await attempt(publisher)
      expect(await state()).toMatchObject({ deadLetters: 2 })
      if (store !== twin.store) await store.close()
    })

    it('sets an event aside after three attempts of one node, even if other nodes have the lease in between', async () => {
      const store = await other()
      const second = publisherOf(store, 'second')
      await run()
      sink.check = () => {
        throw new EventsRejected('no such customer')
      }
      await write(1)
      for (let attempts = 0; attempts < 3; attempts += 1) {
        for (const [has, waits] of [
          [publisher, second],
          [second, publisher],
        ] as const) {
          await run(has)
          twin.time += 5_000
          await run(waits)
          twin.time += 30_000
        }
      }
      expect(await state()).toMatchObject({ deadLetters: 1, behind: false })
      if (store !== twin.store) await store.close()
    })

    it('sends each event once while several nodes write', async () => {
      const store = await other()
      const stores = [twin.store, store]
      const publishers = stores.map((each, index) => publisherOf(each, `node ${index}`))
      for (const each of publishers) await run(each)
      const writers = Array.from({ length: 8 }, async (_, writer) => {
        for (let n = 0; n < 10; n += 1) {
          const record = usage(writer * 100 + n)
          await stores[n % 2]!.transaction((tx) => tx.usage.append([record]))
        }
      })
      let isWriting = true
      const sending = publishers.map(async (each) => {
        while (isWriting) {
          await each.step()
          // The lease passes from node to node.
          await each.release()
          await new Promise(setImmediate)
        }
      })
      await Promise.all(writers)
      isWriting = false
      await Promise.all(sending)
      for (const each of publishers) {
        await run(each)
        await each.release()
      }
      expect(correlations()).toHaveLength(80)
      expect(new Set(correlations()).size).toBe(80)
      if (store !== twin.store) await store.close()
    })

    it('announces a line item that runs low and one that is used up, once for each quantity', async () => {
      const store = announcePools(twin.store, { lowPercent: () => 20, now: twin.now })
      const change = (amount: bigint) =>
        store.transaction(async (tx) => {
          const [pool] = (await tx.accounts.lock([LINE])).values()
          await tx.accounts.save([{ ...pool!, charged: pool!.charged + amount }])
        })
      await twin.chargeDirectly(LINE, 1n)
      await run()
      const announced = async () => {
        await run()
        return sent().map(({ type, data }) => [type.replace('tallygate.', ''), data['left']])
      }
      await change(798n)
      expect(await announced()).toEqual([])
      await change(1n)
      const low = ['line-item.low', '0.0002']
      expect(await announced()).toEqual([low])
      await change(1n)
      await change(-10n)
      await change(10n)
      expect(await announced()).toEqual([low])
      await change(199n)
      expect(await announced()).toEqual([low, ['line-item.exhausted', '0']])
      const { events } = await listEvents({ store: twin.store, tenantId: TENANT }, { instanceId: INSTANCE }, 10)
      expect(events.map(({ id }) => id)).toEqual([`${LINE}/exhausted/1000`, `${LINE}/low/1000`])
    })
  })
}
