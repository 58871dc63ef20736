/** Rules of access: actions, conditions, and what they decide. */
import assert from 'node:assert/strict'
import { type Check, check } from '../check.ts'
import { type Json, type Reply, type World, classOf, number, refused, success, text, uuid } from '../world.ts'

const UNKNOWN = '64d2028c-ae87-4069-a624-66089d957ef9'
const conditionsPath = (instance: string): string => `/instances/${instance}/conditions`
const actionsPath = (instance: string, lineItem: string): string =>
  `/instances/${instance}/line-items/${lineItem}/actions`

const department = (...values: readonly string[]) => ({ name: 'department', operator: 'IN', property: 'dept', values })

async function condition(world: World, instance: string, body: unknown): Promise<string> {
  const made = await world.call('POST', conditionsPath(instance), { body: [body] })
  success(made)
  return uuid(made.body[0].id)
}

async function putActions(world: World, instance: string, lineItem: string, body: unknown): Promise<readonly Json[]> {
  const saved = await world.call('PUT', actionsPath(instance, lineItem), { body })
  success(saved)
  return saved.body as readonly Json[]
}

/** Whether a requester with this dictionary is granted a count. */
async function isAllowed(
  world: World,
  instance: string,
  dictionary: Record<string, unknown>,
  count = 1,
): Promise<boolean> {
  const { body } = await world.access(instance, { PhotoPrint: count }, { dictionary })
  return classOf(body.requestedItems[0]) === '1'
}

/** A line item whose only action allows who meets the condition. */
async function guarded(world: World, guard: unknown): Promise<string> {
  const { instance, lineItem } = await world.shop({ PhotoPrint: 1 })
  const conditionId = await condition(world, instance, guard)
  await putActions(world, instance, lineItem, [{ conditionId, action: 'ALLOW', allocation: 50 }])
  return instance
}

const IN = { operator: 'IN', property: 'dept', values: ['sales', 'support'] }
const IN_CITY = { operator: 'IN', property: 'city', values: ['Graz'] }

