// The metrics of a whole twin: they parse, and move by exactly what was done.
import { connect } from 'node:net'
import { text as readText } from 'node:stream/consumers'
import { describe, expect, it } from 'vitest'
import { Metrics } from '../../../../src/cloud/platform/metrics/metrics.ts'
import { watchStore } from '../../../../src/cloud/storage/watch-store.ts'
import type { Store } from '../../../../src/cloud/storage/store.ts'
import { Secret } from '../../../../src/settings/option.ts'
import { parsePrometheusText, valueOf } from '../../../support/prometheus-text.ts'
import { deviceAt } from '../../../scenarios/link/device-at-twin.ts'
import { TestDevice } from '../../sync/test-device.ts'
import { Twin as EdgeTwin } from '../../sync/twin.ts'
import { SyncBatcher } from '../../../../src/cloud/sync/sync-batcher.ts'
import { sync } from '../../../../src/cloud/sync/sync.ts'
import { HOUR, type Twin, itemsOf, openTwin, text } from '../../harness.ts'

async function scrape(twin: Twin) {
  const response = await fetch(twin.cloud.metricsAddress)
  expect(response.headers.get('content-type')).toBe('text/plain; version=0.0.4; charset=utf-8')
  const families = parsePrometheusText(await response.text())
  return (name: string, labels?: Readonly<Record<string, string>>) => valueOf(families, `tallygate_${name}`, labels)
}

const ACCESS = '/dynamicmonetization/elastic/api/v1.1/instances/:instanceId/access-request'

