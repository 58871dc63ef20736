import { describe, expect, it } from 'vitest'
import { formatMicro } from '../../../../src/core/pricing/amount.ts'
import { DAY, HOUR, MINUTE, START, type Twin, itemsOf, openTwin, pick, text, refusal } from '../../harness.ts'

const path = (instance: string, version = 'v1.1'): string =>
  `/elastic/api/${version}/instances/${instance}/access-request`

/** Per item: the status code, or what each line item was charged. */
async function ask(
  twin: Twin,
  instance: string,
  counts: Readonly<Record<string, number>>,
  dictionary?: Record<string, unknown>,
): Promise<unknown[]> {
  const { status, body } = await twin.call('POST', path(instance), {
    body: { requester: { type: 'user', value: 'x', dictionary }, requestedItems: itemsOf(counts) },
  })
  expect(status).toBe(200)
  const items = pick(body, 'requestedItems') as {
    status: { code: string }
    totalTokensCharged: number
    lineItems: { activationId: string; tokensCharged: number }[]
  }[]
  return items.map(({ status: { code }, totalTokensCharged, lineItems }) => {
    if (!code.startsWith('1')) {
      expect([totalTokensCharged, lineItems]).toEqual([0, []])
      return code
    }
    expect(lineItems.reduce((sum, part) => sum + part.tokensCharged, 0)).toBeCloseTo(totalTokensCharged, 6)
    return Object.fromEntries(lineItems.map(({ activationId, tokensCharged }) => [activationId, tokensCharged]))
  })
}

async function site(twin: Twin, rates: Readonly<Record<string, number>> = { Print: 3, Sign: 7 }): Promise<string> {
  const instance = await twin.instance()
  await twin.rates(rates)
  return instance
}

