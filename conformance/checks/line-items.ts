/** Line items: operations, validation, states, window, overdraft. */
import assert from 'node:assert/strict'
import { type Check, check } from '../check.ts'
import { DAY, HOUR, type Json, type Reply, type World, classOf, refused, success, text } from '../world.ts'

/** The strings of a validation failure, under the key that the version says. */
function problems(world: World, { status, body, text: said }: Reply): readonly string[] {
  assert.equal(status, 400, said)
  const [key, other] = world.version === 'v1.0' ? ['errors', 'message'] : ['message', 'errors']
  assert.ok(Array.isArray(body[key]), `there is an array under ${key}: ${said}`)
  assert.ok(!Array.isArray(body[other]), `there is none under ${other}: ${said}`)
  for (const problem of body[key]) assert.match(text(problem), /^\$/, 'a problem begins with a path into the payload')
  return body[key] as readonly string[]
}

const path = (instance: string, lineItem = ''): string =>
  `/instances/${instance}/line-items${lineItem === '' ? '' : `/${lineItem}`}`

const one = async (world: World, instance: string): Promise<Json> =>
  (await world.access(instance, { PhotoPrint: 1 })).body.requestedItems[0]

const invalid: readonly (readonly [what: string, change: Record<string, unknown>, wanted: RegExp])[] = [
  [
    'overdraftLimit that is a text',
    { attributes: { overdraftType: 'Number', overdraftLimit: '5' } },
    /\$\.attributes\.overdraftLimit: string found, integer expected/,
  ],
  [
    'overdraftLimit that is a fraction',
    { attributes: { overdraftType: 'Number', overdraftLimit: 1.5 } },
    /\$\.attributes\.overdraftLimit: number found, integer expected/,
  ],
  [
    'an undeclared attribute',
    { attributes: { colour: 'red' } },
    /\$\.attributes: property 'colour' is not defined in the schema and the schema does not allow additional properties/,
  ],
  ['no activationId', { activationId: undefined }, /activationId/],
  ['an unknown state', { state: 'PAUSED' }, /^\$\.state/],
  ['quantity that is a text', { quantity: 'many' }, /^\$\.quantity: string found, integer expected/],
  ['no attributes', { attributes: undefined }, /attributes/],
  ['no start', { start: undefined }, /start/],
]