describe('the metrics of the twin', () => {
  it('count exactly the requests, decisions, charges and refunds', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    await twin.lineItem(instance, { quantity: 100 })
    await twin.rates({ Print: 3, Scan: 0.5 })
    // What was changed is published before anything is counted.
    await twin.tick()
    const before = await scrape(twin)
    await twin.access(instance, { Print: 10, Unrated: 1 })
    await twin.access(instance, { Print: 30 })
    await twin.access(instance, { Scan: 1 })
    const after = await scrape(twin)
    const moved = (name: string, labels?: Readonly<Record<string, string>>) =>
      after(name, labels) - before(name, labels)
    expect(moved('decisions_total', { result: 'granted', code: '1001' })).toBe(2)
    expect(moved('decisions_total', { result: 'refused', code: '2001' })).toBe(1)
    expect(moved('decisions_total', { result: 'refused', code: '2002' })).toBe(1)
    expect(moved('tokens_charged_total', { source: 'one-off' })).toBe(30.5)
    expect(moved('usage_records_total', { operation: 'request', status: 'granted', source: 'one-off' })).toBe(2)
    expect(
      moved('usage_records_total', { operation: 'request', status: 'insufficient_tokens', source: 'one-off' }),
    ).toBe(1)
    expect(moved('http_requests_total', { method: 'POST', route: ACCESS, status: '200' })).toBe(3)
    expect(moved('http_request_duration_seconds_count', { method: 'POST', route: ACCESS })).toBe(3)
    expect(moved('store_transaction_duration_seconds_count', { result: 'committed' })).toBe(3)
    expect(after('store_totals_up')).toBe(1)
  })

  it('show devices by contact, and the scarcest line item of each instance', async () => {
    await using twin = await openTwin()
    const instance = await twin.shop()
    const device = await deviceAt(twin, instance)
    await device.start()
    await device.settle()
    await twin.tick()
    const devices = async (contact: string) => (await scrape(twin))('devices', { instance_id: instance, contact })
    expect([await devices('current'), await devices('overdue'), await devices('revoked')]).toEqual([1, 0, 0])
    await twin.lineItem(instance, { activationId: 'OTHER', quantity: 100 })
    await twin.tick()
    const left = async (id: string) => (await scrape(twin))('instance_tokens_left_ratio', { instance_id: id })
    expect(await left(instance)).toBe(1)
    await twin.access(instance, { Print: 10 })
    await twin.tick()
    expect(await left(instance)).toBeLessThan(1)
    twin.now += HOUR
    await twin.tick()
    expect([await devices('current'), await devices('overdue')]).toEqual([0, 1])
    await twin.call('POST', `/edge/api/v1/devices/${device.link.status().deviceId}/revoke`, { body: {} })
    await twin.tick()
    expect([await devices('overdue'), await devices('revoked')]).toEqual([0, 1])
  })

  it('count sessions by state, their automatic charges and their refunds', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    await twin.lineItem(instance, { quantity: 7 })
    await twin.rates({ Print: 3 })
    const headers = { 'x-instance-id': instance }
    const open = async (): Promise<string> => {
      const { body } = await twin.call('POST', '/floating/api/v1.1/sessions', {
        headers,
        body: { instanceId: instance },
      })
      return text(body, 'sessionId')
    }
    const id = await open()
    await open()
    const request = {
      requester: { type: 'user', value: 'Lisa' },
      requestedItems: itemsOf({ Print: 1 }),
      rollbackOnDeny: true,
    }
    const put = await twin.call('PUT', `/floating/api/v1.1/sessions/${id}`, { headers, body: request })
    expect(put.status).toBe(200)
    const active = await scrape(twin)
    expect([active('sessions', { state: 'active' }), active('sessions', { state: 'idle' })]).toEqual([1, 1])
    for (let hours = 0; hours < 30; hours += 1) {
      await twin.call('GET', `/floating/api/v1.1/sessions/${id}/heartbeat`, { headers })
      await twin.advance(HOUR)
    }
    const renewed = await scrape(twin)
    const usage = await twin.usage(instance)
    const automatic = usage.filter(({ operation }) => operation === 'AUTOMATIC_CHARGE')
    const charged = automatic.filter(({ status }) => status === 'GRANTED').length
    expect(charged).toBeGreaterThan(0)
    expect(renewed('automatic_charges_total', { result: 'charged', source: 'session' })).toBe(charged)
    expect(renewed('automatic_charges_total', { result: 'refused', source: 'session' })).toBe(
      automatic.length - charged,
    )
    const refunds = usage.filter(({ operation }) => operation === 'REFUND').length
    expect(renewed('refunds_total', { source: 'session' })).toBe(refunds)
  })

  it('count from zero, so that the first event is an increase for Prometheus', async () => {
    await using twin = await openTwin()
    const text = await (await fetch(twin.cloud.metricsAddress)).text()
    for (const line of [
      'tallygate_edge_syncs_total{outcome="fork"} 0',
      'tallygate_edge_syncs_total{outcome="rejected"} 0',
      'tallygate_decisions_total{result="granted",code="1001"} 0',
      'tallygate_tokens_charged_total{source="device"} 0',
      'tallygate_tokens_refunded_total{source="session"} 0',
    ]) {
      expect(text.split('\n')).toContain(line)
    }
  })

  it('have a closed list of series, whatever is requested', async () => {
    await using twin = await openTwin()
    await twin.access('64d2028c-ae87-4069-a624-66089d957ef9', { ['x"\\\n']: 1 })
    const series = async () =>
      (await (await fetch(twin.cloud.metricsAddress)).text())
        .split('\n')
        .filter((line) => line.startsWith('tallygate_')).length
    const { origin } = new URL(twin.cloud.address)
    await fetch(`${origin}/nowhere`)
    await series()
    const before = await series()
    for (let n = 0; n < 30; n += 1) await fetch(`${origin}/nowhere/${n}?x=${n}`)
    expect(await series()).toBe(before)
  })

  it('are for this machine, and not for whom a proxy on it brings', async () => {
    await using twin = await openTwin()
    expect((await fetch(twin.cloud.metricsAddress)).status).toBe(200)
    const forwarded = await fetch(twin.cloud.metricsAddress, { headers: { 'X-Forwarded-For': '192.0.2.7' } })
    expect([forwarded.status, await forwarded.json()]).toMatchObject([401, { code: 'TOKEN_MISSING' }])
  })

  it.each([null, '127.0.0.1:0'])(
    'are not for web pages that give their name the address of this machine: %s',
    async (listen) => {
      await using twin = await openTwin((settings) => ({ ...settings, metrics: { listen, token: null } }))
      const { port } = new URL(twin.cloud.metricsAddress)
      const asked = async (host: string) => {
        const socket = connect(Number(port), '127.0.0.1')
        socket.write(`GET /metrics HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`)
        return (await readText(socket)).slice('HTTP/1.1 '.length).slice(0, 3)
      }
      expect([await asked(`localhost:${port}`), await asked('[::1]'), await asked('LOCALHOST')]).toEqual([
        '200',
        '200',
        '200',
      ])
      expect([await asked(`evil.example:${port}`), await asked('127.0.0.1.evil.example')]).toEqual(['400', '400'])
    },
  )

  it('require the token, if one is set', async () => {
    await using twin = await openTwin((settings) => ({
      ...settings,
      metrics: { listen: null, token: new Secret('scrape-me', 'a test') },
    }))
    const codes = async (headers: Readonly<Record<string, string>>) =>
      (await fetch(twin.cloud.metricsAddress, { headers })).status
    expect(await codes({})).toBe(401)
    expect(await codes({ authorization: 'Bearer scrape-you' })).toBe(401)
    expect(await codes({ authorization: 'Bearer scrape-me' })).toBe(200)
  })

  it('have a separate address, if one is set, and are not at that of the twin', async () => {
    await using twin = await openTwin((settings) => ({ ...settings, metrics: { listen: '127.0.0.1:0', token: null } }))
    expect(new URL(twin.cloud.metricsAddress).origin).not.toBe(new URL(twin.cloud.address).origin)
    expect((await scrape(twin))('outbox_backlog')).toBe(0)
    const elsewhere = await fetch(new URL('/metrics', twin.cloud.address))
    expect(elsewhere.status).toBe(404)
    const other = await fetch(new URL('/', twin.cloud.metricsAddress))
    expect([other.status, await other.json()]).toMatchObject([404, { code: 'OPERATION_UNKNOWN' }])
    const twoHosts = 'GET /metrics HTTP/1.1\r\nHost: x\r\nHost: y\r\nConnection: close\r\n\r\n'
    for (const bytes of [twoHosts, 'this is not HTTP\r\n\r\n', '\u0016\u0003\u0001']) {
      const socket = connect(Number(new URL(twin.cloud.metricsAddress).port), '127.0.0.1')
      socket.write(bytes)
      expect(await readText(socket)).toMatch(/^HTTP\/1.1 400 [^]*"code":"BAD_REQUEST"/)
    }
  })

  it('refuse an invalid address', async () => {
    for (const listen of ['9464', 'localhost', '127.0.0.1:99999', '::1:9464']) {
      const opened = openTwin((settings) => ({ ...settings, metrics: { listen, token: null } }))
      await expect(opened, listen).rejects.toMatchObject({ code: 'CONFIG_INVALID' })
    }
  })
})

