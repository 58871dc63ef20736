import { describe, expect, test } from 'vitest'
import { formatMicro } from '../../../../src/core/pricing/amount.ts'
import { DAY, HOUR, MINUTE, type Reply, START, type Twin, itemsOf, openTwin, pick, text } from '../../harness.ts'

const SESSIONS = '/api/v1.1/sessions'

async function site(twin: Twin, quantity = 1000): Promise<string> {
  const instance = await twin.instance()
  await twin.rates({ A: 6, B: 10 })
  await twin.lineItem(instance, { quantity })
  return instance
}

async function open(twin: Twin, instance: string): Promise<string> {
  const { status, body } = await twin.call('POST', SESSIONS, { body: { instanceId: instance } })
  expect(status).toBe(200)
  return text(body, 'sessionId')
}

function request(
  twin: Twin,
  session: string,
  counts: Readonly<Record<string, number>>,
  { rollbackOnDeny = true, version = 'v1.1' } = {},
): Promise<Reply> {
  return twin.call('PUT', `/api/${version}/sessions/${session}`, {
    body: { requester: { type: 'user', value: 'LisaBarry' }, rollbackOnDeny, requestedItems: itemsOf(counts) },
  })
}

const stateOf = async (twin: Twin, session: string): Promise<unknown> =>
  pick((await twin.call('GET', `${SESSIONS}/${session}`)).body, 'state')

const heartbeat = (twin: Twin, session: string, version = 'v1.1'): Promise<Reply> =>
  twin.call('GET', `/api/${version}/sessions/${session}/heartbeat`)

const used = (twin: Twin, instance: string): Promise<number> => twin.used(instance, 'ACT-1')

/** With a twin, its site, and the id of a session there: each test opens those that it names. */
const it = test
  .extend('twin', async ({}, { onCleanup }) => {
    const twin = await openTwin()
    onCleanup(() => twin[Symbol.asyncDispose]())
    return twin
  })
  .extend('instance', async ({ twin }) => site(twin))
  .extend('id', async ({ twin, instance }) => open(twin, instance))

describe('a session', () => {
  it('is created IDLE, shown, kept and closed', async ({ twin, instance, id }) => {
    expect(id).toMatch(/^[0-9a-f-]{36}$/)
    expect((await twin.call('GET', `${SESSIONS}/${id}`)).body).toEqual({
      sessionId: id,
      instanceId: instance,
      state: 'IDLE',
      items: [],
    })
    const beat = await heartbeat(twin, id)
    expect([beat.status, beat.text]).toEqual([204, ''])
    const listed = await twin.call('GET', `/floating/api/v1.0/sessions?instanceId=${instance}`)
    expect(listed.body).toEqual([
      {
        sessionId: id,
        instanceId: instance,
        state: 'IDLE',
        chargedUntil: 0,
        lastHeartBeat: START,
        lastAccessRequest: 0,
      },
    ])
    await twin.restart()
    expect(await stateOf(twin, id)).toBe('IDLE')
    expect((await twin.call('DELETE', `${SESSIONS}/${id}`)).status).toBe(204)
    expect(await stateOf(twin, id)).toBe('TERMINATED')
    expect((await twin.call('DELETE', `${SESSIONS}/${id}`)).status).toBe(409)
    expect((await twin.call('GET', SESSIONS)).body).toEqual([])
  })

  it('is unknown if it was never created', async ({ twin }) => {
    const nowhere = '64d2028c-ae87-4069-a624-66089d957ef9'
    expect((await twin.call('POST', SESSIONS, { body: { instanceId: nowhere } })).status).toBe(404)
    expect((await twin.call('GET', `${SESSIONS}/${nowhere}`)).status).toBe(404)
    expect((await heartbeat(twin, nowhere)).status).toBe(404)
    expect((await twin.call('DELETE', `${SESSIONS}/${nowhere}`)).status).toBe(404)
    expect((await request(twin, nowhere, { A: 1 })).status).toBe(404)
    expect((await heartbeat(twin, 'x')).status).toBe(400)
    for (const body of [{}, { instanceId: 'x' }, { instanceId: nowhere, x: 1 }, []]) {
      expect((await twin.call('POST', SESSIONS, { body })).status).toBe(400)
    }
  })

  it('is listed among the 100 newest, and those of other instances are not', async ({ twin }) => {
    const [instance, other] = [await twin.instance('A'), await twin.instance('B')]
    const ids: string[] = []
    for (let n = 0; n < 103; n += 1) {
      twin.now += 1
      ids.unshift(await open(twin, instance))
    }
    await open(twin, other)
    const listed = await twin.call('GET', `${SESSIONS}?instanceId=${instance.toUpperCase()}`)
    expect((listed.body as { sessionId: string }[]).map(({ sessionId }) => sessionId)).toEqual(ids.slice(0, 100))
    const token = await twin.clientToken(other)
    const mine = await twin.call('GET', SESSIONS, { token, headers: { 'x-instance-id': other } })
    expect(pick(mine.body, 'length')).toBe(1)
    expect((await twin.call('GET', SESSIONS, { token })).status).toBe(400)
    const foreign = await twin.call('GET', `${SESSIONS}?instanceId=${instance}`, {
      token,
      headers: { 'x-instance-id': other },
    })
    expect(foreign.status).toBe(403)
  })
})