export const ruleChecks: readonly Check[] = [
  check(
    ['conditions.post', 'condition.id', 'condition.name', 'condition.operator', 'condition.IN'],
    'POST returns only the created conditions, each with an id',
    async (world) => {
      const instance = await world.instance()
      await condition(world, instance, department('sales'))
      const made = await world.call('POST', conditionsPath(instance), { body: [department('a'), department('b', 'c')] })
      success(made)
      assert.equal(made.body.length, 2)
      assert.partialDeepStrictEqual(made.body, [department('a'), department('b', 'c')])
      assert.equal(new Set(made.body.map(({ id }: Json) => uuid(id))).size, 2)
    },
  ),
  check(
    ['conditions.get', 'condition.AND', 'condition.NOT'],
    'GET returns all conditions with their nested conditions',
    async (world) => {
      const instance = await world.instance()
      const nested = { name: 'nested', operator: 'AND', conditions: [IN, { operator: 'NOT', condition: IN_CITY }] }
      const ids = [await condition(world, instance, nested), await condition(world, instance, department('x'))]
      const { body } = await world.call('GET', conditionsPath(instance))
      assert.deepEqual(body.map(({ id }: Json) => text(id)).sort(), [...ids].sort())
      assert.partialDeepStrictEqual(
        body.find(({ id }: Json) => id === ids[0]),
        nested,
      )
    },
  ),
  check(
    'conditions.patch',
    'PATCH changes conditions with an id, adds those without, and returns only these',
    async (world) => {
      const instance = await world.instance()
      const [kept, changed] = [
        await condition(world, instance, department('kept')),
        await condition(world, instance, department('old')),
      ]
      const body = [{ id: changed, ...department('new') }, department('added')]
      const answer = await world.call('PATCH', conditionsPath(instance), { body })
      success(answer)
      assert.equal(answer.body.length, 2)
      assert.partialDeepStrictEqual(answer.body, body)
      const all = (await world.call('GET', conditionsPath(instance))).body as readonly Json[]
      assert.equal(all.length, 3)
      assert.deepEqual(all.find(({ id }) => id === changed).values, ['new'])
      assert.deepEqual(all.find(({ id }) => id === kept).values, ['kept'])
    },
  ),
  check('conditions.deleteOne', 'DELETE of one condition keeps the others', async (world) => {
    const instance = await world.instance()
    const [first, second] = [
      await condition(world, instance, department('a')),
      await condition(world, instance, department('b')),
    ]
    success(await world.call('DELETE', `${conditionsPath(instance)}/${first}`))
    const { body } = await world.call('GET', conditionsPath(instance))
    assert.deepEqual(
      body.map(({ id }: Json) => text(id)),
      [second],
    )
    refused(await world.call('DELETE', `${conditionsPath(instance)}/${UNKNOWN}`), 404)
  }),
  check('conditions.deleteAll', 'DELETE of all conditions removes all of them', async (world) => {
    const instance = await world.instance()
    await condition(world, instance, department('a'))
    await condition(world, instance, department('b'))
    success(await world.call('DELETE', conditionsPath(instance)))
    assert.deepEqual((await world.call('GET', conditionsPath(instance))).body, [])
  }),
  check('doc.referenced', 'a condition is not deleted while an action refers to it', async (world) => {
    const { instance, lineItem } = await world.shop()
    const conditionId = await condition(world, instance, department('a'))
    await putActions(world, instance, lineItem, [{ conditionId, action: 'DENY' }])
    refused(await world.call('DELETE', `${conditionsPath(instance)}/${conditionId}`))
    refused(await world.call('DELETE', conditionsPath(instance)))
    assert.equal((await world.call('GET', conditionsPath(instance))).body.length, 1)
    success(await world.call('DELETE', actionsPath(instance, lineItem)))
    success(await world.call('DELETE', `${conditionsPath(instance)}/${conditionId}`))
  }),
  check('condition.operator', 'an unknown operator and a missing operator are refused', async (world) => {
    const instance = await world.instance()
    for (const wrong of [
      { ...IN, operator: 'NEAR' },
      { property: 'dept', values: ['a'] },
    ]) {
      refused(await world.call('POST', conditionsPath(instance), { body: [wrong] }), 400)
    }
    assert.deepEqual((await world.call('GET', conditionsPath(instance))).body, [])
  }),
  check(
    ['condition.IN', 'doc.dictionary'],
    'IN is true if the requester’s dictionary has one of the values',
    async (world) => {
      const instance = await guarded(world, IN)
      assert.equal(await isAllowed(world, instance, { dept: 'support' }), true)
      assert.equal(await isAllowed(world, instance, { dept: 'board' }), false)
      assert.equal(await isAllowed(world, instance, { other: 'support' }), false)
      assert.equal(await isAllowed(world, instance, {}), false)
    },
  ),
  check('condition.NOT', 'NOT is true if its condition is false', async (world) => {
    const instance = await guarded(world, { operator: 'NOT', condition: IN })
    assert.equal(await isAllowed(world, instance, { dept: 'support' }), false)
    assert.equal(await isAllowed(world, instance, { dept: 'board' }), true)
  }),
  check('condition.AND', 'AND is true if all of its conditions are true', async (world) => {
    const instance = await guarded(world, { operator: 'AND', conditions: [IN, IN_CITY] })
    assert.equal(await isAllowed(world, instance, { dept: 'sales', city: 'Graz' }), true)
    assert.equal(await isAllowed(world, instance, { dept: 'sales', city: 'Linz' }), false)
    assert.equal(await isAllowed(world, instance, { city: 'Graz' }), false)
  }),
  check('doc.or', 'OR is true if any of its conditions is true', async (world) => {
    const instance = await guarded(world, { operator: 'OR', conditions: [IN, IN_CITY] })
    assert.equal(await isAllowed(world, instance, { city: 'Graz' }), true)
    assert.equal(await isAllowed(world, instance, { dept: 'sales', city: 'Linz' }), true)
    assert.equal(await isAllowed(world, instance, { dept: 'board', city: 'Linz' }), false)
  }),
  check(
    ['actions.post', 'action.id', 'action.name', 'action.action', 'action.allocation', 'action.used'],
    'POST returns the created actions with id, and with used if they have an allocation',
    async (world) => {
      const { instance, lineItem } = await world.shop()
      const conditionId = await condition(world, instance, department('a'))
      const body = [
        { name: 'capped', conditionId, action: 'ALLOW', allocation: 12.5 },
        { name: 'rest', action: 'DENY' },
      ]
      const made = await world.call('POST', actionsPath(instance, lineItem), { body })
      success(made)
      assert.partialDeepStrictEqual(made.body, body)
      const [capped, rest] = made.body
      assert.notEqual(uuid(capped.id), uuid(rest.id))
      assert.equal(capped.used, 0)
      assert.equal('used' in rest, false)
      assert.equal('allocation' in rest, false)
      assert.equal('conditionId' in rest, false)
    },
  ),
  check(
    ['actions.get', 'does.rules', 'action.name'],
    'GET returns the actions in their order; names may be reused',
    async (world) => {
      const { instance, lineItem } = await world.shop()
      const ids = [await condition(world, instance, department('a')), await condition(world, instance, department('b'))]
      const body = [
        { name: 'same', conditionId: ids[1], action: 'DENY' },
        { name: 'same', conditionId: ids[0], action: 'ALLOW', allocation: 5 },
      ]
      await putActions(world, instance, lineItem, body)
      assert.partialDeepStrictEqual((await world.call('GET', actionsPath(instance, lineItem))).body, body)
      const other = await world.lineItem(instance)
      await putActions(world, instance, other, [body[0]])
    },
  ),
  check(
    ['actions.put', 'action.id', 'doc.keepsUsed'],
    'PUT reorders, changes, adds and removes; a kept id keeps used, an omitted id loses it',
    async (world) => {
      const { instance, lineItem } = await world.shop({ PhotoPrint: 1 })
      const [a, b] = [
        await condition(world, instance, department('a')),
        await condition(world, instance, department('b')),
      ]
      const [first, second] = await putActions(world, instance, lineItem, [
        { conditionId: a, action: 'ALLOW', allocation: 10 },
        { conditionId: b, action: 'ALLOW', allocation: 10 },
      ])
      assert.equal(await isAllowed(world, instance, { dept: 'a' }, 4), true)
      assert.equal(await isAllowed(world, instance, { dept: 'b' }, 3), true)
      const swapped = await putActions(world, instance, lineItem, [
        { id: second.id, conditionId: b, action: 'ALLOW', allocation: 20 },
        { id: first.id, conditionId: a, action: 'ALLOW', allocation: 10 },
        { action: 'DENY', name: 'default' },
      ])
      assert.deepEqual(swapped.map(({ id }) => id as string).slice(0, 2), [second.id, first.id])
      assert.deepEqual(
        swapped.map(({ used }) => used as unknown),
        [3, 4, undefined],
      )
      const [renewed] = await putActions(world, instance, lineItem, [
        { conditionId: a, action: 'ALLOW', allocation: 10 },
      ])
      assert.notEqual(renewed.id, first.id)
      assert.equal(renewed.used, 0)
    },
  ),
  check('actions.delete', 'DELETE removes all actions of the line item, which is then unrestricted', async (world) => {
    const { instance, lineItem } = await world.shop()
    await putActions(world, instance, lineItem, [{ action: 'DENY' }])
    assert.equal(await isAllowed(world, instance, {}), false)
    success(await world.call('DELETE', actionsPath(instance, lineItem)))
    assert.deepEqual((await world.call('GET', actionsPath(instance, lineItem))).body, [])
    assert.equal(await isAllowed(world, instance, {}), true)
  }),
  check(
    'actions.all',
    'the actions of an instance are an array whose element has lineItems and next',
    async (world) => {
      const instance = await world.instance()
      const wanted = new Map<string, string>()
      for (const allocation of [1, 2]) {
        const lineItem = await world.lineItem(instance)
        const [action] = await putActions(world, instance, lineItem, [{ action: 'ALLOW', allocation }])
        wanted.set(lineItem, text(action.id))
      }
      const found = new Map<string, string>()
      let next = 0
      do {
        const { body }: Reply = await world.call('GET', `/instances/${instance}/line-items/actions?next=${next}`)
        assert.ok(Array.isArray(body))
        for (const { lineItemId, actions } of body[0].lineItems) found.set(text(lineItemId), text(actions[0].id))
        next = number(body[0].next)
      } while (next !== 0)
      assert.deepEqual(found, wanted)
    },
  ),
  ...(
    [
      ['two actions without condition', () => [{ action: 'DENY' }, { action: 'ALLOW' }]],
      ['an unknown effect', () => [{ action: 'MAYBE' }]],
      ['ALLOW with a condition and no allocation', (conditionId: string) => [{ conditionId, action: 'ALLOW' }]],
      ['an unknown condition', () => [{ conditionId: UNKNOWN, action: 'DENY' }]],
      ['a negative allocation', (conditionId: string) => [{ conditionId, action: 'ALLOW', allocation: -1 }]],
    ] as const
  ).map(([what, body]) =>
    check(
      ['action.conditionId', 'action.allocation', 'action.action'],
      `${what}: POST and PUT are refused`,
      async (world) => {
        const { instance, lineItem } = await world.shop()
        const conditionId = await condition(world, instance, department('a'))
        for (const method of ['POST', 'PUT']) {
          refused(await world.call(method, actionsPath(instance, lineItem), { body: body(conditionId) }), 400)
        }
        assert.deepEqual((await world.call('GET', actionsPath(instance, lineItem))).body, [])
      },
    ),
  ),
  check(
    ['doc.cap', 'action.used', 'does.rules', 'doc.unmatched'],
    '150 tokens for one department, 50 for two others together, no tokens for all others',
    async (world) => {
      const { instance, lineItem } = await world.shop({ PhotoPrint: 1 }, { quantity: 200 })
      const [one, two] = [
        await condition(world, instance, department('engineering')),
        await condition(world, instance, department('sales', 'support')),
      ]
      await putActions(world, instance, lineItem, [
        { conditionId: one, action: 'ALLOW', allocation: 150 },
        { conditionId: two, action: 'ALLOW', allocation: 50 },
      ])
      assert.equal(await isAllowed(world, instance, { dept: 'sales' }, 30), true)
      assert.equal(await isAllowed(world, instance, { dept: 'support' }, 30), false)
      assert.equal(await isAllowed(world, instance, { dept: 'support' }, 20), true)
      assert.equal(await isAllowed(world, instance, { dept: 'sales' }, 1), false)
      assert.equal(await isAllowed(world, instance, { dept: 'engineering' }, 151), false)
      assert.equal(await isAllowed(world, instance, { dept: 'engineering' }, 150), true)
      assert.equal(await isAllowed(world, instance, { dept: 'visitor' }), false)
      const { body } = await world.call('GET', actionsPath(instance, lineItem))
      assert.deepEqual(
        body.map(({ used }: Json) => used as number),
        [150, 50],
      )
    },
  ),
  check(
    ['does.rules', 'action.conditionId'],
    'the first matching entry decides, or else the default',
    async (world) => {
      const { instance, lineItem } = await world.shop({ PhotoPrint: 1 })
      const [a, ab] = [
        await condition(world, instance, department('a')),
        await condition(world, instance, department('a', 'b')),
      ]
      await putActions(world, instance, lineItem, [
        { conditionId: a, action: 'DENY' },
        { conditionId: ab, action: 'ALLOW', allocation: 5 },
        { action: 'ALLOW' },
      ])
      assert.equal(await isAllowed(world, instance, { dept: 'a' }), false)
      assert.equal(await isAllowed(world, instance, { dept: 'b' }, 5), true)
      assert.equal(await isAllowed(world, instance, { dept: 'c' }, 90), true)
    },
  ),
]