describe('the syncs of devices', () => {
  it('are counted by their outcome', async () => {
    await using twin = await EdgeTwin.open()
    await twin.setLineItem('ACT-1', { quantity: 1_000n })
    const outcomes: string[] = []
    const device = await TestDevice.join(twin)
    const { store, keys, terms, policies } = twin
    const heartbeat = async () => undefined
    const parts = {
      store,
      keys,
      terms,
      policies,
      heartbeat,
      now: twin.now,
      present: twin.present,
      trustsClock: () => true,
    }
    const syncBatcher = new SyncBatcher(parts, setImmediate)
    const send = async (document: string) => {
      const known = await store.read((reader) => reader.edge.devices.get(device.id))
      if (known === undefined) throw new Error('the device is known')
      return sync({ ...parts, syncBatcher, onOutcome: (outcome) => outcomes.push(outcome) }, known, document)
    }
    const { document } = await device.seal()
    await send(document)
    await send(document)
    await send('nonsense')
    expect(outcomes).toEqual(['MERGE', 'REPEAT', 'UNREADABLE'])
  })
})

describe('a watched store', () => {
  const noStore = { read: async () => undefined, onOutbox: () => () => undefined, close: async () => undefined }

  it('reports no usage of transactions that were rolled back or repeated', async () => {
    const appended: unknown[] = []
    const append = async (records: unknown[]) => void appended.push(...records)
    const tx = { usage: { append, deliver: async () => undefined } }
    const store = {
      ...noStore,
      transaction: async (work: (tx: unknown) => Promise<unknown>) => {
        await work(tx)
        return work(tx)
      },
    } as unknown as Store
    const told: unknown[] = []
    const watched = watchStore(
      store,
      {
        transaction: (committed, ms) => told.push([committed, ms]),
        usage: (records) => told.push(records.length),
        delivery: ({ records }) => told.push({ delivered: records }),
      },
      () => 0,
    )
    await watched.transaction(async (given) => {
      await given.usage.append([{} as never])
      await given.usage.deliver({ sums: { records: 5 } } as never)
    })
    expect(appended).toHaveLength(2)
    const committed = [[true, 0], 1, { delivered: 5 }]
    expect(told).toEqual(committed)
    const failing = watched.transaction(async () => {
      throw new Error('no')
    })
    await expect(failing).rejects.toThrow('no')
    expect(told).toEqual([...committed, [false, 0]])
  })

  it('is not harmed by a watcher that fails', async () => {
    const store = { ...noStore, transaction: async () => 'done' } as unknown as Store
    const fail = (): never => {
      throw new Error('the watcher')
    }
    const watched = watchStore(store, { transaction: fail, usage: fail, delivery: fail }, () => 0)
    expect(await watched.transaction(async () => 'mine')).toBe('done')
  })
})

describe('a scrape', () => {
  it('omits the totals of a store that does not respond, reports it, and shows the rest', async () => {
    const totals = Promise.withResolvers<never>()
    const metrics = new Metrics({
      version: '1',
      totals: () => totals.promise,
      totalsTimeoutMs: 1,
      lastBackupAt: () => null,
      paused: () => [],
      waiting: () => 3,
    })
    const families = parsePrometheusText(await metrics.text())
    expect(valueOf(families, 'tallygate_http_device_requests_waiting')).toBe(3)
    expect(valueOf(families, 'tallygate_store_totals_up')).toBe(0)
    expect(families.get('tallygate_sessions')?.samples).toEqual([])
    expect(families.get('tallygate_outbox_backlog')?.samples).toEqual([])
    expect(families.get('tallygate_certificate_expiry_timestamp_seconds')?.samples).toEqual([])
    expect(valueOf(families, 'process_resident_memory_bytes')).toBeGreaterThan(1e6)
  })
})