export const lineItemChecks: readonly Check[] = [
  check(
    ['lineItems.put', 'lineItems.get', 'does.activation', 'doc.record'],
    'GET by activation id returns what the first PUT stored, with nothing used',
    async (world) => {
      const instance = await world.instance()
      const attributes = { rateTableSeries: 'S', overdraftType: 'Number', overdraftLimit: 7 }
      const body = world.lineItemBody({ attributes })
      success(await world.putLineItem(instance, body))
      const { body: stored } = await world.provisioning('GET', path(instance, body.activationId))
      assert.partialDeepStrictEqual(stored, { ...body, used: 0 })
      success(await world.putLineItem(instance, stored))
      assert.deepEqual((await world.provisioning('GET', path(instance, body.activationId))).body, stored)
    },
  ),
  check('lineItems.put', 'a second PUT replaces everything that the first one stored', async (world) => {
    const instance = await world.instance()
    const id = await world.lineItem(instance, { attributes: { rateTableSeries: 'S', overdraftType: 'Unlimited' } })
    const body = world.lineItemBody({ activationId: id, quantity: 5 })
    success(await world.putLineItem(instance, body))
    const { body: stored } = await world.provisioning('GET', path(instance, id))
    assert.equal(stored.quantity, 5)
    assert.equal(stored.attributes.overdraftType, undefined)
    assert.ok(['', undefined].includes(stored.attributes.rateTableSeries))
  }),
  check('lineItems.list', 'GET lists the line items of the instance as an array', async (world) => {
    const instance = await world.instance()
    const ids = [await world.lineItem(instance), await world.lineItem(instance)]
    const { body } = await world.provisioning('GET', path(instance))
    assert.deepEqual(body.map(({ activationId }: Json) => text(activationId)).sort(), [...ids].sort())
  }),
  check('lineItems.delete', 'DELETE of an obsolete line item removes it from the list', async (world) => {
    const instance = await world.instance()
    const body = world.lineItemBody()
    success(await world.putLineItem(instance, body))
    success(await world.putLineItem(instance, { ...body, state: 'OBSOLETE' }))
    success(await world.provisioning('DELETE', path(instance, body.activationId)))
    refused(await world.provisioning('GET', path(instance, body.activationId)), 404)
    assert.deepEqual((await world.provisioning('GET', path(instance))).body, [])
    refused(await world.provisioning('DELETE', path(instance, body.activationId)), 404)
  }),
  ...invalid.map(([what, change, wanted]) =>
    check(
      ['errors.put', 'versions.put', 'doc.validator', 'lineItem.attributes'],
      `PUT with ${what} is refused with 400 and names the path`,
      async (world) => {
        const instance = await world.instance()
        const { attributes, ...fields } = world.lineItemBody()
        const said = problems(
          world,
          await world.putLineItem(instance, {
            ...fields,
            ...change,
            ...('attributes' in change && change['attributes'] === undefined
              ? {}
              : { attributes: { ...(attributes as object), ...(change['attributes'] as object | undefined) } }),
          }),
        )
        assert.ok(
          said.some((problem) => wanted.test(problem)),
          `${said.join('; ')} has nothing like ${wanted}`,
        )
      },
    ),
  ),
  check('errors.put', 'several problems are several strings', async (world) => {
    const instance = await world.instance()
    const body = world.lineItemBody({ quantity: 'many', attributes: { overdraftType: 'Number', overdraftLimit: 'x' } })
    const said = problems(world, await world.putLineItem(instance, body))
    assert.ok(said.length >= 2)
  }),
  check('errors.put', 'only PUT line-items has an array; elsewhere message is a text', async (world) => {
    const said = await world.provisioning('POST', '/instances', { body: {} })
    refused(said, 400)
    text(said.body.message)
  }),
  check(
    ['lineItem.resetFrequency', 'versions.resetFrequency'],
    'resetFrequency is refused as undeclared',
    async (world) => {
      const instance = await world.instance()
      const body = world.lineItemBody({ attributes: { resetFrequency: 'MONTHLY' } })
      const said = problems(world, await world.putLineItem(instance, body))
      assert.ok(said.some((problem) => problem.includes("property 'resetFrequency' is not defined in the schema")))
    },
    { versions: ['v1.0'] },
  ),
  check(
    ['lineItem.resetFrequency', 'versions.resetFrequency'],
    'resetFrequency accepts only a string',
    async (world) => {
      const instance = await world.instance()
      const id = await world.lineItem(instance, { attributes: { resetFrequency: 'MONTHLY' } })
      const { body } = await world.provisioning('GET', path(instance, id))
      assert.equal(body.attributes.resetFrequency, 'MONTHLY')
      const wrong = world.lineItemBody({ attributes: { resetFrequency: 5 } })
      const said = problems(world, await world.putLineItem(instance, wrong))
      assert.ok(said.includes('$.attributes.resetFrequency: integer found, string expected'), said.join('; '))
    },
    { versions: ['v1.1'] },
  ),
  check('doc.obsolete', 'INACTIVE and OBSOLETE require an existing line item; OBSOLETE is final', async (world) => {
    const instance = await world.instance()
    const body = world.lineItemBody()
    for (const state of ['INACTIVE', 'OBSOLETE']) {
      refused(await world.putLineItem(instance, { ...body, state }), 400)
    }
    for (const state of ['DEPLOYED', 'INACTIVE', 'DEPLOYED', 'OBSOLETE']) {
      success(await world.putLineItem(instance, { ...body, state }))
    }
    for (const state of ['DEPLOYED', 'INACTIVE']) refused(await world.putLineItem(instance, { ...body, state }), 400)
    await world.provisioning('DELETE', path(instance, body.activationId))
  }),
  check('doc.inactive', 'an inactive line item serves no request until it is deployed again', async (world) => {
    const { instance, series, lineItem } = await world.shop()
    const body = world.lineItemBody({ activationId: lineItem, attributes: { rateTableSeries: series } })
    success(await world.putLineItem(instance, { ...body, state: 'INACTIVE' }))
    assert.equal(classOf(await one(world, instance)), '2')
    success(await world.putLineItem(instance, body))
    assert.equal(classOf(await one(world, instance)), '1')
  }),
  check('doc.window', 'a line item serves requests only from its start to its end', async (world) => {
    for (const [start, end, wanted] of [
      [-DAY, DAY, '1'],
      [DAY, 2 * DAY, '2'],
      [-2 * DAY, -DAY, '2'],
    ] as const) {
      const { instance } = await world.shop({ PhotoPrint: 3 }, { start: world.now() + start, end: world.now() + end })
      assert.equal(classOf(await one(world, instance)), wanted)
    }
  }),
  check(
    ['configuration.tolerant', 'limits.tolerant', 'does.configuration', 'doc.configGet', 'doc.configPatch'],
    'timezone.tolerant extends a line item to exactly 12 hours before its start and 12 hours after its end',
    async (world) => {
      const served = async (start: number, end: number): Promise<string> => {
        const change = { start: world.now() + start, end: world.now() + end }
        return classOf(await one(world, (await world.shop({ PhotoPrint: 3 }, change)).instance))
      }
      const set = (value: string): Promise<Reply> =>
        world.provisioning('PATCH', '/configuration', { body: [{ name: 'timezone.tolerant', value }] })
      const before = await configured(world, 'timezone.tolerant')
      world.later(() => set(before.value))
      success(await set('false'))
      assert.equal(await served(11 * HOUR, DAY), '2')
      assert.equal(await served(-DAY, -11 * HOUR), '2')
      success(await set('true'))
      const changed = await configured(world, 'timezone.tolerant')
      assert.equal(changed.value, 'true')
      assert.ok(Number.isInteger(changed.modified))
      assert.equal(changed.updatedBy, world.server.adminKeyId)
      assert.equal(await served(11 * HOUR, DAY), '1')
      assert.equal(await served(-DAY, -11 * HOUR), '1')
      assert.equal(await served(13 * HOUR, DAY), '2')
      assert.equal(await served(-DAY, -13 * HOUR), '2')
    },
    { needs: ['scratch'] },
  ),
  check(
    ['configuration.tolerant', 'doc.configGet'],
    'the configuration is an array with timezone.tolerant',
    async (world) => {
      const { value } = await configured(world, 'timezone.tolerant')
      assert.ok(['true', 'false'].includes(value))
    },
  ),
  check(
    'doc.period',
    'session.charge.period is listed, and accepts PT10M to PT24H',
    async (world) => {
      const before = await configured(world, 'session.charge.period')
      const set = (value: string): Promise<Reply> =>
        world.provisioning('PATCH', '/configuration', { body: [{ name: 'session.charge.period', value }] })
      world.later(() => set(before.value))
      for (const value of ['PT10M', 'PT24H', 'PT1H30M', 'PT1H']) {
        success(await set(value))
        assert.equal((await configured(world, 'session.charge.period')).value, value)
      }
      for (const value of ['PT9M', 'PT25H', 'PT30S', '1H', '']) refused(await set(value), 400)
    },
    { versions: ['v1.1'], needs: ['scratch'] },
  ),
  check('doc.overdraftNone', 'without overdraft no request is granted above the quantity', async (world) => {
    const { instance, lineItem } = await world.shop({ PhotoPrint: 3 }, { quantity: 10 })
    assert.equal(classOf((await world.access(instance, { PhotoPrint: 4 })).body.requestedItems[0]), '2')
    assert.equal(classOf((await world.access(instance, { PhotoPrint: 3 })).body.requestedItems[0]), '1')
    assert.equal(classOf(await one(world, instance)), '2')
    assert.equal(await world.used(instance, lineItem), 9)
  }),
  check('doc.overdraftNumber', 'overdraftType Number grants up to quantity and overdraftLimit', async (world) => {
    const attributes = { overdraftType: 'Number', overdraftLimit: 5 }
    const { instance, lineItem } = await world.shop({ PhotoPrint: 3 }, { quantity: 10, attributes })
    assert.equal(classOf((await world.access(instance, { PhotoPrint: 5 })).body.requestedItems[0]), '1')
    assert.equal(classOf(await one(world, instance)), '2')
    assert.equal(await world.used(instance, lineItem), 15)
  }),
  check('doc.overdraftUnlimited', 'overdraftType Unlimited is never exhausted', async (world) => {
    const { instance, lineItem } = await world.shop(
      { PhotoPrint: 3 },
      { quantity: 1, attributes: { overdraftType: 'Unlimited' } },
    )
    assert.equal(classOf((await world.access(instance, { PhotoPrint: 1000 })).body.requestedItems[0]), '1')
    assert.equal(await world.used(instance, lineItem), 3000)
  }),
]

async function configured(world: World, name: string): Promise<Json> {
  const { body } = await world.provisioning('GET', '/configuration')
  assert.ok(Array.isArray(body))
  const found = body.find((value: Json) => value.name === name)
  assert.ok(found, `${name} is in the configuration`)
  return found
}
