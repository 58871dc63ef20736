// The payloads for billing systems on the page about events: each is what its function makes of the event of the page.
import { randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import type { IncomingHttpHeaders } from 'node:http'
import { describe, expect, it } from 'vitest'
import { parse as parseToml } from 'smol-toml'
import { z } from 'zod'
import { usageEvent } from '../../src/cloud/events/outgoing-event.ts'
import { webhookSettings } from '../../src/cloud/events/sink-settings.ts'
import { WebhookSink, parseSecrets } from '../../src/cloud/platform/events/webhook.ts'
import { USAGE_ROW_POSITIONS } from '../../src/cloud/storage/records.ts'
import { decimal } from '../../src/core/pricing/amount.ts'
import { type Delivery, WebhookReceiver } from '../support/webhook-receiver.ts'

const page = readFileSync(new URL('../../docs/how-to/events.md', import.meta.url), 'utf8')
const section = (title: string): string => page.split(`\n### ${title}\n`)[1]?.split('\n### ')[0] ?? ''
const block = (text: string, language: string): string => {
  const found = new RegExp(`\`\`\`${language}\\n([^]*?)\`\`\``).exec(text)?.[1]
  if (found === undefined) throw new Error(`the page has no ${language} there`)
  return found
}

interface Event {
  readonly id: string
  readonly time: string
  readonly data: Readonly<Record<string, unknown>>
}
const event = JSON.parse(block(page.split('\n## Bill with ')[1] ?? '', 'json')) as Event
const change = (part: Partial<Event>, data: object = {}): Event => ({
  ...event,
  ...part,
  data: { ...event.data, ...data },
})

async function functionOf<T>(title: string, name: string): Promise<T> {
  return functionIn(section(title), name)
}

async function functionIn<T>(text: string, name: string): Promise<T> {
  const source = `data:text/javascript,${encodeURIComponent(block(text, 'js'))}`
  const module = (await import(/* @vite-ignore */ source)) as Record<string, T>
  const found = module[name]
  if (found === undefined) throw new Error(`the page has no function ${name}`)
  return found
}

it('the event of the page is one of the cloud', () => {
  const { json } = usageEvent('tallygate', {
    position: 10n * USAGE_ROW_POSITIONS,
    entry: { hash: '9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08', part: 0 },
    record: {
      correlationId: '5c8ec4fd-f17f-4657-bf09-000000000042',
      usageTime: Date.UTC(2026, 4, 6, 7, 8, 9, 123),
      writeTime: 1_778_051_400_000,
      requesterType: 'user',
      requesterValue: 'LisaBarry',
      accountId: 'customer-7',
      instanceId: '64d2028c-ae87-4069-a624-66089d957ef9',
      activationId: 'ACT-1',
      quantity: 100_000_000n,
      used: 30_500_000n,
      item: 'Print',
      version: '1.0',
      count: decimal(5),
      operation: 'REQUEST',
      status: 'GRANTED',
      tokens: 2_500_000n,
      source: { kind: 'device', deviceId: '6f1d2f64-3f43-4f0e-9d8a-6a3b1a3f5c11', epoch: 1, entry: 42 },
      metaData: null,
    },
  })
  expect(JSON.parse(json)).toEqual(event)
})

it('the function of the page knows the requests of the cloud', async () => {
  type IsSigned = (headers: IncomingHttpHeaders, body: string, secret: string, now?: number) => boolean
  const isSigned = await functionIn<IsSigned>(page.split('\n## Receive\n')[1] ?? '', 'isSigned')
  await using receiver = await WebhookReceiver.start()
  const other = `whsec_${randomBytes(32).toString('base64')}`
  const now = Date.UTC(2026, 4, 6)
  const sink = new WebhookSink({
    ...{ name: 'billing', url: receiver.url, groups: ['usage'], token: null, proxy: {}, extraCa: null, now: () => now },
    secrets: parseSecrets(`${other}\n${receiver.secret}\n`, 'billing.secret'),
  })
  await sink.send(
    [{ position: 1n, id: 'one', type: 'usage', key: 'ä', json: '{"name":"ä"}' }],
    AbortSignal.timeout(9_000),
  )
  await sink.close()
  const [{ headers, body }] = receiver.deliveries as [Delivery]
  expect([other, receiver.secret].map((secret) => isSigned(headers, body, secret, now))).toEqual([true, true])
  expect(isSigned(headers, body, receiver.secret, now + 301_000)).toBe(false)
  expect(isSigned(headers, `${body} `, receiver.secret, now)).toBe(false)
  expect(isSigned({ ...headers, 'webhook-id': 'another' }, body, receiver.secret, now)).toBe(false)
  expect(isSigned(headers, body, `whsec_${randomBytes(32).toString('base64')}`, now)).toBe(false)
  expect(isSigned({}, body, receiver.secret, now)).toBe(false)
})

describe('OpenMeter', () => {
  /** As its API describes the events that it takes. */
  const openMeterEvent = z.looseObject({
    specversion: z.literal('1.0'),
    id: z.string().min(1),
    source: z.string().min(1),
    type: z.string().min(1),
    subject: z.string().min(1),
    time: z.iso.datetime(),
    datacontenttype: z.literal('application/json'),
    data: z.record(z.string(), z.unknown()),
  })

  it('takes the event as it is, with the value that the meter of the page adds up', () => {
    const taken = openMeterEvent.parse(event)
    // Names of extensions, by CloudEvents.
    for (const name of Object.keys(taken)) expect(name).toMatch(/^[a-z0-9]{1,20}$/)
    expect(section('OpenMeter')).toContain(`eventType: ${taken.type}`)
    const read = [...section('OpenMeter').matchAll(/\$\.(\w+)/g)].map(([, path = '']) => path)
    expect(Object.keys(taken.data)).toEqual(expect.arrayContaining(read))
    expect(read).toContain('tokens')
    expect(typeof taken.data['tokens']).toBe('number')
  })

  it('is a sink with the settings of the page', () => {
    const { events } = parseToml(block(section('OpenMeter'), 'toml')) as { events: { webhooks: unknown } }
    expect(webhookSettings.safeParse(events.webhooks).success).toBe(true)
  })
})

describe('Lago', () => {
  /** As its API describes the events that it takes. */
  const lagoEvent = z.strictObject({
    transaction_id: z.string().min(1),
    external_subscription_id: z.string().min(1),
    code: z.string().min(1),
    timestamp: z.number().positive(),
    properties: z.record(z.string(), z.union([z.string(), z.number(), z.null()])),
  })
  type ToLago = (event: Event) => unknown

  it('gets the payload of the page', async () => {
    const toLago = await functionOf<ToLago>('Lago', 'toLago')
    expect(lagoEvent.parse(toLago(event))).toEqual(JSON.parse(block(section('Lago'), 'json')))
  })

  it('gets refunds, and nothing of refusals', async () => {
    const toLago = await functionOf<ToLago>('Lago', 'toLago')
    expect(toLago(change({}, { tokens: -0.000001 }))).toMatchObject({ properties: { tokens: '-0.000001' } })
    expect(toLago(change({}, { tokens: 0, status: 'QUOTA_EXCEEDED' }))).toBeNull()
  })
})

describe('Stripe', () => {
  /** As its API describes the parameters of a meter event. */
  const meterEvent = z.strictObject({
    event_name: z.string().min(1).max(100),
    identifier: z.string().min(1).max(100),
    timestamp: z.int().positive(),
    payload: z.strictObject({ stripe_customer_id: z.string(), value: z.string().regex(/^-?\d+$/) }),
  })
  const DAY_MS = 86_400_000
  const customers = { '64d2028c-ae87-4069-a624-66089d957ef9': 'cus_7' }
  const at = Date.parse(event.time)
  const mapped = async (given: Event, now: number) => {
    const toStripe = await functionOf<(event: Event, of: object, now: number) => unknown>('Stripe', 'toStripe')
    const payload = toStripe(given, customers, now)
    return payload === null ? null : meterEvent.parse(payload)
  }

  it('gets the payload of the page', async () => {
    expect(await mapped(event, at + 35 * DAY_MS)).toEqual(JSON.parse(block(section('Stripe'), 'json')))
  })

  it.each([
    ['too old', at + 35 * DAY_MS + 1],
    ['too far in the future', at - 5 * 60_000 - 1],
  ])('gets an event that is %s as a correction at the present time', async (_, now) => {
    expect(await mapped(event, now)).toMatchObject({
      event_name: 'tallygate_corrections',
      timestamp: Math.floor(now / 1_000),
      identifier: event.id,
    })
  })

  it('gets exact amounts, also negative ones', async () => {
    const value = async (tokens: number) => (await mapped(change({}, { tokens }), at))?.payload.value
    expect(await value(0.1)).toBe('100000')
    expect(await value(-1.000001)).toBe('-1000001')
    expect(await value(1_000_000_000.000001)).toBe('1000000000000001')
    expect(await mapped(change({}, { tokens: 0 }), at)).toBeNull()
  })

  it('has identifiers that are short enough, whatever the numbers', () => {
    const uuid = '6f1d2f64-3f43-4f0e-9d8a-6a3b1a3f5c11'
    expect(`${uuid}/${2 ** 31}/${2 ** 40}/${'0'.repeat(16)}/131072`.length).toBeLessThanOrEqual(100)
    expect(`usage/${uuid}/${2n ** 63n}`.length).toBeLessThanOrEqual(100)
  })
})
