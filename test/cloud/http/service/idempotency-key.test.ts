import { describe, expect, it } from 'vitest'
import { type CallOptions, DAY, MINUTE, type Twin, itemsOf, openTwin, pick } from '../../harness.ts'

describe.each(['v1.0', 'v1.1'])('a one-off access request of %s with an idempotency key', (version) => {
  const ask = (twin: Twin, instance: string, key: string, change: CallOptions & { count?: number } = {}) =>
    twin.call('POST', `/elastic/api/${version}/instances/${instance}/access-request`, {
      body: { requester: { type: 'user', value: 'x' }, requestedItems: itemsOf({ Print: change.count ?? 3 }) },
      headers: { 'idempotency-key': key },
      ...change,
    })

  it('is charged once, and repetitions get the same answer', async () => {
    await using twin = await openTwin()
    const instance = await twin.shop()
    const first = await ask(twin, instance, 'a')
    twin.now += DAY - 1
    await twin.tick()
    const again = await ask(twin, instance, 'a')
    expect([again.status, again.text, await twin.used(instance, 'ACT-1')]).toEqual([200, first.text, 3])
    expect(again.headers.get('content-type')).toBe(first.headers.get('content-type'))
    expect(await twin.usage(instance)).toHaveLength(1)
  })

  it('gets the stored answer after a restart, written in another form too', async () => {
    await using twin = await openTwin()
    const instance = await twin.shop()
    const requester = { type: 'user', value: 'x', dictionary: { a: { b: 1, c: [2] }, d: 3 } }
    const items = [{ item: 'Print', count: 3, metaData: { job: 1, page: 2 } }]
    const first = await ask(twin, instance, 'a', { body: { requester, requestedItems: items } })
    expect(first.status).toBe(200)
    await twin.restart()
    const raw = `{ "requestedItems": [{ "metaData": { "page": 2, "job": 1 }, "count": 3.0, "item": "Print" }],
      "requester": { "dictionary": { "d": 3, "a": { "c": [2], "b": 1 } }, "value": "x", "type": "user" } }`
    expect((await ask(twin, instance, 'a', { raw })).text).toBe(first.text)
    expect(await twin.used(instance, 'ACT-1')).toBe(3)
  })

  it('gets the stored refusal of an item, though tokens have arrived since', async () => {
    await using twin = await openTwin()
    const instance = await twin.shop({ quantity: 1 })
    const first = await ask(twin, instance, 'a')
    await twin.lineItem(instance, { quantity: 50 })
    expect((await ask(twin, instance, 'a')).text).toBe(first.text)
    expect(pick(first.body, 'requestedItems', 0, 'totalTokensCharged')).toBe(0)
  })

  it('is refused under a key of a different request, and charges nothing', async () => {
    await using twin = await openTwin()
    const instance = await twin.shop()
    await ask(twin, instance, 'a')
    const meta = { item: 'Print', count: 3, metaData: { job: 1 } }
    for (const change of [
      { count: 4 },
      { body: { requester: { type: 'user', value: 'y' }, requestedItems: itemsOf({ Print: 3 }) } },
      { body: { requester: { type: 'user', value: 'x' }, requestedItems: [meta] } },
      {
        body: { requester: { type: 'user', value: 'x', dictionary: { a: 1 } }, requestedItems: itemsOf({ Print: 3 }) },
      },
    ]) {
      const { status, body } = await ask(twin, instance, 'a', change)
      expect([status, pick(body, 'code')]).toEqual([409, 'IDEMPOTENCY_CONFLICT'])
    }
    expect(await twin.used(instance, 'ACT-1')).toBe(3)
  })

  it('belongs to one caller and one instance', async () => {
    await using twin = await openTwin()
    const [one, other] = [await twin.shop(), await twin.instance('other')]
    await twin.lineItem(other)
    await ask(twin, one, 'a')
    await ask(twin, other, 'a')
    await ask(twin, one, 'a', { token: await twin.clientToken(one) })
    expect([await twin.used(one, 'ACT-1'), await twin.used(other, 'ACT-1')]).toEqual([6, 3])
  })

  it('sent many times at once is charged once; the others get its response or must repeat', async () => {
    await using twin = await openTwin()
    const instance = await twin.shop()
    const replies = await Promise.all(Array.from({ length: 10 }, () => ask(twin, instance, 'a')))
    const [granted] = replies.filter(({ status }) => status === 200)
    for (const { status, text, body, headers } of replies) {
      if (status === 200) expect(text).toBe(granted?.text)
      else {
        expect([status, pick(body, 'code'), headers.get('retry-after')]).toEqual([409, 'IDEMPOTENCY_IN_PROGRESS', '1'])
      }
    }
    expect((await ask(twin, instance, 'a')).text).toBe(granted?.text)
    expect(await twin.used(instance, 'ACT-1')).toBe(3)
  })

  it('may be sent again after an error', async () => {
    await using twin = await openTwin()
    const instance = await twin.shop()
    expect((await ask(twin, instance, 'a', { body: {} })).status).toBe(400)
    const nowhere = '64d2028c-ae87-4069-a624-66089d957ef9'
    expect((await ask(twin, nowhere, 'a')).status).toBe(404)
    expect((await ask(twin, nowhere, 'a')).status).toBe(404)
    expect((await ask(twin, instance, 'a')).status).toBe(200)
    for (const key of ['', 'x'.repeat(256)]) expect((await ask(twin, instance, key)).status).toBe(400)
  })

  it('is forgotten after a day', async () => {
    await using twin = await openTwin()
    const instance = await twin.shop()
    await ask(twin, instance, 'a')
    await ask(twin, instance, 'b')
    await twin.advance(DAY)
    await ask(twin, instance, 'a', { count: 4 })
    await ask(twin, instance, 'b')
    expect(await twin.used(instance, 'ACT-1')).toBe(13)
  })

  it.each([
    ['ahead', 2 * DAY, 0],
    ['behind', -2 * DAY, 0],
    ['ahead and corrected', 2 * DAY, -2 * DAY],
    ['behind and corrected', -2 * DAY, 2 * DAY],
  ])('is not forgotten while the clock is %s', async (_name, step, correction) => {
    await using twin = await openTwin()
    const instance = await twin.shop()
    // The administration key must be older than the step.
    await twin.advance(3 * DAY)
    await ask(twin, instance, 'a')
    twin.clockAheadMs += step
    await twin.tick()
    await ask(twin, instance, 'b')
    twin.clockAheadMs += correction
    await twin.advance(MINUTE)
    for (const key of ['a', 'b']) await ask(twin, instance, key)
    expect(await twin.used(instance, 'ACT-1')).toBe(6)
  })

  it('is kept for its lifetime after an administrator has confirmed a clock that was behind', async () => {
    await using twin = await openTwin()
    const instance = await twin.shop()
    await ask(twin, instance, 'a')
    for (let times = 0; times < 2; times += 1) {
      twin.clockAheadMs += 2 * DAY
      await twin.tick()
      expect(await twin.call('POST', '/edge/api/v1/sweeps/clock/confirm')).toMatchObject({ status: 200 })
    }
    await twin.advance(DAY - MINUTE)
    await ask(twin, instance, 'a')
    expect(await twin.used(instance, 'ACT-1')).toBe(3)
    await twin.advance(MINUTE)
    await ask(twin, instance, 'a')
    expect(await twin.used(instance, 'ACT-1')).toBe(6)
  })
})
