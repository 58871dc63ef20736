// What published clients send: queries in their own spelling, and bodies that repeat what a GET returned.
import { readFile } from 'node:fs/promises'
import { describe, expect, it } from 'vitest'
import { DAY, START, type Twin, lineItemBody, newKeyPair, openTwin, pick, text } from '../../harness.ts'

const VERSIONS = ['v1.0', 'v1.1'] as const

describe.each(VERSIONS)('clients of %s', (version) => {
  const instances = `/provisioning/api/${version}/instances`

  it.each(['True', 'TRUE', 'true', 'tRuE'])('find the default instance with default=%s', async (value) => {
    await using twin = await openTwin()
    const id = await twin.instance('ACC')
    const found = await twin.call('GET', `${instances}?accountId=ACC&default=${value}&size=500`)
    expect([found.status, pick(found.body, 'content', 0, 'id')]).toEqual([200, id])
  })

  it.each(['false', 'False', '1', '', 'yes'])('get an error that names default=%s', async (value) => {
    await using twin = await openTwin()
    const { status, body } = await twin.call('GET', `${instances}?accountId=ACC&default=${value}`)
    expect([status, text(body, 'message')]).toEqual([400, expect.stringContaining('query.default')])
  })

  it('may send query keys that an operation does not know', async () => {
    await using twin = await openTwin()
    const document = JSON.parse(await readFile(`docs/reference/openapi/${version}.json`, 'utf8')) as unknown
    const paths = Object.entries(pick(document, 'paths') as Record<string, Record<string, unknown>>)
    const calls = paths.flatMap(([path, operations]) =>
      Object.keys(operations).map((method) => [method, path] as const),
    )
    let called = 0
    for (const [method, path] of calls) {
      if (!/^(get|put|post|patch|delete)$/.test(method)) continue
      // Our own operation, which no published client calls: without a misspelled filter, it would export other records.
      if (path.endsWith('/usage')) continue
      const address = path.replaceAll(/\{\w+\}/g, '64d2028c-ae87-4069-a624-66089d957ef9')
      const options = method === 'get' || method === 'delete' ? {} : { body: {} }
      const [plain, extended] = [
        await twin.call(method.toUpperCase(), address, options),
        await twin.call(method.toUpperCase(), `${address}?expand=all&_=1`, options),
      ]
      expect([extended.status, pick(extended.body, 'message')], `${method} ${path}`).toEqual([
        plain.status,
        pick(plain.body, 'message'),
      ])
      called += 1
    }
    expect(called).toBeGreaterThan(20)
  })

  it('may send an instance back as it was read', async () => {
    await using twin = await openTwin()
    await twin.instance('ACC')
    const read = pick((await twin.call('GET', instances)).body, 'content', 0) as object
    twin.now += DAY
    const made = await twin.call('POST', instances, { body: read })
    expect(made.status).toBe(201)
    expect(made.body).toMatchObject({ shortName: 'Test', accountId: 'ACC', defaultInstance: false, created: twin.now })
    expect(pick(made.body, 'id')).not.toBe(pick(read, 'id'))
  })

  it('may send a line item back as it was read', async () => {
    await using twin = await openTwin()
    const instance = await twin.shop({
      attributes: { overdraftType: 'Number', overdraftLimit: 5, rateTableSeries: '' },
    })
    await twin.access(instance, { Print: 3 })
    const path = `${instances}/${instance}/line-items`
    const read = pick((await twin.call('GET', path)).body, 0) as object
    const put = await twin.call('PUT', path, { body: read })
    expect([put.status, put.body]).toEqual([200, read])
    const ignored = await twin.call('PUT', path, { body: { ...read, used: 'text' } })
    expect([ignored.status, pick(ignored.body, 'used')]).toEqual([200, 3])
    const audit = await twin.call('GET', `/edge/api/v1/audit?instanceId=${instance}&size=1`)
    expect(text(audit.body, 'records', 0, 'action')).toBe('MAP_LINE_ITEM')
    const detail: unknown = JSON.parse(text(audit.body, 'records', 0, 'detail'))
    expect(detail).toMatchObject({ state: 'DEPLOYED', attributes: { overdraftLimit: 5 } })
    expect(detail).not.toHaveProperty('used')
  })

  it('may send actions back as they were read', async () => {
    await using twin = await openTwin()
    const instance = await twin.shop()
    const path = `/api/${version}/instances/${instance}/line-items/ACT-1/actions`
    await twin.call('POST', path, { body: [{ name: 'all', action: 'ALLOW', allocation: 50 }] })
    await twin.access(instance, { Print: 3 })
    const read = (await twin.call('GET', path)).body
    const put = await twin.call('PUT', path, { body: read })
    expect([put.status, put.body]).toEqual([200, read])
    await twin.call('DELETE', path)
    const posted = await twin.call('POST', path, { body: read })
    expect(posted.body).toEqual([{ ...(pick(read, 0) as object), id: expect.any(String) as string, used: 0 }])
    expect(pick(posted.body, 0, 'id')).not.toBe(pick(read, 0, 'id'))
  })

  it('may send conditions back as they were read; POST gives new ids to every level', async () => {
    await using twin = await openTwin()
    const path = `/api/${version}/instances/${await twin.instance()}/conditions`
    const inner = { operator: 'IN', property: 'department', values: ['sales'] }
    await twin.call('POST', path, { body: [{ name: 'others', operator: 'NOT', condition: inner }] })
    const read = (await twin.call('GET', path)).body
    expect((await twin.call('PATCH', path, { body: read })).status).toBe(200)
    const posted = await twin.call('POST', path, { body: read })
    expect(posted.body).toMatchObject([{ name: 'others', operator: 'NOT', condition: inner }])
    expect(pick(posted.body, 0, 'id')).not.toBe(pick(read, 0, 'id'))
    expect(pick(posted.body, 0, 'condition', 'id')).not.toBe(pick(read, 0, 'condition', 'id'))
    expect(pick((await twin.call('GET', path)).body, 'length')).toBe(2)
  })

  it('may send a rate table back as it was read', async () => {
    await using twin = await openTwin()
    const path = `/provisioning/api/${version}/rate-tables`
    const items = [{ name: 'Print', version: '1.0', rate: 0.5 }]
    await twin.call('POST', path, { body: { effectiveFrom: START - DAY, series: 'S', version: '1', items } })
    const read = pick((await twin.call('GET', path)).body, 0) as object
    twin.now += DAY
    expect((await twin.call('POST', path, { body: { ...read, version: '2' } })).status).toBe(201)
    expect(pick((await twin.call('GET', path)).body, 1)).toEqual({ ...read, version: '2', created: twin.now })
  })

  it('may send configuration values back as they were read', async () => {
    await using twin = await openTwin()
    const path = `/provisioning/api/${version}/configuration`
    await twin.call('PATCH', path, { body: [{ name: 'timezone.tolerant', value: 'true' }] })
    const read = (await twin.call('GET', path)).body
    const patched = await twin.call('PATCH', path, { body: read })
    expect([patched.status, patched.body]).toEqual([200, read])
  })

  it('may send public keys back as they were read, but not as keys of the other type', async () => {
    await using twin = await openTwin()
    const keys = `/api/${version}/client-keys`
    await twin.call('PUT', keys, { body: [{ id: 'client', publicKey: newKeyPair().publicPem }] })
    const listed = (await twin.call('GET', `/api/${version}/public-keys`)).body
    const read = (pick(listed, 'keys') as { type: string }[]).filter(({ type }) => type === 'client-key')
    const put = await twin.call('PUT', keys, { body: read })
    expect([put.status, pick(put.body, 0, 'id')]).toEqual([200, 'client'])
    const promoted = await twin.call('PUT', `/api/${version}/administration-keys`, { body: read })
    expect([promoted.status, text(promoted.body, 'message')]).toEqual([400, expect.stringContaining('body[0].type')])
  })

  it('may open a session with a session as it was read', async () => {
    await using twin = await openTwin()
    const instanceId = await twin.shop()
    const path = `/api/${version}/sessions`
    const first = await twin.call('POST', path, { body: { instanceId } })
    const shown = (await twin.call('GET', `${path}/${text(first.body, 'sessionId')}`)).body
    const listed = pick((await twin.call('GET', path)).body, 0)
    for (const body of [shown, listed]) {
      const opened = await twin.call('POST', path, { body })
      expect(opened.status).toBe(200)
      expect(pick(opened.body, 'sessionId')).not.toBe(pick(first.body, 'sessionId'))
    }
  })

  it('get back the integers that they gave, however large, and can use them', async () => {
    await using twin = await openTwin()
    const instance = await twin.shop()
    const path = `${instances}/${instance}/line-items`
    const max = '9223372036854775807'
    const attributes = `{"elastic":true,"overdraftType":"Number","overdraftLimit":${max}}`
    const raw = `{"activationId":"BIG","state":"DEPLOYED","start":0,"end":${max},"quantity":${max},"attributes":${attributes}}`
    expect((await twin.call('PUT', path, { raw })).status).toBe(201)
    const read = await twin.call('GET', `${path}/BIG`)
    for (const field of ['end', 'quantity', 'overdraftLimit']) expect(read.text).toContain(`"${field}":${max}`)
    expect((await twin.call('PUT', path, { raw: read.text })).text).toBe(read.text)
    await twin.access(instance, { Print: 150 })
    expect(await twin.used(instance, 'BIG')).toBe(50)
    const plain = `{"activationId":"BIG","state":"DEPLOYED","start":0,"end":5,"quantity":6,"attributes":{}}`
    expect((await twin.call('PUT', path, { raw: plain })).body).toMatchObject({ end: 5, quantity: 6 })
    expect((await twin.call('PUT', path, { raw: raw.replace(max, '1e19') })).status).toBe(400)
  })

  it('may name an instance with 100 characters of any kind', async () => {
    await using twin = await openTwin()
    const name = async (shortName: string) =>
      (await twin.call('POST', instances, { body: { shortName, accountId: 'a' } })).status
    expect([await name('\u{1F9C0}'.repeat(100)), await name('\u{1F9C0}'.repeat(101)), await name('')]).toEqual([
      201, 400, 400,
    ])
  })

  it('get an error that asks for a count without quotes', async () => {
    await using twin = await openTwin()
    const instance = await twin.shop()
    const body = { requester: { type: 'user', value: 'x' }, requestedItems: [{ item: 'Print', count: '1.0' }] }
    const refused = await twin.call('POST', `/elastic/api/${version}/instances/${instance}/access-request`, { body })
    expect([refused.status, pick(refused.body, 'message')]).toEqual([
      400,
      'body.requestedItems[0].count: must be a number, not text: write 1.0 without quotes',
    ])
  })

  it('get a series from every rate table, empty for none', async () => {
    await using twin = await openTwin()
    await twin.rates({ Print: 1 })
    const listed = await twin.call('GET', `/provisioning/api/${version}/rate-tables`)
    expect(pick(listed.body, 0, 'series')).toBe('')
  })

  it('may give an allocation with DENY, which has no effect', async () => {
    await using twin = await openTwin()
    const instance = await twin.shop()
    const path = `/api/${version}/instances/${instance}/line-items/ACT-1/actions`
    const id = expect.any(String) as string
    for (const method of ['PUT', 'POST']) {
      await twin.call('DELETE', path)
      const saved = await twin.call(method, path, { body: [{ action: 'DENY', allocation: 5 }] })
      expect([saved.status, saved.body]).toEqual([200, [{ id, action: 'DENY' }]])
    }
  })

  it('may put the default action anywhere in the list', async () => {
    await using twin = await openTwin()
    const instance = await twin.shop()
    const condition = { operator: 'IN', property: 'department', values: ['sales'] }
    const made = await twin.call('POST', `/api/${version}/instances/${instance}/conditions`, { body: [condition] })
    const path = `/api/${version}/instances/${instance}/line-items/ACT-1/actions`
    await twin.call('POST', path, { body: [{ action: 'ALLOW' }] })
    await twin.call('POST', path, { body: [{ action: 'DENY', conditionId: text(made.body, 0, 'id') }] })
    const code = async (department: string) => {
      const requester = { type: 'user', value: 'x', dictionary: { department } }
      const body = { requester, requestedItems: [{ item: 'Print', count: 1 }] }
      const answer = await twin.call('POST', `/elastic/api/v1.0/instances/${instance}/access-request`, { body })
      return pick(answer.body, 'requestedItems', 0, 'status', 'code')
    }
    expect([await code('sales'), await code('legal')]).toEqual(['203', '101'])
    expect(pick((await twin.call('GET', path)).body, 0)).toMatchObject({ action: 'ALLOW' })
  })

  it('get an error about fields that no GET returns', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    const calls: readonly (readonly [string, string, unknown])[] = [
      ['POST', instances, { shortName: 'a', accountId: 'b', owner: 'x' }],
      ['PUT', `${instances}/${instance}/line-items`, { ...lineItemBody(), owner: 'x' }],
      ['POST', `/api/${version}/sessions`, { instanceId: instance, owner: 'x' }],
    ]
    for (const [method, path, body] of calls) {
      const refused = await twin.call(method, path, { body })
      expect([refused.status, refused.text], path).toEqual([400, expect.stringContaining('owner')])
    }
  })
})

it('a consumption limit may be sent back as it was read', async () => {
  await using twin: Twin = await openTwin()
  const path = `/api/v1.1/instances/${await twin.shop()}/line-items/ACT-1/consumption-limit`
  await twin.call('PUT', path, { body: { limit: 10, frequency: 'MONTHLY', nextReset: START + DAY } })
  const read = (await twin.call('GET', path)).body
  const put = await twin.call('PUT', path, { body: read })
  expect([put.status, put.body]).toEqual([200, read])
})
