import { describe, expect, it } from 'vitest'
import { type Twin, openTwin, pick, text } from '../../harness.ts'

const IN = (property: string, ...values: string[]) => ({ operator: 'IN', property, values })

const actionsPath = (instance: string, id = 'ACT-1', version = 'v1.1') =>
  `/api/${version}/instances/${instance}/line-items/${id}/actions`

const conditionsPath = (instance: string, version = 'v1.1') => `/api/${version}/instances/${instance}/conditions`

async function withCondition(twin: Twin): Promise<{ instance: string; conditionId: string }> {
  const instance = await twin.instance()
  await twin.lineItem(instance)
  const { body } = await twin.call('POST', conditionsPath(instance), { body: [IN('department', 'sales')] })
  return { instance, conditionId: text(body, 0, 'id') }
}

describe('conditions', () => {
  it('are created with generated ids at every level, and only the created ones are answered', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    await twin.call('POST', conditionsPath(instance), { body: [IN('a', '1')] })
    const body = [
      { name: 'both', operator: 'AND', conditions: [IN('a', '1', '2'), { operator: 'NOT', condition: IN('b', 'x') }] },
      { operator: 'OR', conditions: [IN('c', '3')] },
    ]
    const id = expect.stringMatching(/^[0-9a-f-]{36}$/) as string
    const created = await twin.call('POST', conditionsPath(instance, 'v1.0'), { body })
    expect(created.status).toBe(200)
    expect(created.body).toEqual([
      {
        id,
        name: 'both',
        operator: 'AND',
        conditions: [
          { id, ...IN('a', '1', '2') },
          { id, operator: 'NOT', condition: { id, ...IN('b', 'x') } },
        ],
      },
      { id, operator: 'OR', conditions: [{ id, ...IN('c', '3') }] },
    ])
    const all = await twin.call('GET', `/floating${conditionsPath(instance)}`)
    expect(pick(all.body, 'length')).toBe(3)
    expect((all.body as unknown[]).slice(1)).toEqual(created.body)
  })

  it('are updated by id and created without one, and unchanged ones are not answered', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    const created = await twin.call('POST', conditionsPath(instance), { body: [IN('a', '1'), IN('b', '1')] })
    const [first, second] = [text(created.body, 0, 'id'), text(created.body, 1, 'id')]
    const patched = await twin.call('PATCH', conditionsPath(instance), {
      body: {
        conditions: [
          { ...IN('a', '1'), id: first },
          { ...IN('b', '2'), id: second.toUpperCase(), name: 'n' },
          IN('c', '1'),
        ],
      },
    })
    expect(patched.status).toBe(200)
    expect(patched.body).toMatchObject([{ id: second, name: 'n', values: ['2'] }, { property: 'c' }])
    const all = (await twin.call('GET', conditionsPath(instance))).body
    expect((all as { property: string }[]).map(({ property }) => property)).toEqual(['a', 'b', 'c'])
    const again = await twin.call('PATCH', conditionsPath(instance), { body: [{ ...IN('a', '1'), id: first }] })
    expect(again.body).toEqual([])
  })

  it('are refused when they are not well-formed', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    const nested = (depth: number): object =>
      depth === 1 ? IN('a', '1') : { operator: 'NOT', condition: nested(depth - 1) }
    const id = '64d2028c-ae87-4069-a624-66089d957ef9'
    for (const one of [
      { property: 'a', values: ['1'] },
      { operator: 'XOR', conditions: [] },
      { operator: 'AND', conditions: [] },
      { operator: 'OR' },
      { operator: 'NOT' },
      { operator: 'NOT', conditions: [IN('a', '1')] },
      { operator: 'IN', property: '', values: ['1'] },
      { operator: 'IN', property: 'a', values: [] },
      { operator: 'IN', property: 'a', values: [1] },
      { operator: 'IN', property: 'a', values: Array.from({ length: 101 }, String) },
      { ...IN('a', '1'), extra: 1 },
      { ...IN('a', '1'), id: 'no uuid' },
      nested(11),
      { operator: 'AND', conditions: [IN('a', '1'), nested(10)] },
    ]) {
      expect((await twin.call('POST', conditionsPath(instance), { body: [one] })).status, JSON.stringify(one)).toBe(400)
    }
    for (const body of [[], {}, { conditions: [] }, { conditions: [IN('a', '1')], x: 1 }, 'text', null, IN('a', '1')]) {
      expect((await twin.call('POST', conditionsPath(instance), { body })).status).toBe(400)
    }
    expect((await twin.call('PATCH', conditionsPath(instance), { body: [{ ...IN('a', '1'), id }] })).status).toBe(400)
    expect((await twin.call('GET', conditionsPath(instance))).body).toEqual([])
    const good = [nested(10), { operator: 'IN', property: 'a', values: Array.from({ length: 100 }, String) }]
    expect((await twin.call('POST', conditionsPath(instance), { body: good })).status).toBe(200)
  })

  it('are at most a thousand on an instance', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    const thousand = Array.from({ length: 1_000 }, (_, n) => IN('a', `${n}`))
    expect((await twin.call('POST', conditionsPath(instance), { body: thousand })).status).toBe(200)
    expect((await twin.call('POST', conditionsPath(instance), { body: [IN('a', 'x')] })).status).toBe(400)
    expect((await twin.call('PATCH', conditionsPath(instance), { body: [IN('a', 'x')] })).status).toBe(400)
  })

  it('have no more than four million characters together on an instance', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    const long = Array.from({ length: 100 }, (_, n) => `${n}`.padEnd(1_000, '.'))
    const nine = Array.from({ length: 9 }, () => IN('a', ...long))
    const path = conditionsPath(instance)
    const statuses: number[] = []
    for (let round = 0; round < 5; round += 1) statuses.push((await twin.call('POST', path, { body: nine })).status)
    expect(statuses).toEqual([200, 200, 200, 200, 400])
    const [first] = (await twin.call('GET', path)).body as { id: string }[]
    const small = { ...IN('a', 'b'), id: first!.id }
    const refusal = await twin.call('PATCH', path, { body: [small, ...nine] })
    expect(refusal.body).toMatchObject({ message: expect.stringContaining('4000000 characters') as string })
    expect((await twin.call('PATCH', path, { body: [small, IN('a', ...long)] })).status).toBe(200)
  })

  it('stay while an action refers to them', async () => {
    await using twin = await openTwin()
    const { instance, conditionId } = await withCondition(twin)
    await twin.call('POST', actionsPath(instance), { body: [{ action: 'DENY', conditionId }] })
    const one = `${conditionsPath(instance)}/${conditionId}`
    expect((await twin.call('DELETE', one)).body).toMatchObject({
      message: `An action refers to condition ${conditionId}. Remove the action first.`,
    })
    const named = { ...IN('department', 'sales'), id: conditionId, name: 'sales' }
    await twin.call('PATCH', conditionsPath(instance), { body: [named] })
    const { status, body } = await twin.call('DELETE', one)
    expect([status, pick(body, 'message')]).toEqual([
      409,
      `An action refers to condition sales (${conditionId}). Remove the action first.`,
    ])
    expect((await twin.call('DELETE', conditionsPath(instance))).status).toBe(409)
    await twin.call('DELETE', actionsPath(instance))
    expect((await twin.call('DELETE', one)).status).toBe(204)
    expect((await twin.call('DELETE', one)).status).toBe(404)
    expect((await twin.call('DELETE', conditionsPath(instance))).status).toBe(204)
  })

  it('belong to one instance', async () => {
    await using twin = await openTwin()
    const { conditionId } = await withCondition(twin)
    const other = await twin.instance('other')
    await twin.lineItem(other)
    const foreign = await twin.call('POST', actionsPath(other), { body: [{ action: 'DENY', conditionId }] })
    expect(foreign.status).toBe(400)
    expect((await twin.call('DELETE', `${conditionsPath(other)}/${conditionId}`)).status).toBe(404)
    const nowhere = '64d2028c-ae87-4069-a624-66089d957ef9'
    expect((await twin.call('GET', conditionsPath(nowhere))).status).toBe(404)
    expect((await twin.call('POST', conditionsPath(nowhere), { body: [IN('a', '1')] })).status).toBe(404)
  })
})

