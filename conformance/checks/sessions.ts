/** Sessions: operations, states, charges, refunds and heartbeats. */
import assert from 'node:assert/strict'
import { type Check, check } from '../check.ts'
import { DAY, HOUR, type Json, MINUTE, type World, classOf, number, refused, success, text, uuid } from '../world.ts'

const UNKNOWN = '64d2028c-ae87-4069-a624-66089d957ef9'

/** A shop and a session that is charged for the counts since now. */
async function active(world: World, rates: Record<string, number>, counts: Record<string, number>, quantity = 100) {
  const shop = await world.shop(rates, { quantity })
  const session = await world.session(shop.instance)
  success(await world.ask(session, counts))
  return { ...shop, session, used: () => world.used(shop.instance, shop.lineItem) }
}

/** Lets minutes pass, with a heartbeat after each automatic charge. */
async function keepAlive(world: World, session: string, minutes: number): Promise<void> {
  for (let passed = 0; passed < minutes; passed += 20) {
    await world.advance(20 * MINUTE)
    assert.equal((await world.heartbeat(session)).status, 204)
  }
}

const clock = { needs: ['clock'] } as const

export const sessionChecks: readonly Check[] = [
  check(
    ['sessions.post', 'session.id', 'doc.sessionIdle', 'does.sessions', 'states.live'],
    'POST creates a session that is IDLE and costs nothing',
    async (world) => {
      const { instance, lineItem } = await world.shop()
      const made = await world.call('POST', '/sessions', { body: { instanceId: instance } })
      assert.equal(made.status, 200, made.text)
      const session = uuid(made.body.sessionId)
      world.later(() => world.call('DELETE', `/sessions/${session}`))
      assert.equal(await world.state(session), 'IDLE')
      assert.equal(await world.used(instance, lineItem), 0)
    },
  ),
  check('sessions.post', 'an unknown and a missing instance are refused', async (world) => {
    refused(await world.call('POST', '/sessions', { body: { instanceId: UNKNOWN } }), 404, 400)
    refused(await world.call('POST', '/sessions', { body: {} }), 400)
  }),
  check(
    ['sessions.list', 'states.live', 'doc.sessionList', 'doc.ms'],
    'GET lists live sessions only, newest first, with their times',
    async (world) => {
      const { instance } = await world.shop({ A: 3 })
      const [first, second, closed] = [
        await world.session(instance),
        await world.session(instance),
        await world.session(instance),
      ]
      success(await world.ask(first, { A: 1 }))
      success(await world.call('DELETE', `/sessions/${closed}`))
      const { body } = await world.call('GET', `/sessions?instanceId=${instance}`)
      assert.deepEqual(
        (body as Json[]).map(({ sessionId, state }: Json) => [sessionId, state] as unknown),
        [
          [second, 'IDLE'],
          [first, 'ACTIVE'],
        ],
      )
      const [idle, busy] = body
      assert.partialDeepStrictEqual(idle, {
        instanceId: instance,
        chargedUntil: 0,
        lastHeartBeat: 0,
        lastAccessRequest: 0,
      })
      assert.ok(Math.abs(number(busy.lastAccessRequest) - world.now()) < HOUR)
      assert.ok(number(busy.chargedUntil) > busy.lastAccessRequest)
    },
  ),
  check(['limits.sessions', 'sessions.list'], 'the list has the 100 newest of 101 sessions', async (world) => {
    const instance = await world.instance()
    const tens: string[][] = []
    const oldest = await world.session(instance)
    for (let ten = 0; ten < 10; ten += 1) {
      tens.unshift(await Promise.all(Array.from({ length: 10 }, () => world.session(instance))))
    }
    const { body } = await world.call('GET', `/sessions?instanceId=${instance}`)
    const listed = (body as Json[]).map(({ sessionId }: Json) => text(sessionId))
    assert.equal(listed.length, 100)
    assert.ok(!listed.includes(oldest))
    // Of ten that were made at a time, any may be the newest.
    tens.forEach((ten, index) => assert.deepEqual(listed.slice(index * 10, index * 10 + 10).sort(), ten.sort()))
  }),
  check(
    ['sessions.get', 'doc.sessionItems', 'session.id'],
    'GET of one shows instance, state and items',
    async (world) => {
      const { instance, session } = await active(world, { 'A/1.0': 3 }, { 'A/1.0': 2 })
      const { body } = await world.call('GET', `/sessions/${session}`)
      assert.deepEqual(body, {
        sessionId: session,
        instanceId: instance,
        state: 'ACTIVE',
        items: [{ item: 'A', version: '1.0', count: 2 }],
      })
      refused(await world.call('GET', `/sessions/${UNKNOWN}`), 404)
    },
  ),
  check(
    ['sessions.put', 'doc.granted', 'doc.allOrNothing', 'doc.status101'],
    'a granted request charges all of its items and makes the session ACTIVE',
    async (world) => {
      const { instance, lineItem } = await world.shop({ A: 3, B: 4 })
      const session = await world.session(instance)
      const answer = await world.ask(session, { A: 2, B: 1 })
      assert.equal(answer.status, 200, answer.text)
      assert.deepEqual(answer.body.requestedItems.map(classOf), ['1', '1'])
      assert.deepEqual(
        answer.body.requestedItems.map((item: Json) => number(item.totalTokensCharged)),
        [6, 4],
      )
      assert.equal(await world.state(session), 'ACTIVE')
      assert.equal(await world.used(instance, lineItem), 10)
    },
  ),
  check(
    ['doc.allOrNothing', 'doc.status102', 'doc.status201', 'doc.failedItem', 'doc.deniedKeep'],
    'one refused item refuses the request; the other items have No Status and cost nothing',
    async (world) => {
      const { instance, lineItem } = await world.shop({ A: 3 })
      const session = await world.session(instance)
      const answer = await world.ask(session, { A: 1, Nothing: 1 })
      refused(answer)
      const [valid, wrong] = answer.body.requestedItems
      assert.match(valid.status.code, world.version === 'v1.0' ? /^102$/ : /^1\d{3}$/)
      assert.equal(valid.status.description, 'No Status')
      assert.match(wrong.status.code, world.version === 'v1.0' ? /^201$/ : /^2\d{3}$/)
      for (const item of [valid, wrong]) {
        assert.equal(item.totalTokensCharged, 0)
        assert.deepEqual(item.lineItems, [])
      }
      assert.equal(await world.state(session), 'IDLE')
      assert.equal(await world.used(instance, lineItem), 0)
    },
  ),
  check(
    'doc.deniedKeep',
    'denied with rollbackOnDeny, the session continues with its previous items',
    async (world) => {
      const { instance, session, used } = await active(world, { A: 3, B: 1000 }, { A: 1 })
      const before = await world.listed(instance, session)
      refused(await world.ask(session, { A: 1, B: 1 }, { rollbackOnDeny: true }))
      assert.equal(await world.state(session), 'ACTIVE')
      assert.equal((await world.listed(instance, session)).chargedUntil, before.chargedUntil)
      assert.deepEqual((await world.call('GET', `/sessions/${session}`)).body.items, [{ item: 'A', count: 1 }])
      assert.equal(await used(), 3)
      success(await world.heartbeat(session))
    },
  ),
  check(
    ['doc.deniedEnd', 'states.ended', 'errors.heartbeat', 'versions.heartbeat', 'states.rule2'],
    'denied without rollbackOnDeny, the session is terminated and accepts no more requests',
    async (world) => {
      const { instance, session } = await active(world, { A: 3, B: 1000 }, { A: 1 })
      refused(await world.ask(session, { B: 1 }, { rollbackOnDeny: false }))
      assert.equal(await world.state(session), 'TERMINATED')
      assert.equal(await world.listed(instance, session), undefined)
      await world.assertEnded(session)
      refused(await world.ask(session, { A: 1 }))
    },
  ),
  check(
    ['doc.deniedEnd', 'doc.closeRefund'],
    'denied without rollbackOnDeny after 20 of 60 minutes, 40/60 of the charge are refunded',
    async (world) => {
      const { session, used } = await active(world, { A: 3, B: 1000 }, { A: 2 })
      await world.advance(20 * MINUTE)
      refused(await world.ask(session, { B: 1 }, { rollbackOnDeny: false }))
      assert.equal(await used(), 2)
    },
    clock,
  ),
  check(
    ['doc.deniedKeep', 'doc.interval'],
    'denied with rollbackOnDeny after 20 minutes, the time of the next automatic charge does not change',
    async (world) => {
      const { session, used } = await active(world, { A: 3, B: 1000 }, { A: 2 })
      await world.advance(20 * MINUTE)
      refused(await world.ask(session, { B: 1 }, { rollbackOnDeny: true }))
      assert.equal(await used(), 6)
      await world.advance(40 * MINUTE - 1)
      assert.equal(await used(), 6)
      await world.advance(1)
      assert.equal(await used(), 12)
    },
    clock,
  ),
  check(
    ['sessions.delete', 'states.ended', 'errors.heartbeat', 'states.rule2', 'versions.heartbeat'],
    'DELETE closes a session: TERMINATED, not listed, and its heartbeat fails with the status of the version',
    async (world) => {
      const { instance, session } = await active(world, { A: 3 }, { A: 1 })
      success(await world.call('DELETE', `/sessions/${session}`))
      assert.equal(await world.state(session), 'TERMINATED')
      assert.equal(await world.listed(instance, session), undefined)
      await world.assertEnded(session)
      refused(await world.ask(session, { A: 1 }))
      refused(await world.call('DELETE', `/sessions/${session}`))
      refused(await world.call('DELETE', `/sessions/${UNKNOWN}`), 404)
    },
  ),
  check(
    ['states.locked', 'errors.locked', 'states.rule2', 'versions.heartbeat'],
    'a locked session is not listed and responds 409 until it is unlocked; then it continues',
    async (world) => {
      const { instance, session, used } = await active(world, { A: 3 }, { A: 1 })
      success(await world.edge('POST', `/sessions/${session}/lock`))
      assert.equal(await world.state(session), 'LOCKED')
      assert.equal(await world.listed(instance, session), undefined)
      for (const answer of [await world.heartbeat(session), await world.ask(session, { A: 1 })]) {
        refused(answer, 409)
        if (world.version === 'v1.1') assert.match(text(answer.body.message), /LOCKED/)
      }
      assert.equal(await used(), 3)
      success(await world.edge('POST', `/sessions/${session}/unlock`))
      assert.equal(await world.state(session), 'ACTIVE')
      assert.equal((await world.heartbeat(session)).status, 204)
    },
    { needs: ['extensions'] },
  ),
  check(
    ['sessions.heartbeat', 'doc.heartbeat204', 'doc.heartbeatIdle', 'doc.heartbeatInitial'],
    'a heartbeat on a live session responds 204, needed or not, and is recorded as the last one',
    async (world) => {
      const { instance } = await world.shop({ A: 3 })
      const session = await world.session(instance)
      assert.equal((await world.heartbeat(session)).status, 204)
      success(await world.ask(session, { A: 1 }))
      const answer = await world.heartbeat(session)
      assert.deepEqual([answer.status, answer.text], [204, ''])
      const { lastHeartBeat } = await world.listed(instance, session)
      assert.ok(Math.abs(number(lastHeartBeat) - world.now()) < HOUR)
      refused(await world.heartbeat(UNKNOWN), 404)
    },
  ),
  check(
    'doc.halt',
    'an empty request makes the session IDLE, without items, and refunds most of the charge',
    async (world) => {
      const { session, used } = await active(world, { A: 60 }, { A: 1 })
      const answer = await world.ask(session, {})
      success(answer)
      assert.deepEqual(answer.body.requestedItems, [])
      assert.equal(await world.state(session), 'IDLE')
      assert.deepEqual((await world.call('GET', `/sessions/${session}`)).body.items, [])
      assert.ok((await used()) < 10)
      success(await world.heartbeat(session))
      success(await world.ask(session, { A: 1 }))
      assert.equal(await world.state(session), 'ACTIVE')
    },
  ),
  check(
    ['doc.halt', 'doc.idleNoCharge', 'doc.heartbeatIdle'],
    'made IDLE after 20 minutes, 40/60 are refunded and neither charge nor heartbeat is due for a day',
    async (world) => {
      const { session, used } = await active(world, { A: 3 }, { A: 2 })
      await world.advance(20 * MINUTE)
      success(await world.ask(session, {}))
      assert.equal(await used(), 2)
      await world.advance(DAY)
      assert.equal(await used(), 2)
      assert.equal(await world.state(session), 'IDLE')
    },
    clock,
  ),
  check(
    ['doc.interval', 'doc.exampleClose', 'doc.closeRefund', 'states.rule1', 'sessions.delete'],
    'charged at 0, 60 and 120, closed at 140: 40/60 of the third charge are refunded',
    async (world) => {
      const { session, used } = await active(world, { A: 3 }, { A: 1 })
      assert.equal(await used(), 3)
      await world.advance(HOUR - 1)
      assert.equal(await used(), 3)
      await world.advance(1)
      assert.equal(await used(), 6)
      assert.equal((await world.heartbeat(session)).status, 204)
      await world.advance(HOUR)
      assert.equal(await used(), 9)
      assert.equal((await world.heartbeat(session)).status, 204)
      await world.advance(20 * MINUTE)
      success(await world.call('DELETE', `/sessions/${session}`))
      assert.equal(await used(), 7)
      await world.advance(2 * HOUR)
      assert.equal(await used(), 7)
    },
    clock,
  ),
  check(
    ['doc.exampleBasket', 'doc.replace'],
    'other items at 140: 40/60 of A are refunded, A and B are charged in full, the next charge is at 200',
    async (world) => {
      const { instance, session, used } = await active(world, { A: 3, B: 4 }, { A: 1 })
      await keepAlive(world, session, 140)
      assert.equal(await used(), 9)
      success(await world.ask(session, { A: 1, B: 1 }))
      assert.equal(await used(), 9 - 2 + 7)
      assert.equal((await world.listed(instance, session)).chargedUntil, world.now() + HOUR)
      await world.advance(HOUR - 1)
      assert.equal(await used(), 14)
      await world.advance(1)
      assert.equal(await used(), 21)
    },
    clock,
  ),
  check('doc.replace', 'the list of items replaces the previous one and is not added to it', async (world) => {
    const { session } = await active(world, { A: 3, B: 4 }, { A: 1 })
    success(await world.ask(session, { B: 2 }))
    assert.deepEqual((await world.call('GET', `/sessions/${session}`)).body.items, [{ item: 'B', count: 2 }])
  }),
  check(
    ['doc.refundWhere', 'doc.refundInactive', 'doc.split'],
    'a charge split over two line items is refunded to both, also to one that is inactive by then',
    async (world) => {
      const instance = await world.instance()
      const attributes = { rateTableSeries: await world.rates({ A: 6 }) }
      const [early, late] = [world.now() + 50 * DAY, world.now() + 90 * DAY]
      const first = await world.lineItem(instance, { quantity: 12, end: early, attributes })
      const second = await world.lineItem(instance, { quantity: 100, end: late, attributes })
      const session = await world.session(instance)
      success(await world.ask(session, { A: 5 }))
      const used = async () => [await world.used(instance, first), await world.used(instance, second)]
      assert.deepEqual(await used(), [12, 18])
      await world.advance(20 * MINUTE)
      const body = world.lineItemBody({ activationId: first, quantity: 12, end: early, attributes })
      success(await world.putLineItem(instance, { ...body, state: 'INACTIVE' }))
      success(await world.call('DELETE', `/sessions/${session}`))
      assert.deepEqual(await used(), [4, 6])
    },
    clock,
  ),
  check(
    ['doc.heartbeatMissed', 'states.ended', 'errors.heartbeat', 'versions.heartbeat', 'states.rule1'],
    'no heartbeat in the 30 minutes after an automatic charge: terminated, and that charge is refunded in full',
    async (world) => {
      const { instance, session, used } = await active(world, { A: 3 }, { A: 1 })
      await world.advance(HOUR)
      assert.equal(await used(), 6)
      await world.advance(30 * MINUTE - 1)
      assert.equal(await world.state(session), 'ACTIVE')
      await world.advance(1)
      assert.equal(await used(), 3)
      assert.equal(await world.state(session), 'TERMINATED')
      assert.equal(await world.listed(instance, session), undefined)
      await world.assertEnded(session)
    },
    clock,
  ),
  check(
    ['doc.heartbeatMissed', 'sessions.heartbeat', 'states.rule1'],
    'a heartbeat in the 30 minutes keeps the session active for the whole interval',
    async (world) => {
      const { session, used } = await active(world, { A: 3 }, { A: 1 })
      await world.advance(HOUR + 29 * MINUTE)
      assert.equal((await world.heartbeat(session)).status, 204)
      await world.advance(31 * MINUTE - 1)
      assert.equal(await world.state(session), 'ACTIVE')
      assert.equal(await used(), 6)
    },
    clock,
  ),
  check(
    'doc.heartbeatInitial',
    'no heartbeat is needed in the first interval',
    async (world) => {
      const { session } = await active(world, { A: 3 }, { A: 1 })
      await world.advance(HOUR - 1)
      assert.equal(await world.state(session), 'ACTIVE')
    },
    clock,
  ),
  check(
    ['doc.exhausted', 'errors.heartbeat', 'states.ended'],
    'insufficient tokens for the next interval terminate the session',
    async (world) => {
      const { session, used } = await active(world, { A: 3 }, { A: 1 }, 5)
      await world.advance(HOUR)
      assert.equal(await world.state(session), 'TERMINATED')
      assert.equal(await used(), 3)
      await world.assertEnded(session)
    },
    clock,
  ),
  check(
    'doc.idledOut',
    'a session that is IDLE for 30 days is terminated',
    async (world) => {
      const { instance, session } = await active(world, { A: 3 }, { A: 1 })
      success(await world.ask(session, {}))
      await world.advance(30 * DAY - MINUTE)
      assert.equal(await world.state(session), 'IDLE')
      await world.advance(MINUTE)
      assert.equal(await world.state(session), 'TERMINATED')
      assert.equal(await world.listed(instance, session), undefined)
      await world.assertEnded(session)
    },
    clock,
  ),
  check(
    'doc.period',
    'with session.charge.period PT10M, a new session is charged every ten minutes',
    async (world) => {
      const set = (value: string) =>
        world.provisioning('PATCH', '/configuration', { body: [{ name: 'session.charge.period', value }] })
      const { body } = await world.provisioning('GET', '/configuration')
      const before = text(body.find(({ name }: Json) => name === 'session.charge.period').value)
      world.later(() => set(before))
      success(await set('PT10M'))
      const { instance, session, used } = await active(world, { A: 3 }, { A: 1 })
      assert.equal((await world.listed(instance, session)).chargedUntil, world.now() + 10 * MINUTE)
      await world.advance(10 * MINUTE)
      assert.equal(await used(), 6)
    },
    { versions: ['v1.1'], needs: ['clock', 'scratch'] },
  ),
  check(
    ['addresses.floating', 'addresses.base'],
    'sessions and rules of access are served below floating/api as below api',
    async (world) => {
      const { instance, lineItem } = await world.shop({ A: 3 })
      const area = 'floating/api'
      const made = await world.call('POST', '/sessions', { area, body: { instanceId: instance } })
      success(made)
      const path = `/sessions/${text(made.body.sessionId)}`
      const body = {
        requester: { type: 'user', value: 'x' },
        rollbackOnDeny: true,
        requestedItems: [{ item: 'A', count: 1 }],
      }
      success(await world.call('PUT', path, { area, body }))
      assert.equal((await world.call('GET', path)).body.state, 'ACTIVE')
      success(await world.call('GET', `/sessions?instanceId=${instance}`, { area }))
      assert.equal((await world.call('GET', `${path}/heartbeat`, { area })).status, 204)
      success(await world.call('DELETE', path, { area }))
      const conditions = `/instances/${instance}/conditions`
      success(await world.call('POST', conditions, { area, body: [{ operator: 'IN', property: 'a', values: ['b'] }] }))
      assert.equal((await world.call('GET', conditions)).body.length, 1)
      success(await world.call('GET', `/instances/${instance}/line-items/${lineItem}/actions`, { area }))
    },
  ),
  check('sessions.put', 'a request without rollbackOnDeny or without requester is refused', async (world) => {
    const session = await world.session(await world.instance())
    const whole = { requester: { type: 'user', value: 'x' }, rollbackOnDeny: true, requestedItems: [] }
    for (const missing of ['requester', 'rollbackOnDeny', 'requestedItems']) {
      refused(await world.call('PUT', `/sessions/${session}`, { body: { ...whole, [missing]: undefined } }), 400)
    }
  }),
]
