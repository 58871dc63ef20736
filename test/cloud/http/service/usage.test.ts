import { request } from 'node:http'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { wholeTokens, decimal } from '../../../../src/core/pricing/amount.ts'
import { openSqliteStore } from '../../../../src/cloud/storage/sqlite/store.ts'
import { USAGE_PIECE_RECORDS, exportUsage } from '../../../../src/cloud/usage/export-usage.ts'
import { newestUsage } from '../../../../src/cloud/usage/newest-usage.ts'
import type { NewestUsage, UsageRecord } from '../../../../src/cloud/storage/records.ts'
import type { Store } from '../../../../src/cloud/storage/store.ts'
import { USAGE_COLUMNS } from '../../../../src/protocol/service/usage-export.ts'
import { HOUR, MINUTE, type Reply, START, type Twin, openTwin, text } from '../../harness.ts'

const PATH = '/provisioning/api/v1.1/usage'

let twin: Twin
let instance: string
beforeEach(async () => {
  twin = await openTwin((settings) => ({ ...settings, usage: { ...settings.usage, tenantId: 'maker' } }))
  instance = await twin.instance()
  await twin.lineItem(instance)
  await twin.rates({ Print: 3, Scan: 0.5 })
})
afterEach(() => twin[Symbol.asyncDispose]())

/** Records as the export shows them. */
const rows = async (query = '', options: Parameters<Twin['call']>[2] = {}): Promise<readonly Row[]> => {
  const { body, status, raw } = await ask(query, options)
  expect(status, raw).toBe(200)
  return body
}
type Row = Readonly<Record<string, unknown>>

async function ask(query: string, options: Parameters<Twin['call']>[2] = {}) {
  const token = options.token ?? (await twin.administrationToken())
  const response = await fetch(`${twin.cloud.address}${PATH}${query}`, {
    headers: { authorization: `Bearer ${token}`, ...options.headers },
  })
  const raw = await response.text()
  const isLines = response.headers.get('content-type')?.startsWith('application/x-ndjson') === true
  const body = isLines
    ? raw
        .split('\n')
        .filter((line) => line !== '')
        .map((line) => JSON.parse(line) as Row)
    : []
  return { status: response.status, raw, body, headers: response.headers }
}
const cursorOf = async (query = ''): Promise<string> => (await ask(query)).headers.get('x-next-cursor') ?? ''

const inSession = async (id: string, counts: Readonly<Record<string, number>>, rollbackOnDeny = true): Promise<Reply> =>
  twin.call('PUT', `/api/v1.1/sessions/${id}`, {
    body: {
      requester: { type: 'user', value: 'LisaBarry' },
      rollbackOnDeny,
      requestedItems: Object.entries(counts).map(([item, count]) => ({ item, count })),
    },
  })
const newSession = async (): Promise<string> =>
  text((await twin.call('POST', '/api/v1.1/sessions', { body: { instanceId: instance } })).body, 'sessionId')