describe('actions', () => {
  it('are appended by POST, which answers the added ones with id and used', async () => {
    await using twin = await openTwin()
    const { instance, conditionId } = await withCondition(twin)
    const id = expect.stringMatching(/^[0-9a-f-]{36}$/) as string
    const first = await twin.call('POST', actionsPath(instance, 'ACT-1', 'v1.0'), {
      body: [{ name: 'sales', action: 'ALLOW', conditionId: conditionId.toUpperCase(), allocation: 12.5 }],
    })
    expect(first.status).toBe(200)
    expect(first.body).toEqual([{ id, name: 'sales', conditionId, action: 'ALLOW', allocation: 12.5, used: 0 }])
    const second = await twin.call('POST', actionsPath(instance), { body: [{ action: 'DENY' }] })
    expect(second.body).toEqual([{ id, action: 'DENY' }])
    const all = await twin.call('GET', actionsPath(instance))
    expect(all.body).toEqual([...(first.body as unknown[]), ...(second.body as unknown[])])
  })

  it('are replaced by PUT: kept ids keep their counts, omitted ones lose them', async () => {
    await using twin = await openTwin()
    const { instance, conditionId } = await withCondition(twin)
    await twin.rates({ Print: 1 })
    const posted = await twin.call('POST', actionsPath(instance), { body: [{ action: 'ALLOW', allocation: 50 }] })
    const id = text(posted.body, 0, 'id')
    await twin.access(instance, { Print: 20 })
    const read = (await twin.call('GET', actionsPath(instance))).body
    expect(read).toEqual([{ id, action: 'ALLOW', allocation: 50, used: 20 }])
    const put = await twin.call('PUT', actionsPath(instance), {
      body: [{ action: 'DENY', conditionId }, ...(read as object[])],
    })
    expect(put.status).toBe(200)
    expect(put.body).toMatchObject([
      { action: 'DENY', conditionId },
      { id, used: 20 },
    ])
    const without = await twin.call('PUT', actionsPath(instance), { body: [{ action: 'ALLOW', allocation: 50 }] })
    expect(without.body).toMatchObject([{ used: 0 }])
    expect(text(without.body, 0, 'id')).not.toBe(id)
    const back = await twin.call('PUT', actionsPath(instance), { body: [{ id, action: 'ALLOW', allocation: 50 }] })
    expect(back.status).toBe(400)
    expect((await twin.call('PUT', actionsPath(instance), { body: [] })).body).toEqual([])
    expect(await twin.used(instance, 'ACT-1')).toBe(20)
  })

  it('follow a changed allocation', async () => {
    await using twin = await openTwin()
    const { instance } = await withCondition(twin)
    await twin.rates({ Print: 1 })
    const posted = await twin.call('POST', actionsPath(instance), { body: [{ action: 'ALLOW', allocation: 10 }] })
    const id = text(posted.body, 0, 'id')
    const code = async (count: number) =>
      pick((await twin.access(instance, { Print: count })).body, 'requestedItems', 0, 'status', 'code')
    const allocate = (allocation: number) =>
      twin.call('PUT', actionsPath(instance), { body: [{ id, action: 'ALLOW', allocation }] })
    expect(await code(11)).toBe('2004')
    expect(await code(10)).toBe('1001')
    await allocate(15)
    expect(await code(5)).toBe('1001')
    await allocate(5)
    expect((await twin.call('GET', actionsPath(instance))).body).toMatchObject([{ allocation: 5, used: 15 }])
    expect(await code(1)).toBe('2004')
    await allocate(16)
    expect(await code(1)).toBe('1001')
    expect(await code(1)).toBe('2004')
  })

  it('permit an allocation of the default, as a cap for all others, and only the default without one', async () => {
    await using twin = await openTwin()
    const { instance, conditionId } = await withCondition(twin)
    const put = (...body: readonly object[]) => twin.call('PUT', actionsPath(instance), { body })
    const capped = { action: 'ALLOW', allocation: 5 }
    const saved = await put({ action: 'ALLOW', conditionId, allocation: 1 }, capped)
    expect([saved.status, pick(saved.body, 1)]).toEqual([200, expect.objectContaining({ ...capped, used: 0 })])
    const plain = await put({ action: 'ALLOW' })
    expect([plain.status, pick(plain.body, 0, 'used'), pick(plain.body, 0, 'allocation')]).toEqual([
      200,
      undefined,
      undefined,
    ])
    expect((await put(capped, { action: 'ALLOW' })).status).toBe(400)
    expect((await put({ action: 'ALLOW', conditionId })).status).toBe(400)
  })

  it('are refused when the list does not make sense', async () => {
    await using twin = await openTwin()
    const { instance, conditionId } = await withCondition(twin)
    const unknown = '64d2028c-ae87-4069-a624-66089d957ef9'
    const one = { action: 'ALLOW', conditionId, allocation: 1 }
    for (const body of [
      [{ ...one, action: 'MAYBE' }],
      [{ conditionId, allocation: 1 }],
      [{ ...one, conditionId: unknown }],
      [{ ...one, conditionId: 'text' }],
      [{ ...one, allocation: -1 }],
      [{ ...one, allocation: '1' }],
      [{ ...one, allocation: 1e30 }],
      [{ action: 'ALLOW', conditionId }],
      [{ action: 'ALLOW' }, { action: 'DENY' }],
      [{ ...one, extra: 1 }],
      [{ ...one, name: 5 }],
      one,
      'text',
    ]) {
      expect((await twin.call('PUT', actionsPath(instance), { body })).status, JSON.stringify(body)).toBe(400)
      expect((await twin.call('POST', actionsPath(instance), { body })).status, JSON.stringify(body)).toBe(400)
    }
    expect((await twin.call('PUT', actionsPath(instance), { body: [{ ...one, id: unknown }] })).status).toBe(400)
    await twin.call('POST', actionsPath(instance), { body: [{ action: 'ALLOW' }] })
    const second = await twin.call('POST', actionsPath(instance), { body: [{ action: 'DENY' }] })
    expect([second.status, pick(second.body, 'message')]).toEqual([
      400,
      'body: action 2: at most one action can have no condition',
    ])
    expect(pick((await twin.call('GET', actionsPath(instance))).body, 'length')).toBe(1)
    const none = await twin.call('POST', actionsPath(instance, 'NONE'), { body: [one] })
    expect([none.status, pick(none.body, 'message')]).toEqual([
      404,
      `There is no line item "NONE" on instance Test (${instance}).`,
    ])
    expect((await twin.call('GET', actionsPath(instance, 'NONE'))).status).toBe(404)
  })

  it('are listed over all line items, with a cursor', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    const path = `/api/v1.1/instances/${instance}/line-items/actions`
    expect((await twin.call('GET', path)).body).toEqual([{ lineItems: [], next: 0 }])
    for (let n = 0; n < 103; n += 1) {
      await twin.lineItem(instance, { activationId: `A${n}` })
      if (n !== 50) await twin.call('POST', actionsPath(instance, `A${n}`), { body: [{ action: 'ALLOW' }] })
    }
    const first = await twin.call('GET', path)
    expect(pick(first.body, 'length')).toBe(1)
    expect(pick(first.body, 0, 'lineItems', 'length')).toBe(100)
    expect(pick(first.body, 0, 'lineItems', 0)).toMatchObject({ lineItemId: 'A0', actions: [{ action: 'ALLOW' }] })
    const next = pick(first.body, 0, 'next')
    expect(next).not.toBe(0)
    const rest = await twin.call(
      'GET',
      `/floating/api/v1.0/instances/${instance}/line-items/actions?next=${String(next)}`,
    )
    const ids = (pick(rest.body, 0, 'lineItems') as { lineItemId: string }[]).map(({ lineItemId }) => lineItemId)
    expect(ids).toEqual(['A101', 'A102'])
    expect(pick(rest.body, 0, 'next')).toBe(0)
    expect((await twin.call('GET', `${path}?next=x`)).status).toBe(400)
  })
})
