// The ETag of the rules of an instance, and If-Match of their changes.
import { afterEach, beforeEach, expect, it } from 'vitest'
import { type Reply, type Twin, openTwin, pick } from '../../harness.ts'

const IN = (property: string, ...values: string[]) => ({ operator: 'IN', property, values })
const LINE_ITEM = {
  activationId: 'A',
  state: 'DEPLOYED',
  quantity: 5,
  start: 0,
  end: 4_000_000_000_000,
  attributes: { elastic: true },
}
const LIMIT = { limit: 1, frequency: 'DAILY', nextReset: 4_000_000_000_000 }
const DENY = [{ action: 'DENY' }]

let [twin, instance]: [Twin, string] = [undefined as never, '']
beforeEach(async () => {
  twin = await openTwin()
  instance = await twin.instance()
  await twin.lineItem(instance, { activationId: 'A' })
})
afterEach(() => twin[Symbol.asyncDispose]())

const rules = (path: string) => `/api/v1.1/instances/${instance}${path}`
const lineItems = () => `/provisioning${rules('/line-items')}`
const change = async (method: string, path: string, match: string, body?: unknown): Promise<Reply> =>
  twin.call(method, path, { headers: { 'if-match': match }, ...(body === undefined ? {} : { body }) })
const tagOf = ({ headers }: Reply): string => headers.get('etag') ?? ''

it('is the ETag of everything that shows or changes rules, and grows with each change', async () => {
  const shown = tagOf(await twin.call('GET', rules('/conditions')))
  expect(shown).toMatch(/^"\d+"$/)
  const created = await twin.call('POST', rules('/conditions'), { body: [IN('department', 'sales')] })
  const [{ id }] = created.body as [{ id: string }]
  const changes = [
    created,
    await twin.call('PATCH', rules('/conditions'), { body: [{ id, ...IN('department', 'design') }] }),
    await twin.call('PUT', lineItems(), { body: LINE_ITEM }),
    await twin.call('POST', rules('/line-items/A/actions'), { body: DENY }),
    await twin.call('PUT', rules('/line-items/A/actions'), { body: DENY }),
    await twin.call('PUT', rules('/line-items/A/consumption-limit'), { body: LIMIT }),
  ]
  const first = Number(shown.slice(1, -1))
  expect(changes.map(tagOf)).toEqual(changes.map((_, index) => `"${first + index + 1}"`))
  const last = tagOf(changes.at(-1)!)
  for (const path of [
    lineItems(),
    `${lineItems()}/A`,
    rules('/conditions'),
    rules('/line-items/A/actions'),
    rules('/line-items/actions'),
    rules('/line-items/A/consumption-limit'),
  ]) {
    expect([path, tagOf(await twin.call('GET', path))]).toEqual([path, last])
  }
  const refused = await twin.call('PUT', lineItems(), { body: {} })
  expect([refused.status, tagOf(refused)]).toEqual([400, ''])
})

it('permits a change only to a caller that has read the newest rules', async () => {
  const created = await twin.call('POST', rules('/conditions'), { body: [IN('a', '1'), IN('b', '1')] })
  const [{ id }] = created.body as [{ id: string }]
  const before = tagOf(created)
  await twin.call('PUT', rules('/line-items/A/consumption-limit'), { body: LIMIT })
  const obsolete = await twin.call('PUT', lineItems(), { body: { ...LINE_ITEM, state: 'OBSOLETE' } })
  const calls = [
    ['POST', rules('/conditions'), [IN('c', '1')]],
    ['PATCH', rules('/conditions'), [{ id, ...IN('a', '2') }]],
    ['DELETE', rules(`/conditions/${id}`)],
    ['DELETE', rules('/conditions')],
    ['POST', rules('/line-items/A/actions'), DENY],
    ['PUT', rules('/line-items/A/actions'), DENY],
    ['DELETE', rules('/line-items/A/actions')],
    ['PUT', rules('/line-items/A/consumption-limit'), LIMIT],
    ['DELETE', rules('/line-items/A/consumption-limit')],
    ['PUT', lineItems(), { ...LINE_ITEM, state: 'OBSOLETE' }],
    ['DELETE', `${lineItems()}/A`],
  ] as const
  const revisions = async (): Promise<string> => tagOf(await twin.call('GET', rules('/conditions')))
  for (const [method, path, body] of calls) {
    const refused = await change(method, path, before, body)
    expect([method, path, refused.status, pick(refused.body, 'code')]).toEqual([method, path, 412, 'RULES_CHANGED'])
  }
  expect(await revisions()).toBe(tagOf(obsolete))
  let newest = tagOf(obsolete)
  for (const [method, path, body] of calls) {
    const saved = await change(method, path, newest, body)
    expect([method, path, saved.status < 300]).toEqual([method, path, true])
    newest = tagOf(saved)
  }
})

it('may be one of several, weakened by a proxy, or any', async () => {
  const newest = async (): Promise<string> => tagOf(await twin.call('GET', rules('/conditions')))
  const put = async (match: string) => (await change('PUT', lineItems(), match, LINE_ITEM)).status
  expect(await put(`"1", ${await newest()}`)).toBe(200)
  expect(await put(`W/${await newest()}`)).toBe(200)
  expect(await put('*')).toBe(200)
  expect(await put('"0", W/"1"')).toBe(412)
  for (const wrong of ['1', '', '""1"', 'W/*']) expect([wrong, await put(wrong)]).toEqual([wrong, 400])
})

it('accepts one of two simultaneous changes', async () => {
  const read = tagOf(await twin.call('GET', rules('/line-items/A/actions')))
  const put = async (name: string) => change('PUT', rules('/line-items/A/actions'), read, [{ name, action: 'DENY' }])
  const both = await Promise.all([put('one'), put('two')])
  expect(both.map(({ status }) => status).toSorted()).toEqual([200, 412])
  const { body } = await twin.call('GET', rules('/line-items/A/actions'))
  expect(body).toEqual(both.find(({ status }) => status === 200)?.body)
})