describe('charging in a session', () => {
  it('evaluates a formula at each interval by the variables of the request', async ({ twin, instance }) => {
    const table = (version: string, effectiveFrom: number, formula: string) =>
      twin.call('POST', '/provisioning/api/v1.1/rate-tables', {
        body: { version, effectiveFrom, items: [{ name: 'Plot', formula }] },
      })
    await table('formula 1', START, 'size * 2')
    await table('formula 2', START + HOUR, 'size * 3')
    const id = await open(twin, instance)
    const body = {
      requester: { type: 'user', value: 'LisaBarry' },
      rollbackOnDeny: true,
      requestedItems: [{ item: 'Plot', count: 2, variables: { Size: 1.5 } }],
    }
    expect((await twin.call('PUT', `/api/v1.0/sessions/${id}`, { body })).status).toBe(400)
    expect((await twin.call('PUT', `${SESSIONS}/${id}`, { body })).status).toBe(200)
    expect(await used(twin, instance)).toBe(6)
    twin.now += HOUR
    expect((await heartbeat(twin, id)).status).toBe(204)
    expect(await used(twin, instance)).toBe(15)
  })

  it('follows the worked example of one item: two intervals and a third of the next', async ({
    twin,
    instance,
    id,
  }) => {
    const granted = await request(twin, id, { A: 1 })
    expect(granted.status).toBe(200)
    expect(pick(granted.body, 'requestedItems', 0, 'totalTokensCharged')).toBe(6)
    expect((await twin.call('GET', `${SESSIONS}/${id}`)).body).toMatchObject({
      state: 'ACTIVE',
      items: [{ item: 'A', count: 1 }],
    })
    expect(pick((await twin.call('GET', SESSIONS)).body, 0)).toMatchObject({
      chargedUntil: START + HOUR,
      lastAccessRequest: START,
    })
    await twin.advance(HOUR - 1)
    expect(await used(twin, instance)).toBe(6)
    await twin.advance(1)
    expect(await used(twin, instance)).toBe(12)
    await twin.advance(10 * MINUTE)
    expect((await heartbeat(twin, id)).status).toBe(204)
    await twin.advance(50 * MINUTE)
    expect(await used(twin, instance)).toBe(18)
    await twin.advance(20 * MINUTE)
    expect((await twin.call('DELETE', `${SESSIONS}/${id}`)).status).toBe(204)
    expect(await used(twin, instance)).toBe(14)
  })

  it('follows the worked example of a request in between: refund, new set, new timeline', async ({
    twin,
    instance,
    id,
  }) => {
    await request(twin, id, { A: 1 })
    for (let n = 0; n < 2; n += 1) {
      await twin.advance(HOUR)
      await heartbeat(twin, id)
    }
    await twin.advance(20 * MINUTE)
    expect((await request(twin, id, { A: 1, B: 1 })).status).toBe(200)
    expect(await used(twin, instance)).toBe(14 + 16)
    await twin.advance(HOUR - 1)
    expect(await used(twin, instance)).toBe(30)
    await twin.advance(1)
    expect(await used(twin, instance)).toBe(46)
    const rows = (await twin.usage(instance)).map(({ item, status, tokens, used: total }) => [
      item,
      status,
      formatMicro(tokens),
      total && formatMicro(total),
    ])
    expect(rows).toEqual([
      ['A', 'GRANTED', '6', '6'],
      ['A', 'GRANTED', '6', '12'],
      ['A', 'GRANTED', '6', '18'],
      ['A', 'REFUNDED', '-4', '14'],
      ['A', 'GRANTED', '6', '20'],
      ['B', 'GRANTED', '10', '30'],
      ['A', 'GRANTED', '6', '36'],
      ['B', 'GRANTED', '10', '46'],
    ])
  })

  it('refunds every item of a line item, in an idle session and at another request', async ({ twin, instance, id }) => {
    await request(twin, id, { A: 1, B: 1 })
    await twin.advance(30 * MINUTE)
    await request(twin, id, {})
    expect(await used(twin, instance)).toBe(8)
    await request(twin, id, { A: 1, B: 1 })
    await twin.advance(30 * MINUTE)
    await request(twin, id, { A: 1 })
    expect(await used(twin, instance)).toBe(8 + 8 + 6)
  })

  it('uses the refunded tokens for the new charge', async ({ twin }) => {
    const instance = await site(twin, 100)
    const id = await open(twin, instance)
    await request(twin, id, { B: 10 })
    expect(await used(twin, instance)).toBe(100)
    expect((await request(twin, id, { B: 10 })).status).toBe(200)
    expect(await used(twin, instance)).toBe(100)
    expect((await request(twin, id, { A: 16 })).status).toBe(200)
    expect(await used(twin, instance)).toBe(96)
  })

  it('keeps the session unchanged after a denied request, if rollback is requested', async ({ twin, instance, id }) => {
    await request(twin, id, { A: 1 })
    await twin.advance(30 * MINUTE)
    const denied = await request(twin, id, { B: 1, Nothing: 1 })
    expect(denied.status).toBe(403)
    expect(denied.body).toMatchObject({
      requester: { value: 'LisaBarry' },
      requestedItems: [
        { item: 'B', status: { code: '1002', description: 'No Status' }, totalTokensCharged: 0, lineItems: [] },
        { item: 'Nothing', status: { code: '2001' }, totalTokensCharged: 0, lineItems: [] },
      ],
    })
    expect(await used(twin, instance)).toBe(6)
    await twin.advance(30 * MINUTE)
    expect(await used(twin, instance)).toBe(12)
    expect((await twin.call('GET', `${SESSIONS}/${id}`)).body).toMatchObject({
      state: 'ACTIVE',
      items: [{ item: 'A' }],
    })
  })

  it('ends with a denied request if no rollback is requested', async ({ twin, instance, id }) => {
    await request(twin, id, { A: 1 })
    await twin.advance(45 * MINUTE)
    const denied = await request(twin, id, { Nothing: 1 }, { rollbackOnDeny: false, version: 'v1.0' })
    expect([denied.status, pick(denied.body, 'requestedItems', 0, 'status', 'code')]).toEqual([403, '201'])
    expect(await used(twin, instance)).toBe(4.5)
    expect(await stateOf(twin, id)).toBe('TERMINATED')
    const idle = await open(twin, instance)
    await request(twin, idle, { Nothing: 1 })
    expect(await stateOf(twin, idle)).toBe('IDLE')
    await request(twin, idle, { Nothing: 1 }, { rollbackOnDeny: false })
    expect(await stateOf(twin, idle)).toBe('TERMINATED')
  })

  it('becomes idle with an empty request, which refunds the rest of the interval', async ({ twin, instance, id }) => {
    await request(twin, id, { A: 1 })
    await twin.advance(15 * MINUTE)
    const halted = await request(twin, id, {})
    expect([halted.status, pick(halted.body, 'requestedItems')]).toEqual([200, []])
    expect(await used(twin, instance)).toBe(1.5)
    expect(pick((await twin.call('GET', SESSIONS)).body, 0)).toMatchObject({ state: 'IDLE', chargedUntil: 0 })
    await twin.advance(10 * DAY)
    expect(await used(twin, instance)).toBe(1.5)
    expect((await request(twin, id, { A: 1 })).status).toBe(200)
    expect(await stateOf(twin, id)).toBe('ACTIVE')
  })

  it('ends when the tokens do not suffice for the next interval', async ({ twin }) => {
    const instance = await site(twin, 10)
    const id = await open(twin, instance)
    await request(twin, id, { A: 1 })
    await twin.advance(HOUR)
    expect(await stateOf(twin, id)).toBe('TERMINATED')
    expect(await used(twin, instance)).toBe(6)
    const last = (await twin.usage(instance)).at(-1)
    expect(last).toMatchObject({
      status: 'INSUFFICIENT_TOKENS',
      tokens: 0n,
      source: { kind: 'session', sessionId: id },
    })
    expect((await request(twin, id, { A: 1 })).status).toBe(409)
  })

  it('continues with another line item when the first is no longer usable, at the current rate', async ({
    twin,
    instance,
    id,
  }) => {
    await request(twin, id, { A: 1 })
    await twin.lineItem(instance, { state: 'INACTIVE' })
    await twin.lineItem(instance, { activationId: 'ACT-2', quantity: 100, attributes: { rateTableSeries: 'S' } })
    await twin.rates({ A: 7 }, 'S')
    await twin.advance(HOUR)
    expect([await used(twin, instance), await twin.used(instance, 'ACT-2')]).toEqual([6, 7])
    await twin.advance(20 * MINUTE)
    await twin.call('DELETE', `${SESSIONS}/${id}`)
    expect(await twin.used(instance, 'ACT-2')).toBe(2.333333)
  })

  it('refunds to a line item that is INACTIVE, OBSOLETE or deleted, and to the action that allowed it', async ({
    twin,
    instance,
  }) => {
    const actions = `/api/v1.1/instances/${instance}/line-items/ACT-1/actions`
    await twin.call('POST', actions, { body: [{ action: 'ALLOW', allocation: 50 }] })
    const [first, second, third] = [await open(twin, instance), await open(twin, instance), await open(twin, instance)]
    for (const id of [first, second, third]) await request(twin, id, { B: 1 })
    await twin.advance(30 * MINUTE)
    await twin.lineItem(instance, { state: 'INACTIVE' })
    await twin.call('DELETE', `${SESSIONS}/${first}`)
    expect(await used(twin, instance)).toBe(25)
    expect((await twin.call('GET', actions)).body).toMatchObject([{ allocation: 50, used: 25 }])
    await twin.lineItem(instance, { state: 'OBSOLETE' })
    await twin.call('DELETE', `${SESSIONS}/${second}`)
    expect(await used(twin, instance)).toBe(20)
    expect((await twin.call('DELETE', `/provisioning/api/v1.1/instances/${instance}/line-items/ACT-1`)).status).toBe(
      204,
    )
    expect((await twin.call('DELETE', `${SESSIONS}/${third}`)).status).toBe(204)
    const pools = await twin.read((reader) => reader.accounts.ofLineItem(instance, 'ACT-1'))
    expect(pools.map(({ charged }) => charged)).toEqual([15_000_000n, 15_000_000n])
  })

  it('refunds to the charged period, also when another has begun', async ({ twin }) => {
    const instance = await twin.instance()
    await twin.rates({ A: 6 })
    await twin.lineItem(instance, { start: START - 23 * HOUR - 50 * MINUTE, attributes: { resetFrequency: 'DAILY' } })
    const id = await open(twin, instance)
    await request(twin, id, { A: 1 })
    await twin.advance(30 * MINUTE)
    expect(await used(twin, instance)).toBe(0)
    await twin.call('DELETE', `${SESSIONS}/${id}`)
    expect(await used(twin, instance)).toBe(0)
    const pools = await twin.read((reader) => reader.accounts.ofLineItem(instance, 'ACT-1'))
    expect(pools.map(({ charged }) => charged)).toEqual([3_000_000n])
  })

  it('is the same whether the sweep runs every second or once a day', async () => {
    const play = async (rounds: boolean): Promise<readonly unknown[]> => {
      await using twin = await openTwin()
      const instance = await site(twin)
      const id = await open(twin, instance)
      await request(twin, id, { A: 1 })
      for (let minute = 0; minute < 100; minute += 1) {
        twin.now += MINUTE
        if (rounds) await twin.tick()
        if (minute === 65) await heartbeat(twin, id)
      }
      await request(twin, id, { B: 2 })
      twin.now += 90 * MINUTE
      if (rounds) await twin.tick()
      await twin.call('DELETE', `${SESSIONS}/${id}`)
      return [await used(twin, instance), await stateOf(twin, id), (await twin.usage(instance)).length]
    }
    expect(await play(false)).toEqual(await play(true))
  })

  it('takes its interval from session.charge.period when its timeline begins', async ({ twin, instance, id }) => {
    const period = (value: string) =>
      twin.call('PATCH', '/provisioning/api/v1.1/configuration', { body: { name: 'session.charge.period', value } })
    await period('PT10M')
    await request(twin, id, { A: 1 })
    await period('PT2H')
    await twin.advance(10 * MINUTE)
    expect(await used(twin, instance)).toBe(12)
    await request(twin, id, { A: 1 })
    expect(pick((await twin.call('GET', SESSIONS)).body, 0, 'chargedUntil')).toBe(START + 10 * MINUTE + 2 * HOUR)
  })

  it('does not charge for intervals in which the twin was not running', async ({ twin, instance, id }) => {
    await request(twin, id, { A: 1 })
    await twin.stop()
    twin.now += 5 * HOUR + MINUTE
    await twin.start()
    await twin.tick()
    expect(await used(twin, instance)).toBe(12)
    expect(pick((await twin.call('GET', SESSIONS)).body, 0, 'chargedUntil')).toBe(START + 6 * HOUR)
    await twin.advance(29 * MINUTE)
    expect((await heartbeat(twin, id)).status).toBe(204)
  })

  it('never oversells with many sessions at once', async ({ twin }) => {
    const instance = await site(twin, 60)
    const ids = await Promise.all(Array.from({ length: 20 }, async () => open(twin, instance)))
    const answers = await Promise.all(ids.map(async (id) => request(twin, id, { A: 1 })))
    expect(answers.filter(({ status }) => status === 200)).toHaveLength(10)
    expect(await used(twin, instance)).toBe(60)
    await Promise.all(ids.map(async (id) => twin.call('DELETE', `${SESSIONS}/${id}`)))
    expect(await used(twin, instance)).toBe(0)
  })
})