describe('a one-off access request', () => {
  it('charges count times rate, and names the line items that paid', async () => {
    await using twin = await openTwin()
    const instance = await site(twin)
    await twin.lineItem(instance)
    const body = {
      requester: { type: 'user', value: 'LisaBarry' },
      requestedItems: [{ item: 'Print', count: 10, metaData: { job: 7 } }],
    }
    const v11 = await twin.call('POST', path(instance), { body })
    expect(v11.status).toBe(200)
    expect(v11.body).toEqual({
      correlationId: expect.stringMatching(/^[0-9a-f-]{36}$/) as string,
      requester: { type: 'user', value: 'LisaBarry' },
      requestedItems: [
        {
          item: 'Print',
          count: 10,
          status: { code: '1001', description: 'Successfully checked out' },
          totalTokensCharged: 30,
          lineItems: [{ activationId: 'ACT-1', rate: 3, tokensCharged: 30 }],
        },
      ],
    })
    const v10 = await twin.call('POST', path(instance, 'v1.0'), { body })
    expect(pick(v10.body, 'requestedItems', 0, 'status', 'code')).toBe('101')
    expect(await twin.used(instance, 'ACT-1')).toBe(60)
  })

  it('is refused from a requester whose account no store could name, and taken from the longest that one can', async () => {
    await using twin = await openTwin()
    const instance = await site(twin)
    // As long as a line item's id may be: 85 signs of three bytes.
    const id = '\u{20AC}'.repeat(85)
    expect((await twin.lineItem(instance, { activationId: `${id}\u{20AC}` })).status).toBe(400)
    expect((await twin.lineItem(instance, { activationId: id })).status).toBeLessThan(300)
    const limit = `/api/v1.1/instances/${instance}/line-items/${encodeURIComponent(id)}/consumption-limit`
    const monthly = { limit: 100, frequency: 'MONTHLY', nextReset: START + DAY }
    expect((await twin.call('PUT', limit, { body: monthly })).status).toBe(200)
    const from = (type: string, value: string) =>
      twin.call('POST', path(instance), {
        body: { requester: { type, value }, requestedItems: itemsOf({ Print: 1 }) },
      })
    const granted = await from('\u{20AC}'.repeat(50), '\u{20AC}'.repeat(83))
    expect(pick(granted.body, 'requestedItems', 0, 'status', 'code')).toBe('1001')
    for (const [type, value] of [
      ['\u{20AC}'.repeat(50), '\u{20AC}'.repeat(84)],
      ['user', '\u{1F600}'.repeat(128)],
      ['user', 'x'.repeat(257)],
    ] as const) {
      const refused = await from(type, value)
      expect(refusal(refused)).toEqual([400, 'BAD_REQUEST'])
    }
  })

  it('is charged to the line item that ends first, then to the one that starts first, and splits a charge', async () => {
    await using twin = await openTwin()
    const instance = await site(twin)
    const end = START + 100 * DAY
    await twin.lineItem(instance, { activationId: 'last', end: end + 1, quantity: 1000 })
    await twin.lineItem(instance, { activationId: 'second', end, start: START - DAY, quantity: 100 })
    await twin.lineItem(instance, { activationId: 'first', end, start: START - 2 * DAY, quantity: 10 })
    expect(await ask(twin, instance, { Print: 1, Sign: 8 })).toEqual([{ first: 3 }, { first: 7, second: 49 }])
    expect(await ask(twin, instance, { Sign: 8 })).toEqual([{ second: 51, last: 5 }])
  })

  it('grants and refuses each item separately, in the given order', async () => {
    await using twin = await openTwin()
    const instance = await site(twin, { Print: 3, Sign: 7, Scan: 1 })
    await twin.lineItem(instance, { quantity: 10 })
    expect(await ask(twin, instance, { Print: 2, Nothing: 1, Sign: 1, Scan: 4 })).toEqual([
      { 'ACT-1': 6 },
      '2001',
      '2002',
      { 'ACT-1': 4 },
    ])
    expect(await twin.used(instance, 'ACT-1')).toBe(10)
  })

  it('uses elastic line items that are DEPLOYED and in their window', async () => {
    await using twin = await openTwin()
    const instance = await site(twin)
    await twin.lineItem(instance, { activationId: 'not elastic', attributes: { elastic: false } })
    await twin.lineItem(instance, { activationId: 'future', start: START + 1 })
    await twin.lineItem(instance, { activationId: 'past', end: START - 1 })
    await twin.lineItem(instance, { activationId: 'inactive' })
    await twin.lineItem(instance, { activationId: 'inactive', state: 'INACTIVE' })
    await twin.lineItem(instance, { activationId: 'obsolete' })
    await twin.lineItem(instance, { activationId: 'obsolete', state: 'OBSOLETE' })
    expect(await ask(twin, instance, { Print: 1 })).toEqual(['2006'])
    await twin.lineItem(instance, { activationId: 'inactive', state: 'DEPLOYED' })
    expect(await ask(twin, instance, { Print: 1 })).toEqual([{ inactive: 3 }])
  })

  it('may use overdraft, line item by line item', async () => {
    await using twin = await openTwin()
    const instance = await site(twin, { Print: 1 })
    const end = START + 100 * DAY
    await twin.lineItem(instance, {
      activationId: 'A',
      end,
      quantity: 10,
      attributes: { overdraftType: 'Number', overdraftLimit: 5 },
    })
    await twin.lineItem(instance, { activationId: 'B', end: end + 1, quantity: 10 })
    expect(await ask(twin, instance, { Print: 17 })).toEqual([{ A: 15, B: 2 }])
    expect(await ask(twin, instance, { Print: 9 })).toEqual(['2002'])
    await twin.lineItem(instance, {
      activationId: 'B',
      end: end + 1,
      quantity: 10,
      attributes: { overdraftType: 'Unlimited' },
    })
    expect(await ask(twin, instance, { Print: 1_000_000 })).toEqual([{ B: 1_000_000 }])
    expect(await twin.used(instance, 'B')).toBe(1_000_002)
  })

  it('is exact: a tenth, ten times, is one', async () => {
    await using twin = await openTwin()
    const instance = await site(twin, { Print: 0.1, Scan: 0.000001 })
    await twin.lineItem(instance, { quantity: 1 })
    for (let n = 0; n < 9; n += 1) expect(await ask(twin, instance, { Print: 1 })).toEqual([{ 'ACT-1': 0.1 }])
    expect(await twin.used(instance, 'ACT-1')).toBe(0.9)
    expect(await ask(twin, instance, { Scan: 99_999 })).toEqual([{ 'ACT-1': 0.099999 }])
    expect(await ask(twin, instance, { Scan: 2 })).toEqual(['2002'])
    expect(await ask(twin, instance, { Scan: 1 })).toEqual([{ 'ACT-1': 0.000001 }])
    expect(await twin.used(instance, 'ACT-1')).toBe(1)
  })

  it('writes numbers that a double cannot hold with all their digits', async () => {
    await using twin = await openTwin()
    const instance = await site(twin, { Print: 1, Scan: 0.000001 })
    await twin.lineItem(instance, { quantity: 9_000_000_000_000 })
    await ask(twin, instance, { Print: 9_000_000_000 })
    await ask(twin, instance, { Print: 8_990_000_000_000, Scan: 1 })
    const { text: body } = await twin.call('GET', `/provisioning/api/v1.1/instances/${instance}/line-items/ACT-1`)
    expect(body).toContain('"used":8999000000000.000001')
  })

  it('is never refused with a server error, however large its counts', async () => {
    await using twin = await openTwin()
    const instance = await site(twin, { Print: 1e39 })
    await twin.lineItem(instance, { quantity: 9_000_000_000_000, attributes: { overdraftType: 'Unlimited' } })
    expect(await ask(twin, instance, { Print: 1e39 })).toEqual(['2013'])
    expect(await ask(twin, instance, { Print: 1e-39 })).toEqual([{ 'ACT-1': 1 }])
  })

  it('takes the version under its older name, and answers it as version', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    await twin.lineItem(instance)
    const items = [{ name: 'Print', version: '1.0', rate: 1 }]
    await twin.call('POST', '/provisioning/api/v1.1/rate-tables', { body: { effectiveFrom: 0, version: '1', items } })
    const { body } = await twin.call('POST', path(instance, 'v1.0'), {
      body: {
        requester: { type: 'device', value: 'd' },
        requestedItems: [{ item: 'Print', requestedVersion: '1.0', count: 1 }],
      },
    })
    expect(pick(body, 'requestedItems', 0)).toMatchObject({ version: '1.0', status: { code: '101' } })
    expect(pick(body, 'requestedItems', 0, 'requestedVersion')).toBeUndefined()
  })

  it('is refused as a whole when it is not well-formed', async () => {
    await using twin = await openTwin()
    const instance = await site(twin)
    const good = { requester: { type: 'user', value: 'x' }, requestedItems: [{ item: 'Print', count: 1 }] }
    for (const body of [
      {},
      { ...good, requester: undefined },
      { ...good, requester: { type: 'user' } },
      { ...good, requester: { ...good.requester, dictionary: [] } },
      { ...good, requestedItems: [] },
      { ...good, requestedItems: [{ item: 'Print' }] },
      { ...good, requestedItems: [{ item: 'Print', count: 0 }] },
      { ...good, requestedItems: [{ item: 'Print', count: -1 }] },
      { ...good, requestedItems: [{ item: 'Print', count: '1' }] },
      { ...good, requestedItems: [{ item: '', count: 1 }] },
      { ...good, requestedItems: [{ item: 'Print', count: 1, metaData: 'text' }] },
      { ...good, requestedItems: [{ item: 'Print', count: 1, version: '1', requestedVersion: '1' }] },
      { ...good, requestedItems: Array.from({ length: 501 }, () => ({ item: 'Print', count: 1 })) },
      { ...good, rollbackOnDeny: true },
      [good],
    ]) {
      expect((await twin.call('POST', path(instance), { body })).status).toBe(400)
    }
    const nowhere = '64d2028c-ae87-4069-a624-66089d957ef9'
    expect((await twin.call('POST', path(nowhere), { body: good })).status).toBe(404)
    expect((await twin.call('POST', path('x'), { body: good })).status).toBe(400)
  })

  it('leaves no more than one record for each share and each refusal', async () => {
    await using twin = await openTwin()
    const instance = await site(twin, { Print: 3, Sign: 7 })
    const end = START + 100 * DAY
    await twin.lineItem(instance, { activationId: 'A', end, quantity: 10 })
    await twin.lineItem(instance, { activationId: 'B', end: end + 1, quantity: 100 })
    twin.now += MINUTE
    const { body } = await twin.call('POST', path(instance), {
      body: {
        requester: { type: 'user', value: 'LisaBarry' },
        requestedItems: [
          { item: 'Print', count: 1, metaData: { job: 7 } },
          { item: 'Sign', count: 8 },
          { item: 'Nothing', version: '2', count: 0.5 },
        ],
      },
    })
    const correlationId = text(body, 'correlationId')
    const usage = await twin.usage(instance)
    expect(
      usage.map(({ activationId, quantity, used, item, version, status, tokens, metaData }) => [
        activationId,
        quantity && formatMicro(quantity),
        used && formatMicro(used),
        item,
        version,
        status,
        formatMicro(tokens),
        metaData,
      ]),
    ).toEqual([
      ['A', '10', '3', 'Print', '', 'GRANTED', '3', '{"job":7}'],
      ['A', '10', '10', 'Sign', '', 'GRANTED', '7', null],
      ['B', '100', '49', 'Sign', '', 'GRANTED', '49', null],
      [null, null, null, 'Nothing', '2', 'ITEM_NOT_RATED', '0', null],
    ])
    for (const record of usage) {
      expect(record).toMatchObject({
        correlationId,
        usageTime: twin.now,
        writeTime: twin.now,
        requesterType: 'user',
        requesterValue: 'LisaBarry',
        accountId: 'customer',
        instanceId: instance,
        source: { kind: 'one-off' },
      })
    }
  })
})

