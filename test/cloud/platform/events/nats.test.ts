import { randomUUID } from 'node:crypto'
import { AckPolicy, DeliverPolicy, type JetStreamManager, jetstream, jetstreamManager } from '@nats-io/jetstream'
import { type NatsConnection, connect } from '@nats-io/transport-node'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { OutgoingEvent } from '../../../../src/cloud/events/outgoing-event.ts'
import { EventsRejected } from '../../../../src/cloud/events/sink.ts'
import { NatsSink } from '../../../../src/cloud/platform/events/nats.ts'
import { ServerProxy } from '../../../support/server-proxy.ts'
import { nats } from '../../../support/servers.ts'
import { EdgeClient } from '../../devices/edge-client.ts'
import { ALWAYS, MINUTE, openTwin } from '../../harness.ts'

const event = (n: number, change: Partial<OutgoingEvent> = {}): OutgoingEvent => ({
  ...{ position: BigInt(n), id: `device/1/${n}/hash/0`, type: 'usage', key: 'device', json: `{"n":${n}}` },
  ...change,
})

describe('a NATS sink', () => {
  const server = nats()
  let connection: NatsConnection
  let manager: JetStreamManager
  let name: string
  let sink: NatsSink

  const open = (url = server.url, timeoutMs?: number) =>
    new NatsSink({
      ...{ url, subject: `test.${name}`, groups: ['usage'], username: null, password: null, credentials: null },
      extraCa: null,
      ...(timeoutMs === undefined ? {} : { timeoutMs }),
    })
  const send = (...events: readonly OutgoingEvent[]) => sink.send(events, new AbortController().signal)
  const addStream = (change: object = {}) => manager.streams.add({ name, subjects: [`test.${name}.>`], ...change })

  interface Message {
    readonly subject: string
    readonly id: string
    readonly type: string
    readonly body: unknown
  }
  const messages = async (): Promise<readonly Message[]> => {
    const { state } = await manager.streams.info(name)
    if (state.messages === 0) return []
    const consumer = { ack_policy: AckPolicy.None, deliver_policy: DeliverPolicy.All }
    const { name: durable } = await manager.consumers.add(name, { ...consumer, name: randomUUID(), mem_storage: true })
    const found: Message[] = []
    const read = await jetstream(connection).consumers.get(name, durable)
    for await (const each of await read.fetch({ max_messages: state.messages })) {
      const { subject, headers } = each
      found.push({
        subject: subject.replace(`test.${name}.`, ''),
        id: headers?.get('Nats-Msg-Id') ?? '',
        type: headers?.get('content-type') ?? '',
        body: each.json(),
      })
    }
    return found
  }

  beforeEach(async () => {
    name = `events-${randomUUID()}`
    connection = await connect({ servers: server.url })
    manager = await jetstreamManager(connection)
    sink = open()
  })
  afterEach(async () => {
    await sink.close()
    await manager.streams.delete(name).catch(() => undefined)
    await connection.close()
  })

  it('publishes each event with its id, in order, on the subject of its type and device', async () => {
    await addStream()
    await send(event(1), event(2, { key: 'other', type: 'device.enrolled' }), event(3), event(4))
    const all = await messages()
    expect(all.filter(({ subject }) => subject === 'usage.device').map(({ body }) => body)).toEqual([
      { n: 1 },
      { n: 3 },
      { n: 4 },
    ])
    expect(all.find(({ subject }) => subject === 'device.enrolled.other')).toMatchObject({
      id: 'device/1/2/hash/0',
      type: 'application/cloudevents+json',
      body: { n: 2 },
    })
  })

  it('stores a repeated event once', async () => {
    await addStream()
    await send(event(1), event(2))
    await send(event(1), event(2), event(3))
    expect((await messages()).map(({ body }) => body)).toEqual([{ n: 1 }, { n: 2 }, { n: 3 }])
  })

  it('is out without a stream', async () => {
    const error = await send(event(1)).catch((thrown: unknown) => thrown)
    expect(error).not.toBeInstanceOf(EventsRejected)
    expect(String(error)).toContain(`No stream takes test.${name}.usage.device`)
    await addStream()
    await send(event(1))
    expect(await messages()).toHaveLength(1)
  })

  it('rejects an event that is too large for the stream or the server', async () => {
    await addStream({ max_msg_size: 1_000 })
    await expect(send(event(1, { json: `"${'x'.repeat(2_000)}"` }))).rejects.toThrow(EventsRejected)
    await expect(send(event(1, { json: `"${'x'.repeat(2_000_000)}"` }))).rejects.toThrow(EventsRejected)
  })

  it('is out when the stream is full', async () => {
    await addStream({ max_msgs: 1, discard: 'new' })
    await send(event(1))
    const error = await send(event(2)).catch((thrown: unknown) => thrown)
    expect(error).toBeInstanceOf(Error)
    expect(error).not.toBeInstanceOf(EventsRejected)
  })

  it('is out without a server', async () => {
    await sink.close()
    sink = open('nats://127.0.0.1:1')
    await expect(send(event(1))).rejects.toThrow()
  })

  it('ends at once when the cloud stops', async () => {
    const stop = new AbortController()
    const sending = sink.send([event(1)], stop.signal)
    stop.abort()
    await expect(sending).rejects.toThrow('stopped')
  })

  it('publishes nothing more when the cloud has stopped', async () => {
    await addStream()
    const stop = new AbortController()
    const sending = sink.send([event(1), event(2)], stop.signal)
    stop.abort()
    await expect(sending).rejects.toThrow('stopped')
    await send(event(3))
    expect((await messages()).map(({ body }) => body)).toEqual([{ n: 3 }])
  })

  it('gives up on a server that does not acknowledge a batch in time, and repeats it later', async () => {
    await addStream()
    await using network = await ServerProxy.open(server.url)
    await sink.close()
    sink = open(network.url, 1_000)
    await send(event(0))
    network.failAt('{"n":1}', 'NO_ANSWER')
    await expect(send(event(1), event(2), event(3))).rejects.toThrow('did not acknowledge 3 events within 1 s')
    expect((await messages()).map(({ body }) => body)).toEqual([{ n: 0 }, { n: 1 }])
    await sink.close()
    sink = open(network.url)
    await send(event(1), event(2), event(3))
    expect((await messages()).map(({ body }) => body)).toEqual([{ n: 0 }, { n: 1 }, { n: 2 }, { n: 3 }])
  })

  it('receives what happens in a cloud', async () => {
    await using twin = await openTwin((settings) => ({
      ...settings,
      events: { ...settings.events, natsUrl: server.url, natsSubject: `test.${name}` },
    }))
    await twin.tick()
    const instance = await twin.shop(ALWAYS)
    const device = await EdgeClient.join(twin, instance)
    await twin.access(instance, { Print: 3 })
    // There is no stream yet.
    await twin.tick()
    await addStream()
    await twin.advance(MINUTE)
    expect(await messages()).toMatchObject([
      { subject: `device.enrolled.${device.id}`, body: { type: 'tallygate.device.enrolled', subject: device.id } },
      { subject: `usage.${instance}`, body: { type: 'tallygate.usage', data: { tokens: 3 } } },
    ])
  })
})
