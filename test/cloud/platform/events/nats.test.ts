import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { type AddressInfo, createServer } from 'node:net'
import { TLSSocket, createSecureContext } from 'node:tls'
import { AckPolicy, DeliverPolicy, type JetStreamManager, jetstream, jetstreamManager } from '@nats-io/jetstream'
import { type NatsConnection, connect } from '@nats-io/transport-node'
import { afterEach, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import type { OutgoingEvent } from '../../../../src/cloud/events/outgoing-event.ts'
import { EventsRejected } from '../../../../src/cloud/events/sink.ts'
import { NatsSink } from '../../../../src/cloud/platform/events/nats.ts'
import { messageOf } from '../../../../src/protocol/errors.ts'
import { Authority, type Certified } from '../../../support/certificates.ts'
import { ServerProxy } from '../../../support/server-proxy.ts'
import { nats } from '../../../support/servers.ts'
import { EdgeClient } from '../../devices/edge-client.ts'
import { ALWAYS, MINUTE, openTwin } from '../../harness.ts'

const event = (n: number, change: Partial<OutgoingEvent> = {}): OutgoingEvent => ({
  ...{ position: BigInt(n), id: `device/1/${n}/hash/0`, type: 'usage', key: 'device', json: `{"n":${n}}` },
  ...change,
})

describe('a NATS sink that cannot connect', () => {
  /** A server that says this to each client, and then sets up TLS if it has a certificate. */
  const serving = async (lines: string, certified: Certified | null = null): Promise<string> => {
    const service = createServer((socket) => {
      socket.on('error', () => undefined)
      socket.write(lines)
      if (certified === null) return
      const secureContext = createSecureContext({ cert: certified.certificate, key: certified.key })
      new TLSSocket(socket, { isServer: true, secureContext }).on('error', () => undefined)
    }).listen(0, '127.0.0.1')
    onTestFinished(() => void service.close())
    await once(service, 'listening')
    return `127.0.0.1:${(service.address() as AddressInfo).port}`
  }
  const info = (more: object) =>
    `INFO ${JSON.stringify({ version: '2.9.10', proto: 1, headers: true, max_payload: 1_000_000, ...more })}\r\n`
  const problem = async (url: string): Promise<string> => {
    const options = { username: null, password: null, credentials: null, extraCa: null }
    const sink = new NatsSink({ url, subject: 'test', groups: ['usage'], ...options })
    try {
      return await sink.send([event(1)], new AbortController().signal).then(() => 'sent', messageOf)
    } finally {
      await sink.close()
    }
  }

  it('names the settings that the server refuses', async () => {
    const address = await serving(`${info({ auth_required: true })}-ERR 'Authorization Violation'\r\n`)
    expect(await problem(`nats://${address}`)).toBe(
      `nats://${address} refuses the cloud: check its user name and password, or its credentials (events.nats_…)`,
    )
  })

  it('names the problem of TLS', async () => {
    await using authority = await Authority.make()
    const certified = await authority.certify(Date.now() + 86_400_000)
    const address = await serving(info({ tls_required: true }), certified)
    expect(await problem(`tls://${address}`)).toBe(
      `tls://${address} cannot be reached: this machine does not know the authority of its certificate`,
    )
    expect(await problem(`nats://${address}`)).toBe(`nats://${address} requires TLS: write tls:// in events.nats_url`)
  })

  it('reports a connection that was closed before a server responded', async () => {
    const service = createServer((socket) => void socket.end()).listen(0, '127.0.0.1')
    onTestFinished(() => void service.close())
    await once(service, 'listening')
    const address = `nats://127.0.0.1:${(service.address() as AddressInfo).port}`
    expect(await problem(address)).toMatch(
      `${address} cannot be reached: the connection was closed before a NATS server responded: `,
    )
  })

  it('reports a connection that ended before an event was acknowledged', async () => {
    const service = createServer((socket) => {
      socket.on('error', () => undefined)
      socket.write(info({}))
      socket.on('data', (bytes) => {
        const text = bytes.toString()
        if (text.includes('PUB ')) socket.destroy()
        else if (text.includes('PING')) socket.write('PONG\r\n')
      })
    }).listen(0, '127.0.0.1')
    onTestFinished(() => void service.close())
    await once(service, 'listening')
    const address = `nats://127.0.0.1:${(service.address() as AddressInfo).port}`
    expect(await problem(address)).toBe(
      `${address} did not acknowledge an event: the connection ended, or the server is too busy (timeout)`,
    )
  })

  it('refuses credentials that it cannot use, without showing them', () => {
    const open = () =>
      new NatsSink({
        ...{
          url: 'nats://127.0.0.1',
          subject: 'test',
          groups: ['usage'],
          username: null,
          password: null,
          extraCa: null,
        },
        credentials: '-----BEGIN NATS USER JWT-----\nsecret\n------END NATS USER JWT------\n',
      })
    expect(open).toThrow(expect.objectContaining({ code: 'CONFIG_INVALID' }))
    expect(open).toThrow(/^events\.nats_credentials_file (?!.*secret)/)
  })
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

  it('receives the events of a cloud', async () => {
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