describe('rules of access', () => {
  const IN = (property: string, ...values: string[]) => ({ operator: 'IN', property, values })

  async function ruled(twin: Twin, conditions: object[], actions: (ids: string[]) => object[]): Promise<string> {
    const instance = await site(twin, { Print: 1 })
    await twin.lineItem(instance, { quantity: 210 })
    const made = await twin.call('POST', `/api/v1.1/instances/${instance}/conditions`, { body: conditions })
    const ids = (made.body as { id: string }[]).map(({ id }) => id)
    const path = `/api/v1.1/instances/${instance}/line-items/ACT-1/actions`
    expect((await twin.call('POST', path, { body: actions(ids) })).status).toBe(200)
    return instance
  }

  it('cap the use of departments, as in the documented example', async () => {
    await using twin = await openTwin()
    const instance = await ruled(
      twin,
      [IN('department', 'engineering'), IN('department', 'sales', 'marketing')],
      ([first, second]) => [
        { action: 'ALLOW', conditionId: first, allocation: 150 },
        { action: 'ALLOW', conditionId: second, allocation: 50 },
      ],
    )
    const take = (department: string | undefined, count: number) =>
      ask(twin, instance, { Print: count }, department === undefined ? undefined : { department })
    expect(await take('engineering', 151)).toEqual(['2004'])
    expect(await take('engineering', 150)).toEqual([{ 'ACT-1': 150 }])
    expect(await take('sales', 30)).toEqual([{ 'ACT-1': 30 }])
    expect(await take('marketing', 21)).toEqual(['2004'])
    expect(await take('marketing', 20)).toEqual([{ 'ACT-1': 20 }])
    expect(await take('finance', 1)).toEqual(['2003'])
    expect(await take(undefined, 1)).toEqual(['2003'])
    const { body } = await twin.call('GET', `/api/v1.1/instances/${instance}/line-items/ACT-1/actions`)
    expect(body).toMatchObject([{ used: 150 }, { used: 50 }])
  })

  it('take the first action that matches, and no other', async () => {
    await using twin = await openTwin()
    const instance = await ruled(
      twin,
      [IN('status', 'suspended'), { operator: 'NOT', condition: IN('area', 'hall', 'lab') }],
      ([suspended, remote]) => [
        { action: 'DENY', conditionId: suspended },
        { action: 'ALLOW', conditionId: remote, allocation: 5 },
        { action: 'ALLOW' },
      ],
    )
    const take = (dictionary: Record<string, unknown>, count = 1) => ask(twin, instance, { Print: count }, dictionary)
    expect(await take({ status: 'suspended', area: 'hall' })).toEqual(['2003'])
    expect(await take({ area: 'hall' }, 10)).toEqual([{ 'ACT-1': 10 }])
    expect(await take({ area: ['attic', 'lab'] }, 10)).toEqual([{ 'ACT-1': 10 }])
    expect(await take({}, 5)).toEqual([{ 'ACT-1': 5 }])
    expect(await take({}, 1)).toEqual(['2004'])
    expect(await take({ area: { nested: 1 } })).toEqual(['2003'])
  })

  it('apply from the moment in which they are changed', async () => {
    await using twin = await openTwin()
    const instance = await ruled(twin, [IN('a', '1')], () => [{ action: 'DENY' }])
    expect(await ask(twin, instance, { Print: 1 })).toEqual(['2003'])
    await twin.call('DELETE', `/api/v1.1/instances/${instance}/line-items/ACT-1/actions`)
    expect(await ask(twin, instance, { Print: 1 })).toEqual([{ 'ACT-1': 1 }])
  })
})