describe('the export of usage records', () => {
  it('has a row for each charge, automatic charge, refund and refusal, with the columns of the warehouse', async () => {
    await twin.access(instance, { Print: 10 })
    const session = await newSession()
    await inSession(session, { Print: 1 })
    await twin.advance(HOUR)
    await inSession(session, { Nothing: 1, Scan: 2 })
    await twin.advance(20 * MINUTE)
    await twin.call('DELETE', `/api/v1.1/sessions/${session}`)
    const all = await rows()
    expect(all.map(({ operation, status, item, tokens, used }) => [operation, status, item, tokens, used])).toEqual([
      ['REQUEST', 'GRANTED', 'Print', 30, 30],
      ['REQUEST', 'GRANTED', 'Print', 3, 33],
      ['AUTOMATIC_CHARGE', 'GRANTED', 'Print', 3, 36],
      ['REQUEST', 'ITEM_NOT_RATED', 'Nothing', 0, null],
      ['REQUEST', 'NOT_CHARGED', 'Scan', 0, null],
      ['REFUND', 'REFUNDED', 'Print', -2, 34],
    ])
    expect(Object.keys(all[0]!)).toEqual(USAGE_COLUMNS.map(([, key]) => key))
    expect(all[1]).toMatchObject({
      tenantId: 'maker',
      consumerId: 'LisaBarry',
      consumerType: 'user',
      accountId: 'customer',
      instanceId: instance,
      activationId: 'ACT-1',
      mappedEntitledCount: 100,
      usageTime: START,
      source: 'session',
      sessionId: session,
    })
    expect(new Set(all.map(({ correlationId }) => correlationId)).size).toBe(5)
  })

  it('is CSV with a header row and quoted where RFC 4180 asks for it', async () => {
    await twin.access(instance, { Print: 1 }, 'Barry, "Lisa"\r\nSales')
    const { raw, headers } = await ask('?format=csv')
    expect(headers.get('content-type')).toBe('text/csv; charset=utf-8; header=present')
    expect(raw.startsWith('CORRELATION_ID,TENANT_ID,USAGE_TIME,WRITE_TIME,CONSUMER_ID,')).toBe(true)
    expect(raw).toContain(`,maker,${START},${START},"Barry, ""Lisa""\r\nSales",user,customer,`)
    expect(raw.endsWith('\r\n')).toBe(true)
  })

  it.each(['=1+1', '+1', '-1', '@SUM(A1)', '\tx', '＝1', "'quoted"])(
    'is CSV in which %j is no formula, and can be had back by taking one apostrophe off',
    async (name) => {
      await twin.access(instance, { Print: 1 }, name)
      expect((await ask('?format=csv')).raw).toContain(`,'${name},user,`)
      expect((await rows())[0]).toMatchObject({ consumerId: name })
    },
  )

  it('carries meta data as it was given, and amounts to the last digit', async () => {
    await twin.call('POST', `/elastic/api/v1.1/instances/${instance}/access-request`, {
      body: {
        requester: { type: 'user', value: 'x' },
        requestedItems: [{ item: 'Scan', count: 0.000_003, metaData: { job: ['a', 1] } }],
      },
    })
    expect((await rows())[0]).toMatchObject({ metaData: { job: ['a', 1] }, count: 0.000_003, tokens: 0.000_002 })
  })

  it('takes its form from format, then from Accept', async () => {
    const typeFor = async (accept: string, query = '') => {
      const { headers, status, raw } = await ask(query, { headers: { accept } })
      return status === 200 ? headers.get('content-type')?.split(';')[0] : (JSON.parse(raw) as { code: string }).code
    }
    expect(await typeFor('*/*')).toBe('application/x-ndjson')
    expect(await typeFor('text/csv')).toBe('text/csv')
    expect(await typeFor('application/x-ndjson;q=0.5, text/csv;q=0.9')).toBe('text/csv')
    expect(await typeFor('application/x-ndjson;q=0, */*')).toBe('text/csv')
    expect(await typeFor('text/csv', '?format=ndjson')).toBe('application/x-ndjson')
    expect(await typeFor('image/png')).toBe('NOT_ACCEPTABLE')
  })

  it('can be of one instance and of a time', async () => {
    const other = await twin.instance('another')
    await twin.access(instance, { Print: 1 })
    await twin.access(other, { Print: 1 })
    await twin.advance(HOUR)
    await twin.access(instance, { Print: 2 })
    expect(await rows(`?instanceId=${other}`)).toHaveLength(1)
    expect(await rows(`?from=${START + HOUR}`)).toHaveLength(1)
    expect(await rows(`?to=${START + HOUR}`)).toHaveLength(2)
    expect(await rows(`?instanceId=${instance}&from=${START}&to=${START + HOUR}`)).toHaveLength(1)
  })

  it('continues where the one before ended, with each record once', async () => {
    expect(await cursorOf()).toBe('0')
    await twin.access(instance, { Print: 1 })
    const first = await cursorOf()
    expect(await rows(`?after=${first}`)).toEqual([])
    await twin.access(instance, { Print: 2 })
    await twin.access(instance, { Print: 3 })
    const rest = await rows(`?after=${first}`)
    expect(rest.map(({ count }) => count)).toEqual([2, 3])
    expect(await cursorOf(`?after=${first}`)).toBe(rest[1]!['cursor'])
    expect(await rows(`?after=${String(rest[0]!['cursor'])}`)).toEqual([rest[1]])
  })

  it.each([
    ['?after=x', 400, 'BAD_REQUEST'],
    ['?after=7', 400, 'CURSOR_UNKNOWN'],
    ['?format=xml', 400, 'BAD_REQUEST'],
    ['?from=yesterday', 400, 'BAD_REQUEST'],
    ['?from=5&to=5', 400, 'BAD_REQUEST'],
    ['?instanceId=x', 400, 'BAD_REQUEST'],
    ['?instanceID=64d2028c-ae87-4069-a624-66089d957ef9', 400, 'BAD_REQUEST'],
    ['?instanceId=64d2028c-ae87-4069-a624-66089d957ef9', 404, 'NOT_FOUND'],
  ])('refuses %s', async (query, status, code) => {
    const answer = await ask(query)
    expect(answer.status).toBe(status)
    expect(JSON.parse(answer.raw)).toMatchObject({ code })
  })

  it('is for administrators', async () => {
    expect((await ask('', { token: await twin.clientToken(instance) })).status).toBe(403)
  })
})