describe('a heartbeat', () => {
  it('is required within half an interval after an automatic charge, which is otherwise refunded in full', async ({
    twin,
    instance,
    id,
  }) => {
    await request(twin, id, { A: 1 })
    await twin.advance(HOUR)
    expect(await used(twin, instance)).toBe(12)
    await twin.advance(30 * MINUTE - 1)
    expect(await stateOf(twin, id)).toBe('ACTIVE')
    await twin.advance(1)
    expect(await stateOf(twin, id)).toBe('TERMINATED')
    expect(await used(twin, instance)).toBe(6)
    expect((await twin.usage(instance)).at(-1)).toMatchObject({ status: 'REFUNDED', tokens: -6_000_000n })
  })

  it('in time keeps the session, and is not required before the first automatic charge', async ({
    twin,
    instance,
    id,
  }) => {
    await request(twin, id, { A: 1 })
    await twin.advance(59 * MINUTE)
    expect(await stateOf(twin, id)).toBe('ACTIVE')
    await twin.advance(MINUTE)
    await twin.advance(29 * MINUTE)
    expect((await heartbeat(twin, id)).status).toBe(204)
    await twin.advance(31 * MINUTE)
    expect(await used(twin, instance)).toBe(18)
  })

  it('that is late does not revive a session, even before the sweep has seen it', async ({ twin, instance, id }) => {
    await request(twin, id, { A: 1 })
    await twin.advance(HOUR)
    twin.now += 30 * MINUTE
    expect((await heartbeat(twin, id)).status).toBe(409)
    expect(await used(twin, instance)).toBe(6)
  })

  it('on an ended session gets the response of its API version', async ({ twin, id }) => {
    await twin.call('DELETE', `${SESSIONS}/${id}`)
    const v11 = await heartbeat(twin, id)
    expect([v11.status, pick(v11.body, 'message')]).toEqual([409, 'Session is TERMINATED'])
    const v10 = await heartbeat(twin, id, 'v1.0')
    expect(v10.status).toBe(403)
    expect(pick(v10.body, 'message')).not.toContain('TERMINATED')
    expect((await request(twin, id, {})).status).toBe(409)
    expect((await request(twin, id, {}, { version: 'v1.0' })).status).toBe(403)
  })
})

describe('an idle session', () => {
  it('ends after 30 days, and is forgotten after 30 more', async ({ twin, id }) => {
    await twin.advance(30 * DAY - 1)
    expect(await stateOf(twin, id)).toBe('IDLE')
    await twin.advance(1)
    expect(await stateOf(twin, id)).toBe('TERMINATED')
    await twin.advance(30 * DAY - 1)
    expect(await stateOf(twin, id)).toBe('TERMINATED')
    await twin.advance(1)
    expect((await twin.call('GET', `${SESSIONS}/${id}`)).status).toBe(404)
  })
})