describe('resetFrequency', () => {
  it('gives a line item its quantity again with each calendar period from its start', async () => {
    await using twin = await openTwin()
    const instance = await site(twin, { Print: 1 })
    const start = Date.UTC(2026, 0, 31, 10)
    await twin.lineItem(instance, { start, quantity: 10, attributes: { resetFrequency: 'MONTHLY' } })
    const at = async (now: number) => {
      twin.now = now
      const answer = await ask(twin, instance, { Print: 10 })
      return [answer[0], await twin.used(instance, 'ACT-1')]
    }
    expect(await at(START)).toEqual([{ 'ACT-1': 10 }, 10])
    expect(await at(START)).toEqual(['2002', 10])
    expect(await at(Date.UTC(2026, 4, 31, 10) - 1)).toEqual(['2002', 10])
    expect(await at(Date.UTC(2026, 4, 31, 10))).toEqual([{ 'ACT-1': 10 }, 10])
    expect(await at(Date.UTC(2026, 5, 30, 10) - 1)).toEqual(['2002', 10])
    expect(await at(Date.UTC(2026, 5, 30, 10))).toEqual([{ 'ACT-1': 10 }, 10])
  })

  it('continues for years without a change of the line item', async () => {
    await using twin = await openTwin()
    const instance = await site(twin, { Print: 1 })
    await twin.lineItem(instance, { end: START + 9_000 * DAY, quantity: 1, attributes: { resetFrequency: 'DAILY' } })
    for (const days of [1, 30, 31, 32, 62, 63, 64, 200, 3000]) {
      twin.now = START + days * DAY
      expect(await ask(twin, instance, { Print: 1 })).toEqual([{ 'ACT-1': 1 }])
      expect(await ask(twin, instance, { Print: 1 })).toEqual(['2002'])
    }
  })

  it('does not reset when it is changed: used tokens count until the next boundary', async () => {
    await using twin = await openTwin()
    const instance = await site(twin, { Print: 1 })
    await twin.lineItem(instance, { quantity: 10 })
    await ask(twin, instance, { Print: 6 })
    await twin.lineItem(instance, { quantity: 10, attributes: { resetFrequency: 'DAILY' } })
    expect(await twin.used(instance, 'ACT-1')).toBe(6)
    expect(await ask(twin, instance, { Print: 5 })).toEqual(['2002'])
    twin.now += DAY
    expect(await twin.used(instance, 'ACT-1')).toBe(0)
    await ask(twin, instance, { Print: 3 })
    await twin.lineItem(instance, { quantity: 10, attributes: { resetFrequency: 'WEEKLY' } })
    expect(await twin.used(instance, 'ACT-1')).toBe(3)
    await twin.lineItem(instance, { quantity: 10 })
    twin.now += 30 * DAY
    expect(await twin.used(instance, 'ACT-1')).toBe(3)
  })
})