describe('an export of 100,000 records', () => {
  const COUNT = 100_000
  const record = (n: number): UsageRecord => ({
    correlationId: `correlation-${n}`,
    usageTime: START,
    writeTime: START,
    requesterType: 'user',
    requesterValue: 'LisaBarry',
    accountId: 'customer',
    // Each has its row.
    instanceId: n === COUNT ? instance : `${n}`,
    activationId: 'ACT-1',
    quantity: wholeTokens(100),
    used: 1n,
    item: 'Print',
    version: '1.0',
    count: decimal('0.1'),
    operation: 'REQUEST',
    status: 'GRANTED',
    tokens: 1n,
    source: { kind: 'one-off' },
    metaData: JSON.stringify({ text: 'x'.repeat(300) }),
  })

  let store: Store
  beforeEach(async () => {
    const path = `${twin.settings.store.path}/twin.db`
    await twin.stop()
    store = openSqliteStore({ path, check: false, onBroken: () => undefined })
    for (let done = 0; done < COUNT; done += 10_000) {
      await store.transaction((tx) =>
        tx.usage.append(Array.from({ length: 10_000 }, (_, index) => record(done + index))),
      )
    }
  }, 60_000)
  afterEach(() => store.close())

  const order = { format: 'ndjson', tenantId: '', instanceId: null, from: null, to: null, after: null } as const

  /** A store that counts what is read, and how often the export gives way. */
  const counting = () => {
    const counts = { reads: 0, pauses: 0 }
    const read: Store['read'] = (work) => {
      counts.reads += 1
      return store.read(work)
    }
    const giveWay = (): undefined => void (counts.pauses += 1)
    const newest = { read: (range: NewestUsage) => read(({ usage }) => usage.newest(range)), giveWay }
    return { counts, deps: { store: { ...store, read }, giveWay }, newest }
  }

  it('reads no further than its reader', async () => {
    const { counts, deps } = counting()
    const pieces = (await exportUsage(deps, order)).pieces[Symbol.asyncIterator]()
    await pieces.next()
    await pieces.next()
    expect(counts.reads).toBe(2)
  })

  it('looks at a part of the rows at any moment, also if few have the time', async () => {
    await store.transaction((tx) => tx.usage.append([{ ...record(COUNT), usageTime: START + 1 }]))
    const { counts, deps } = counting()
    const found: string[] = []
    for await (const piece of (await exportUsage(deps, { ...order, from: START + 1 })).pieces) found.push(piece)
    expect(found.map((piece) => JSON.parse(piece) as unknown)).toEqual([
      expect.objectContaining({ correlationId: `correlation-${COUNT}` }),
    ])
    expect(counts).toEqual({ reads: 11, pauses: 11 })
  })

  it('is searched from the newest record on a part of the rows at any moment, also if few have the time', async () => {
    const { counts, newest } = counting()
    const range = { instanceId: null, upTo: null, from: START + 1, to: null, limit: 10 }
    expect(await newestUsage(newest, range)).toEqual({ records: [], rest: null })
    expect(counts).toEqual({ reads: 10, pauses: 9 })
    const { records, rest } = await store.read((reader) => reader.usage.newest(range))
    expect(records).toEqual([])
    expect(rest).toMatchObject({ writtenBy: START })
    // A later part has a record.
    await store.transaction((tx) => tx.usage.append([{ ...record(COUNT), usageTime: START + 1 }]))
    for (const instanceId of [null, instance]) {
      const found = await newestUsage(newest, { ...range, instanceId, limit: 1 })
      expect(found.records.map((each) => each.record.correlationId)).toEqual([`correlation-${COUNT}`])
    }
  })

  it('is searched to its beginning for the few records that fit', async () => {
    const { counts, newest } = counting()
    const range = { instanceId: null, upTo: null, from: null, to: null, limit: 10 }
    const fits = ({ correlationId }: UsageRecord): boolean => correlationId === 'correlation-60000'
    const refused = { isRefused: true as const, fits: ({ status }: UsageRecord) => status === 'INSUFFICIENT_TOKENS' }
    expect((await newestUsage(newest, { ...range, search: refused })).records).toEqual([])
    expect(counts.reads).toBe(10)
    expect((await newestUsage(newest, { ...range, search: { fits } })).records).toEqual([
      expect.objectContaining({ record: expect.objectContaining({ correlationId: 'correlation-60000' }) as unknown }),
    ])
    const ofDevice = { deviceId: 'none', fits: () => true }
    expect(await newestUsage(newest, { ...range, search: ofDevice })).toEqual({ records: [], rest: null })
  })

  it('passes the gap in the numbers of rows that a restore leaves at once', async () => {
    await store.transaction((tx) => tx.usage.passForgotten(1n << 61n))
    await store.transaction((tx) => tx.usage.append([{ ...record(COUNT), usageTime: START + 1 }]))
    const { counts, deps } = counting()
    let found = ''
    for await (const piece of (await exportUsage(deps, { ...order, from: START + 1 })).pieces) found += piece
    expect(JSON.parse(found)).toMatchObject({ correlationId: `correlation-${COUNT}` })
    expect(counts.reads).toBe(11)
  })

  it('keeps a part of the export in memory at any moment, never all of it', async () => {
    await twin.start()
    setFlagsFromString('--expose-gc')
    const collectGarbage = runInNewContext('gc') as () => void
    const inUse = (): number => {
      collectGarbage()
      const { heapUsed, external, arrayBuffers } = process.memoryUsage()
      return heapUsed + external + arrayBuffers
    }
    const before = inUse()
    const authorization = `Bearer ${await twin.administrationToken()}`
    let [bytes, lines, most, seen] = [0, 0, 0, 0]
    await new Promise<void>((resolve, reject) => {
      request(`${twin.cloud.address}${PATH}?format=ndjson`, { headers: { authorization } }, (response) => {
        response.on('data', (chunk: Buffer) => {
          bytes += chunk.length
          for (const byte of chunk) if (byte === 10) lines += 1
          if (bytes - seen > 5_000_000) {
            seen = bytes
            most = Math.max(most, inUse())
          }
        })
        response.on('end', resolve)
        response.on('error', reject)
      }).end()
    })
    expect(lines).toBe(COUNT)
    expect(bytes).toBeGreaterThan(60_000_000)
    // A few pieces, what is under way in sockets, and what the process has warmed up since: far below the whole.
    expect(most - before).toBeLessThan(bytes / 2)
    expect(COUNT % USAGE_PIECE_RECORDS).toBe(0)
  }, 60_000)
})
