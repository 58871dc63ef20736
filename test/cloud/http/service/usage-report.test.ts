// The usage report over HTTP, called as existing reporters call it.
import { afterEach, beforeEach, expect, it } from 'vitest'
import { type Reply, type Twin, openTwin, pick, text } from '../../harness.ts'

const PATH = '/data/api/v1/report/usage'
const QUERY = 'mode=batch&format=json&pastDays=3&meterType=elastic'

let twin: Twin
let instance: string
beforeEach(async () => {
  twin = await openTwin()
  instance = await twin.instance()
  await twin.lineItem(instance, { quantity: 10, attributes: { overdraftType: 'Number', overdraftLimit: 5 } })
  await twin.rates({ Print: 3 })
})
afterEach(() => twin[Symbol.asyncDispose]())

const get = (query: string, options: Parameters<Twin['call']>[2] = {}): Promise<Reply> =>
  twin.call('GET', `${PATH}?${query}`, options)
const basic = async (password: string): Promise<Parameters<Twin['call']>[2]> => ({
  token: null,
  headers: { authorization: `Basic ${Buffer.from(`reporter:${password}`).toString('base64')}` },
})

it('answers a reporter that asks for pages at the root of the host until one is empty', async () => {
  for (const count of [1, 4, 2]) await twin.access(instance, { Print: count })
  const { origin } = new URL(twin.cloud.address)
  const headers = (await basic(await twin.administrationToken()))?.headers ?? {}
  const all: unknown[] = []
  for (let page = 1; ; page += 1) {
    const response = await fetch(`${origin}${PATH}?${QUERY}&pageNumber=${page}`, { headers })
    expect(response.status).toBe(200)
    expect(response.headers.get('content-type')).toBe('application/json; charset=utf-8')
    const { data } = (await response.json()) as { readonly data: readonly unknown[] }
    if (data.length === 0) break
    all.push(...data)
  }
  expect(all).toMatchObject([
    { used: 3, meterQuantity: 3, meterCost: 3, itemQuantity: 1, overdraftCount: 0, requestResponse: '1001' },
    { used: 15, meterQuantity: 12, meterCost: 3, itemQuantity: 4, overdraftCount: 5, requestResponse: '1001' },
    { used: null, meterQuantity: 0, meterCost: null, itemQuantity: 2, requestResponse: '2002' },
  ])
})

it('shows a session from its charge to its refund', async () => {
  const { body } = await twin.call('POST', '/api/v1.1/sessions', { body: { instanceId: instance } })
  const path = `/api/v1.1/sessions/${text(body, 'sessionId')}`
  const requestedItems = [{ item: 'Print', count: 1 }]
  const requester = { type: 'user', value: 'x' }
  await twin.call('PUT', path, { body: { requester, requestedItems, rollbackOnDeny: true } })
  const rows = async () => pick((await get(QUERY)).body, 'data')
  expect(await rows()).toMatchObject([{ sessionState: 'ACTIVE', meterCost: 3 }])
  await twin.call('DELETE', path)
  expect(await rows()).toMatchObject([
    { sessionState: 'TERMINATED', meterQuantity: 3 },
    { sessionState: 'TERMINATED', meterQuantity: -3, meterCost: 3, requestResponse: '1001' },
  ])
})

it.each([
  ['', 'query.pastDays'],
  ['pastDays=0', 'query.pastDays: must be from 1 to 36500'],
  ['pastDays=1.5', 'query.pastDays: must be a whole number'],
  ['pastDays=-1', 'query.pastDays'],
  ['pastDays=99999', 'query.pastDays'],
  ['pastDays=1&pageNumber=0', 'query.pageNumber'],
  ['pastDays=1&mode=live', 'query.mode: must be batch'],
  ['pastDays=1&format=csv', 'query.format: must be json'],
  ['pastDays=1&meterType=usage', 'query.meterType: must be elastic'],
  ['pastDays=1&instanceId=x', 'query.instanceId'],
])('refuses %j', async (query, message) => {
  const { status, body } = await get(query)
  expect(status).toBe(400)
  expect(body).toMatchObject({ code: 'BAD_REQUEST' })
  expect(text(body, 'message')).toContain(message)
})

it('does not know another instance', async () => {
  expect(await get(`${QUERY}&instanceId=64d2028c-ae87-4069-a624-66089d957ef9`)).toMatchObject({ status: 404 })
})

it('accepts as a Basic password only a valid bearer token', async () => {
  expect((await get(QUERY, await basic(await twin.administrationToken()))).status).toBe(200)
  const refused = async (options: Parameters<Twin['call']>[2]) => pick((await get(QUERY, options)).body, 'code')
  expect(await refused(await basic('secret'))).toBe('TOKEN_INVALID')
  expect(await refused(await basic(''))).toBe('TOKEN_MISSING')
  expect(await refused({ token: null, headers: { authorization: 'Basic ====' } })).toBe('TOKEN_MISSING')
  expect(await refused(await basic(await twin.clientToken(instance)))).toBe('ACCESS_KIND_WRONG')
})

it('challenges programs that send the password only then', async () => {
  const challenge = async (options: Parameters<Twin['call']>[2]) =>
    (await get(QUERY, options)).headers.get('www-authenticate')
  expect(await challenge({ token: null })).toBe('Bearer, Basic realm="tallygate", charset="UTF-8"')
  expect(await challenge(await basic('secret'))).toBe('Bearer, Basic realm="tallygate", charset="UTF-8"')
})

it('accepts Basic nowhere else', async () => {
  const reply = await twin.call(
    'GET',
    '/provisioning/api/v1.1/instances',
    await basic(await twin.administrationToken()),
  )
  expect(pick(reply.body, 'code')).toBe('TOKEN_MISSING')
})
