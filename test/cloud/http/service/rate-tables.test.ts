import { describe, expect, it } from 'vitest'
import { DAY, HOUR, START, type Twin, openTwin, pick } from '../../harness.ts'

const PATH = '/provisioning/api/v1.1/rate-tables'

const table = (change: Record<string, unknown> = {}) => ({
  effectiveFrom: START - DAY,
  version: '1',
  series: 'PublicationApps',
  items: [{ name: 'PhotoPrint', version: '1.0', rate: 3 }],
  ...change,
})

const charged = async (twin: Twin, instance: string, item: string, version?: string): Promise<unknown> => {
  const { body } = await twin.call('POST', `/elastic/api/v1.0/instances/${instance}/access-request`, {
    body: { requester: { type: 'user', value: 'x' }, requestedItems: [{ item, count: 1, version }] },
  })
  return pick(body, 'requestedItems', 0, 'lineItems', 0, 'rate') ?? pick(body, 'requestedItems', 0, 'status', 'code')
}

describe('rate tables', () => {
  it('are saved, listed whether in effect or not, and keep every digit of a rate', async () => {
    await using twin = await openTwin()
    const saved = await twin.call('POST', PATH, { body: table() })
    expect([saved.status, saved.body]).toEqual([201, { message: 'Rate table successfully saved' }])
    const raw = `{"effectiveFrom":${START + DAY},"version":"2","items":[{"name":"A","rate":0.1},{"name":"B","rate":1e-7}]}`
    expect((await twin.call('POST', '/provisioning/api/v1.0/rate-tables', { raw })).status).toBe(201)
    const listed = await twin.call('GET', PATH)
    expect(listed.body).toEqual([
      { ...table(), created: START },
      {
        effectiveFrom: START + DAY,
        series: '',
        version: '2',
        items: [
          { name: 'A', rate: 0.1 },
          { name: 'B', rate: 1e-7 },
        ],
        created: START,
      },
    ])
    expect(listed.text).toContain('0.0000001')
  })

  it('are one for each series and version', async () => {
    await using twin = await openTwin()
    expect((await twin.call('POST', PATH, { body: table() })).status).toBe(201)
    const again = await twin.call('POST', PATH, { body: table({ effectiveFrom: START }) })
    expect(again.status).toBe(409)
    expect(Object.keys(again.body as object)).toEqual(['error'])
    expect((await twin.call('POST', PATH, { body: table({ series: 'other' }) })).status).toBe(201)
    expect((await twin.call('POST', PATH, { body: table({ series: undefined }) })).status).toBe(201)
    expect((await twin.call('POST', PATH, { body: table({ series: '' }) })).status).toBe(409)
  })

  it('are deleted while they are not in effect', async () => {
    await using twin = await openTwin()
    await twin.call('POST', PATH, { body: table() })
    await twin.call('POST', PATH, { body: table({ version: '2', effectiveFrom: START + HOUR }) })
    await twin.call('POST', PATH, { body: table({ version: '2', effectiveFrom: START + HOUR, series: undefined }) })
    const inEffect = await twin.call('DELETE', `${PATH}?series=PublicationApps&version=1`)
    expect([inEffect.status, Object.keys(inEffect.body as object)]).toEqual([409, ['error']])
    expect((await twin.call('DELETE', `${PATH}?series=nothing&version=1`)).status).toBe(404)
    expect((await twin.call('DELETE', `${PATH}?version=1`)).status).toBe(404)
    expect((await twin.call('DELETE', `${PATH}?series=PublicationApps`)).status).toBe(400)
    expect((await twin.call('DELETE', `${PATH}?version=2&Series=PublicationApps`)).status).toBe(400)
    expect((await twin.call('DELETE', `${PATH}?version=2`)).status).toBe(204)
    expect((await twin.call('DELETE', `${PATH}/?series=PublicationApps&version=2`)).status).toBe(204)
    expect(pick((await twin.call('GET', `${PATH}/`)).body, 'length')).toBe(1)
  })

  it('are refused when they are not well-formed', async () => {
    await using twin = await openTwin()
    const item = { name: 'A', rate: 1 }
    for (const change of [
      { effectiveFrom: undefined },
      { effectiveFrom: '2026' },
      { version: undefined },
      { version: 1 },
      { items: undefined },
      { items: [] },
      { items: [{ name: 'A' }] },
      { items: [{ ...item, rate: -1 }] },
      { items: [{ ...item, rate: '1' }] },
      { items: [{ ...item, rate: 1e300 }] },
      { items: [item, { ...item, version: '' }] },
      { items: [{ ...item, formula: '1' }] },
      { items: [{ name: 'A', formula: 1 }] },
      { items: [{ name: 'A', formula: '1' }, item] },
      { author: 5 },
    ]) {
      expect((await twin.call('POST', PATH, { body: table(change) })).status, JSON.stringify(change)).toBe(400)
    }
    expect((await twin.call('POST', PATH, { body: [table()] })).status).toBe(400)
    expect((await twin.call('POST', PATH)).status).toBe(400)
  })

  it('may rate an item by a formula in v1.1, and say where a formula is wrong', async () => {
    await using twin = await openTwin()
    const items = [
      { name: 'Plot', formula: 'Size * 2' },
      { name: 'Scan', rate: 3 },
    ]
    const body = table({ series: undefined, items })
    const refused = await twin.call('POST', PATH.replace('v1.1', 'v1.0'), { body })
    expect([refused.status, pick(refused.body, 'message')]).toEqual([400, expect.stringContaining('items[0]')])
    expect((await twin.call('POST', PATH, { body })).status).toBe(201)
    expect(pick((await twin.call('GET', PATH)).body, 0, 'items')).toEqual(items)
    expect(pick((await twin.call('GET', PATH.replace('v1.1', 'v1.0'))).body, 0, 'items')).toEqual([items[1]])

    const wrong = table({ version: '2', items: [{ name: 'Plot', formula: 'Size * * 2' }] })
    const told = await twin.call('POST', PATH, { body: wrong })
    expect([told.status, pick(told.body, 'message')]).toEqual([
      400,
      'body.items[0].formula: at character 8: a number, a variable, a function or "(" is expected here',
    ])

    const instance = await twin.instance()
    await twin.lineItem(instance)
    const ask = async (version: string, item: Record<string, unknown>) =>
      twin.call('POST', `/elastic/api/${version}/instances/${instance}/access-request`, {
        body: { requester: { type: 'user', value: 'x' }, requestedItems: [{ item: 'Plot', count: 2, ...item }] },
      })
    const granted = await ask('v1.1', { variables: { SIZE: 1.5 } })
    expect(pick(granted.body, 'requestedItems', 0, 'lineItems', 0)).toMatchObject({ rate: 3, tokensCharged: 6 })
    expect(pick((await ask('v1.1', {})).body, 'requestedItems', 0, 'status')).toEqual({
      code: '2007',
      description: 'Formula could not be evaluated',
    })
    expect(pick((await ask('v1.0', {})).body, 'requestedItems', 0, 'status', 'code')).toBe('207')
    for (const [version, variables] of [
      ['v1.0', { size: 1 }],
      ['v1.1', { size: '1' }],
      ['v1.1', { size: 1, SIZE: 1 }],
      ['v1.1', { 'a-b': 1 }],
      ['v1.1', { size: 1e300 }],
      ['v1.1', [1]],
      ['v1.1', Object.fromEntries(Array.from({ length: 33 }, (_, index) => [`v${index}`, 1]))],
    ] as const) {
      expect((await ask(version, { variables })).status, JSON.stringify(variables)).toBe(400)
    }
  })

  it('rate a line item by its series, and the latest that has come into effect', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    await twin.lineItem(instance, { attributes: { rateTableSeries: 'PublicationApps' } })
    expect(await charged(twin, instance, 'PhotoPrint', '1.0')).toBe('201')
    await twin.call('POST', PATH, { body: table() })
    const next = { version: '0', effectiveFrom: START + HOUR, items: [{ name: 'PhotoPrint', version: '1.0', rate: 5 }] }
    await twin.call('POST', PATH, { body: table(next) })
    await twin.rates({ PhotoPrint: 7 })
    expect(await charged(twin, instance, 'PhotoPrint', '1.0')).toBe(3)
    expect(await charged(twin, instance, 'PhotoPrint', '1')).toBe('201')
    twin.now += HOUR - 1
    expect(await charged(twin, instance, 'PhotoPrint', '1.0')).toBe(3)
    twin.now += 1
    expect(await charged(twin, instance, 'PhotoPrint', '1.0')).toBe(5)
  })

  it('are refused when devices would need more of them than a policy can contain', async () => {
    await using twin = await openTwin()
    const items = Array.from({ length: 10_000 }, (_, n) => ({ name: `${n}-`.padEnd(60, 'x'), version: '', rate: 1 }))
    const save = (version: number, effectiveFrom = twin.now) =>
      twin.call('POST', PATH, { body: table({ version: String(version), effectiveFrom, items }) })
    for (let version = 1; version <= 6; version += 1) expect((await save(version)).status).toBe(201)
    const refused = await save(7)
    expect(refused).toMatchObject({ status: 400, body: { code: 'BAD_REQUEST' } })
    expect(refused.text).toContain('at most 6000000 bytes of JSON')
    expect(pick((await twin.call('GET', PATH)).body, 'length')).toBe(6)
    twin.now += 30 * DAY
    expect((await save(7)).status).toBe(201)
  })

  it('match an item without version only by one without version', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    await twin.lineItem(instance)
    await twin.call('POST', PATH, {
      body: table({
        series: undefined,
        items: [
          { name: 'A', rate: 1 },
          { name: 'B', version: '1', rate: 2 },
          { name: 'C', version: '', rate: 3 },
        ],
      }),
    })
    expect(await charged(twin, instance, 'A')).toBe(1)
    expect(await charged(twin, instance, 'A', '')).toBe(1)
    expect(await charged(twin, instance, 'A', '1')).toBe('201')
    expect(await charged(twin, instance, 'B')).toBe('201')
    expect(await charged(twin, instance, 'B', '1')).toBe(2)
    expect(await charged(twin, instance, 'C')).toBe(3)
  })
})
