/** Access requests without a session, and the status codes of items. */
import assert from 'node:assert/strict'
import { type Check, check } from '../check.ts'
import { DAY, type World, classOf, refused, requester, success, uuid } from '../world.ts'

const code = (world: World, three: string, four: RegExp): string | RegExp => (world.version === 'v1.0' ? three : four)

function assertCode(world: World, said: unknown, three: string): void {
  const wanted = code(world, three, new RegExp(`^${three.slice(0, 1)}\\d{3}$`))
  if (typeof wanted === 'string') assert.equal(said, wanted)
  else assert.match(String(said), wanted)
}

export const accessChecks: readonly Check[] = [
  check(
    ['access.oneOff', 'doc.charge', 'doc.status101', 'does.sessions', 'does.rates', 'errors.codes', 'versions.codes'],
    '10 x 3 and 2 x 7 are granted, cost 44 tokens and have one result per item',
    async (world) => {
      const { instance, lineItem } = await world.shop({ 'PhotoPrint/1.0': 3, 'CADPrint/2.0': 7 })
      const answer = await world.access(instance, { 'PhotoPrint/1.0': 10, 'CADPrint/2.0': 2 })
      assert.equal(answer.status, 200, answer.text)
      uuid(answer.body.correlationId)
      assert.deepEqual(answer.body.requester, { type: 'user', value: 'LisaBarry' })
      const wanted = [
        ['PhotoPrint', '1.0', 10, 3, 30],
        ['CADPrint', '2.0', 2, 7, 14],
      ].map(([item, version, count, rate, total]) => ({
        item,
        version,
        count,
        totalTokensCharged: total,
        lineItems: [{ activationId: lineItem, rate, tokensCharged: total }],
      }))
      assert.partialDeepStrictEqual(answer.body.requestedItems, wanted)
      for (const { status } of answer.body.requestedItems) {
        assertCode(world, status.code, '101')
        assert.equal(status.description, 'Successfully checked out')
      }
      assert.equal(await world.used(instance, lineItem), 44)
    },
  ),
  check('doc.correlation', 'each request has a different correlation id', async (world) => {
    const { instance } = await world.shop()
    const ids = [await world.access(instance, { PhotoPrint: 1 }), await world.access(instance, { PhotoPrint: 1 })]
    assert.equal(new Set(ids.map(({ body }) => uuid(body.correlationId))).size, 2)
  }),
  check(
    ['doc.status201', 'doc.failedItem', 'errors.codes', 'versions.codes'],
    'an item in no table in effect is refused with its code, a charge of 0 and no line items',
    async (world) => {
      const { instance, lineItem } = await world.shop()
      const [said] = (await world.access(instance, { Nothing: 1 })).body.requestedItems
      assertCode(world, said.status.code, '201')
      assert.equal(said.status.description, 'Item not found in any effective rate table')
      assert.equal(said.totalTokensCharged, 0)
      assert.deepEqual(said.lineItems, [])
      assert.equal(await world.used(instance, lineItem), 0)
    },
  ),
  check(
    ['errors.codes', 'versions.codes'],
    'every code of an item has three digits in v1.0 and four in v1.1, also if tokens are insufficient',
    async (world) => {
      const { instance } = await world.shop({ PhotoPrint: 3 }, { quantity: 1 })
      const [said] = (await world.access(instance, { PhotoPrint: 1 })).body.requestedItems
      assert.match(said.status.code, world.version === 'v1.0' ? /^2\d\d$/ : /^2\d\d\d$/)
    },
  ),
  check(
    ['doc.bestEffort', 'doc.itemOrder'],
    'each item is granted or refused separately, in the order of the request',
    async (world) => {
      const { instance, lineItem } = await world.shop({ A: 3, B: 4 }, { quantity: 10 })
      const { body } = await world.access(instance, { B: 1, Nothing: 1, A: 3, 'A/9': 1 })
      assert.deepEqual(
        body.requestedItems.map(({ item }: { item: string }) => item),
        ['B', 'Nothing', 'A', 'A'],
      )
      assert.deepEqual(body.requestedItems.map(classOf), ['1', '2', '2', '2'])
      assert.equal(await world.used(instance, lineItem), 4)
      const rest = await world.access(instance, { A: 2 })
      assert.equal(classOf(rest.body.requestedItems[0]), '1')
    },
  ),
  check('doc.split', 'of 10 and 100 tokens, 1 x 3 uses 3 of the first, 8 x 7 uses 7 and 49', async (world) => {
    const instance = await world.instance()
    const rateTableSeries = await world.rates({ A: 3, B: 7 })
    const attributes = { rateTableSeries }
    const first = await world.lineItem(instance, { quantity: 10, end: world.now() + 10 * DAY, attributes })
    const second = await world.lineItem(instance, { quantity: 100, end: world.now() + 20 * DAY, attributes })
    const { body } = await world.access(instance, { A: 1, B: 8 })
    assert.deepEqual(body.requestedItems[0].lineItems, [{ activationId: first, rate: 3, tokensCharged: 3 }])
    assert.deepEqual(body.requestedItems[1].lineItems, [
      { activationId: first, rate: 7, tokensCharged: 7 },
      { activationId: second, rate: 7, tokensCharged: 49 },
    ])
    assert.equal(body.requestedItems[1].totalTokensCharged, 56)
    assert.deepEqual([await world.used(instance, first), await world.used(instance, second)], [10, 49])
  }),
  check(
    'doc.order',
    'the line item with the earliest end pays first; with equal ends, the one with the earliest start',
    async (world) => {
      const instance = await world.instance()
      const attributes = { rateTableSeries: await world.rates({ A: 1 }) }
      const [now, end] = [world.now(), world.now() + 20 * DAY]
      const third = await world.lineItem(instance, { start: now - 9 * DAY, end: end + DAY, quantity: 1, attributes })
      const second = await world.lineItem(instance, { start: now - 2 * DAY, end, quantity: 1, attributes })
      const first = await world.lineItem(instance, { start: now - 3 * DAY, end, quantity: 1, attributes })
      const payers: string[] = []
      for (let round = 0; round < 3; round += 1) {
        payers.push((await world.access(instance, { A: 1 })).body.requestedItems[0].lineItems[0].activationId as string)
      }
      assert.deepEqual(payers, [first, second, third])
    },
  ),
  check('doc.fractions', 'a fractional count at a fractional rate is charged exactly', async (world) => {
    const { instance, lineItem } = await world.shop({ A: 0.85 })
    const { body } = await world.access(instance, { A: 2.5 })
    assert.equal(body.requestedItems[0].count, 2.5)
    assert.equal(body.requestedItems[0].totalTokensCharged, 2.125)
    await world.access(instance, { A: 0.1 })
    await world.access(instance, { A: 0.2 })
    assert.equal(await world.used(instance, lineItem), 2.38)
  }),
  check('doc.requestedVersion', 'requestedVersion is accepted instead of version', async (world) => {
    const { instance } = await world.shop({ 'A/1.0': 2 })
    const body = { requester: requester(), requestedItems: [{ item: 'A', requestedVersion: '1.0', count: 1 }] }
    const answer = await world.access(instance, {}, { body })
    assert.equal(classOf(answer.body.requestedItems[0]), '1')
  }),
  check('access.oneOff', 'metaData must be an object', async (world) => {
    const { instance } = await world.shop()
    const ask = (metaData: unknown) =>
      world.access(
        instance,
        {},
        {
          body: { requester: requester(), requestedItems: [{ item: 'PhotoPrint', count: 1, metaData }] },
        },
      )
    success(await ask({ job: 7 }))
    refused(await ask('job 7'), 400)
  }),
  ...(
    [
      ['no requester', { requestedItems: [{ item: 'PhotoPrint', count: 1 }] }],
      [
        'a requester without value',
        { requester: { type: 'user' }, requestedItems: [{ item: 'PhotoPrint', count: 1 }] },
      ],
      ['no items', { requester: requester() }],
      ['an item without count', { requester: requester(), requestedItems: [{ item: 'PhotoPrint' }] }],
      ['a negative count', { requester: requester(), requestedItems: [{ item: 'PhotoPrint', count: -1 }] }],
      ['a count that is a text', { requester: requester(), requestedItems: [{ item: 'PhotoPrint', count: '1' }] }],
    ] as const
  ).map(([what, body]) =>
    check('access.oneOff', `a request with ${what} is refused and charges nothing`, async (world) => {
      const { instance, lineItem } = await world.shop()
      refused(await world.access(instance, {}, { body }), 400)
      assert.equal(await world.used(instance, lineItem), 0)
    }),
  ),
]
