import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { EventsRejected } from '../../../../src/cloud/events/sink.ts'
import type { OutgoingEvent } from '../../../../src/cloud/events/outgoing-event.ts'
import { WebhookSink, parseSecrets } from '../../../../src/cloud/platform/events/webhook.ts'
import { WebhookReceiver } from '../../../support/webhook-receiver.ts'

const NOW = 1_790_000_000_500
const events: readonly OutgoingEvent[] = [7n, 9n].map((position) => ({
  ...{ position, id: `event ${position}`, type: 'usage', key: 'device' },
  json: `{"id":"event ${position}","data":{"tokens":0.1}}`,
}))
/** The name, the positions, and the start of the SHA-256 of the body. */
const ID = 'billing-7-9-f8fb9600d4923ef8'

describe('a webhook', () => {
  let receiver: WebhookReceiver
  let sink: WebhookSink
  const secrets = (...texts: readonly string[]) => parseSecrets(texts.join('\n'), 'secret')
  const open = (change: Partial<ConstructorParameters<typeof WebhookSink>[0]> = {}) =>
    new WebhookSink({
      ...{ name: 'billing', url: receiver.url, groups: ['usage'], secrets: secrets(receiver.secret), token: null },
      ...{ now: () => NOW, proxy: {}, extraCa: null },
      ...change,
    })
  const send = (signal = new AbortController().signal) => sink.send(events, signal)

  beforeEach(async () => {
    receiver = await WebhookReceiver.start()
    sink = open()
  })
  afterEach(async () => {
    await sink.close()
    await receiver[Symbol.asyncDispose]()
  })

  it('sends a signed batch of CloudEvents, with the same id for the same events', async () => {
    await send()
    await send()
    expect(receiver.deliveries).toHaveLength(2)
    const [first] = receiver.deliveries
    expect(first).toMatchObject({
      signed: true,
      body: `[${events.map(({ json }) => json).join(',')}]`,
      headers: {
        'content-type': 'application/cloudevents-batch+json; charset=utf-8',
        'webhook-id': ID,
        'webhook-timestamp': '1790000000',
      },
    })
    expect(first?.headers).not.toHaveProperty('authorization')
    expect(receiver.deliveries[1]?.headers['webhook-id']).toBe(ID)
  })

  it('has another id for other events between the same positions', async () => {
    await send()
    const between = { ...events[0]!, position: 8n, id: 'event 8', json: '{"id":"event 8"}' }
    await sink.send([events[0]!, between, events[1]!], new AbortController().signal)
    const [one, other] = receiver.deliveries.map(({ headers }) => headers['webhook-id'])
    expect(other).toMatch(/^billing-7-9-[0-9a-f]{16}$/)
    expect(other).not.toBe(one)
  })

  it('signs with each secret, so that a receiver can replace its own', async () => {
    await sink.close()
    sink = open({ secrets: secrets(`whsec_${randomBytes(24).toString('base64')}`, receiver.secret), token: 'abc' })
    await send()
    expect(receiver.deliveries[0]?.signed).toBe(true)
    expect(receiver.deliveries[0]?.headers.authorization).toBe('Bearer abc')
  })

  it('is not signed for another secret', async () => {
    await sink.close()
    sink = open({ secrets: secrets(`whsec_${randomBytes(24).toString('base64')}`) })
    await send()
    expect(receiver.deliveries[0]?.signed).toBe(false)
  })

  it.each([400, 409, 410, 413, 422])('is rejected with status %i', async (status) => {
    receiver.respond = () => [status, 'no \u001b[31msuch\n customer']
    await expect(send()).rejects.toThrow(EventsRejected)
    await expect(send()).rejects.toThrow(`${receiver.url} responded with ${status}: no [31msuch customer`)
  })

  it.each([301, 302, 401, 403, 404, 407, 408, 425, 429, 500, 502, 503])('is out with status %i', async (status) => {
    receiver.respond = () => status
    const error = await send().catch((thrown: unknown) => thrown)
    expect(error).toBeInstanceOf(Error)
    expect(error).not.toBeInstanceOf(EventsRejected)
    expect(receiver.deliveries).toHaveLength(1)
  })

  it.each([
    ['30', 30_000],
    [new Date(NOW + 60_000).toUTCString(), 59_500],
    ['soon', 0],
  ])('waits as long as the receiver says with Retry-After: %s', async (header, waitMs) => {
    for (const status of [429, 503]) {
      receiver.respond = () => [status, '', { 'retry-after': header }]
      await expect(send()).rejects.toMatchObject({ waitMs })
    }
  })

  it.each([
    [200, undefined],
    [503, / responded with 503: x+…?$/],
  ] as const)('does not read a response without end, with status %i', async (status, refusal) => {
    let ended: Promise<unknown> | undefined
    const server = createServer((_, response) => {
      ended = once(response, 'close')
      const more = (): void => {
        while (!response.destroyed && response.write('x'.repeat(65_536))) continue
      }
      response.writeHead(status).on('drain', more)
      more()
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    await sink.close()
    sink = open({ url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/` })
    if (refusal === undefined) await send()
    else await expect(send()).rejects.toThrow(refusal)
    await ended
    server.close()
  })

  it('names the reason for which TLS fails', async () => {
    await sink.close()
    sink = open({ url: receiver.url.replace('http:', 'https:') })
    await expect(send()).rejects.toThrow(/\/events cannot be reached: it does not use TLS on this port$/)
  })

  it('names the receiver to which it cannot connect', async () => {
    const { url } = receiver
    await receiver[Symbol.asyncDispose]()
    await expect(send()).rejects.toThrow(`${url} cannot be reached: connect ECONNREFUSED`)
  })

  it('gives up on a receiver that does not respond', async () => {
    await sink.close()
    sink = open({ timeoutMs: 50 })
    receiver.respond = () => 'HANG'
    await expect(send()).rejects.toThrow('did not respond in time')
  })

  it('is out if it switches to another protocol', async () => {
    receiver.respond = () => 101
    await expect(send()).rejects.toThrow('the server switches to another protocol')
  })

  it.each(['is cut', 'never ends'])('has taken events with a status of success whose text %s', async (what) => {
    const server = createServer((_, response) => {
      response.writeHead(200, { 'content-length': '100' }).write('thank')
      if (what === 'is cut') setImmediate(() => response.destroy())
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    await sink.close()
    sink = open({ url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/` })
    const stop = new AbortController()
    // As its time limit ends one: after the head of the response has arrived.
    const end = (): void => void setImmediate(() => stop.abort())
    if (what === 'never ends') subscribe('http.client.response.finish', end)
    await expect(send(stop.signal)).resolves.toBeUndefined()
    unsubscribe('http.client.response.finish', end)
    server.closeAllConnections()
    server.close()
  })

  it('ends at once when the cloud stops', async () => {
    const stop = new AbortController()
    receiver.respond = () => {
      stop.abort()
      return 'HANG'
    }
    await expect(send(stop.signal)).rejects.toThrow()
  })

  it('does not show its query and its token if the response repeats them', async () => {
    sink = open({ url: `${receiver.url}?kind=usage&key=a%2Bsecret%2Bkey&another+secret`, token: 'a-secret-token' })
    const repeated = 'no usage at ?key=a%2Bsecret%2Bkey&amp;another+secret, a+secret+key, Bearer a-secret-token'
    receiver.respond = () => [404, repeated]
    await expect(send()).rejects.toThrow('responded with 404: no usage at ?key=…&amp;…, …, Bearer …')
  })

  it('does not show the start of a token that is longer than what it reads of the response', async () => {
    sink = open({ token: `${'long-'.repeat(300)}token` })
    receiver.respond = () => [401, `unknown token ${'long-'.repeat(300)}token`]
    await expect(send()).rejects.toThrow(/responded with 401: unknown token …$/)
  })

  it('does not show the rest of a token that begins with a value of its query', async () => {
    sink = open({ url: `${receiver.url}?key=a-secret`, token: 'a-secret-token' })
    receiver.respond = () => [401, 'unknown token a-secret-token for a-secret']
    await expect(send()).rejects.toThrow(/responded with 401: unknown token … for …$/)
  })

  it('shows neither the query of its address nor its secret', () => {
    const hidden = open({ url: `${receiver.url}?key=hidden` })
    expect(hidden.address).toBe(receiver.url)
    expect(JSON.stringify(hidden)).not.toContain(receiver.secret.slice(6))
  })

  it.each([
    ['no line', ''],
    ['no prefix', randomBytes(32).toString('base64')],
    ['a short secret', `whsec_${randomBytes(16).toString('base64')}`],
    ['no base64', 'whsec_!!!'],
  ])('refuses a file with %s, without showing it', (_, text) => {
    expect(() => parseSecrets(text, '/etc/secret')).toThrow('/etc/secret must contain')
    if (text !== '') expect(() => parseSecrets(text, '/etc/secret')).not.toThrow(text)
  })
})