describe('a consumption limit', () => {
  const limitPath = (instance: string, version = 'v1.1') =>
    `/api/${version}/instances/${instance}/line-items/ACT-1/consumption-limit`

  it('caps each requester by itself, until the next reset', async () => {
    await using twin = await openTwin()
    const instance = await site(twin, { Print: 1 })
    await twin.lineItem(instance)
    const take = async (user: string, count: number) =>
      pick((await twin.access(instance, { Print: count }, user)).body, 'requestedItems', 0, 'status', 'code')
    expect(await take('anna', 20)).toBe('1001')
    const limit = { limit: 10.5, frequency: 'MONTHLY', nextReset: START + DAY }
    const put = await twin.call('PUT', limitPath(instance), { body: limit })
    expect([put.status, put.body]).toEqual([200, limit])
    expect(await take('anna', 11)).toBe('2005')
    expect(await take('anna', 10)).toBe('1001')
    expect(await take('anna', 1)).toBe('2005')
    expect(await take('ben', 10)).toBe('1001')
    twin.now += DAY
    expect(await take('anna', 10)).toBe('1001')
    expect((await twin.call('GET', limitPath(instance))).body).toEqual({
      ...limit,
      nextReset: Date.UTC(2026, 5, 7, 7, 8, 9),
    })
  })

  it('keeps its counts when only its amount changes, and starts at zero when it is set again', async () => {
    await using twin = await openTwin()
    const instance = await site(twin, { Print: 1 })
    await twin.lineItem(instance)
    const set = (limit: number, nextReset: number) =>
      twin.call('PUT', limitPath(instance), { body: { limit, frequency: 'DAILY', nextReset } })
    const take = async (count: number) =>
      pick((await twin.access(instance, { Print: count })).body, 'requestedItems', 0, 'status', 'code')
    await set(10, START + HOUR)
    expect(await take(10)).toBe('1001')
    await set(12, START + HOUR)
    expect(await take(3)).toBe('2005')
    expect(await take(2)).toBe('1001')
    await set(12, START + 2 * HOUR)
    expect(await take(12)).toBe('1001')
    expect((await twin.call('DELETE', limitPath(instance))).status).toBe(204)
    expect((await twin.call('DELETE', limitPath(instance))).status).toBe(404)
    expect((await twin.call('GET', limitPath(instance))).status).toBe(404)
    expect(await take(30)).toBe('1001')
    await set(12, START + 2 * HOUR)
    expect(await take(12)).toBe('1001')
  })

  it('is refused when it is not well-formed, and unknown to v1.0', async () => {
    await using twin = await openTwin()
    const instance = await site(twin)
    await twin.lineItem(instance)
    const good = { limit: 1, frequency: 'DAILY', nextReset: START + 1 }
    for (const change of [
      { limit: 0 },
      { limit: 1e-9 },
      { limit: '1' },
      { frequency: 'NONE' },
      { nextReset: START },
      { x: 1 },
    ]) {
      expect((await twin.call('PUT', limitPath(instance), { body: { ...good, ...change } })).status).toBe(400)
    }
    expect((await twin.call('PUT', limitPath(instance, 'v1.0'), { body: good })).status).toBe(404)
  })
})

describe('many requests at once', () => {
  it('never spend more than the line item has', async () => {
    await using twin = await openTwin()
    const instance = await site(twin, { Print: 1 })
    await twin.lineItem(instance, { quantity: 100 })
    const answers = await Promise.all(
      Array.from({ length: 80 }, async (_, n) => twin.access(instance, { Print: 3 }, `user ${n}`)),
    )
    const codes = answers.map(({ body }) => pick(body, 'requestedItems', 0, 'status', 'code'))
    expect(codes.filter((code) => code === '1001')).toHaveLength(33)
    expect(codes.filter((code) => code === '2002')).toHaveLength(47)
    expect(await twin.used(instance, 'ACT-1')).toBe(99)
    const usage = await twin.usage(instance)
    expect(usage).toHaveLength(80)
    expect(usage.reduce((sum, { tokens }) => sum + tokens, 0n)).toBe(99_000_000n)
  })

  it('never spend more than an allocation or a requester limit either', async () => {
    await using twin = await openTwin()
    const instance = await site(twin, { Print: 1 })
    await twin.lineItem(instance, { quantity: 1000 })
    await twin.call('POST', `/api/v1.1/instances/${instance}/line-items/ACT-1/actions`, {
      body: [{ action: 'ALLOW', allocation: 20 }],
    })
    await twin.call('PUT', `/api/v1.1/instances/${instance}/line-items/ACT-1/consumption-limit`, {
      body: { limit: 7, frequency: 'DAILY', nextReset: START + DAY },
    })
    await Promise.all(Array.from({ length: 60 }, async (_, n) => twin.access(instance, { Print: 2 }, `user ${n % 2}`)))
    expect(await twin.used(instance, 'ACT-1')).toBe(12)
    await Promise.all(Array.from({ length: 60 }, async (_, n) => twin.access(instance, { Print: 2 }, `user ${n}`)))
    expect(await twin.used(instance, 'ACT-1')).toBe(20)
  })

  it('and changes of the rules in between leave every account within its cap', async () => {
    await using twin = await openTwin()
    const instance = await site(twin, { Print: 1 })
    await twin.lineItem(instance, { quantity: 50 })
    await Promise.all([
      ...Array.from({ length: 60 }, async () => twin.access(instance, { Print: 1 })),
      ...[40, 10, 60, 30].map(async (quantity) => twin.lineItem(instance, { quantity })),
    ])
    await twin.lineItem(instance, { quantity: 30 })
    const used = await twin.used(instance, 'ACT-1')
    expect(used).toBeLessThanOrEqual(60)
    const pools = await twin.read((reader) => reader.accounts.ofLineItem(instance, 'ACT-1'))
    for (const { charged, capTarget, capInForce } of pools) {
      expect(capTarget).toBe(30_000_000n)
      expect(capInForce).toBe(charged > 30_000_000n ? charged : 30_000_000n)
    }
  })
})

describe('granted items', () => {
  it('is still charged after a restart', async () => {
    await using twin = await openTwin()
    const instance = await site(twin, { Print: 1 })
    await twin.lineItem(instance, { quantity: 5 })
    await ask(twin, instance, { Print: 3 })
    await twin.restart()
    expect(await twin.used(instance, 'ACT-1')).toBe(3)
    expect(await ask(twin, instance, { Print: 3 })).toEqual(['2002'])
  })
})
