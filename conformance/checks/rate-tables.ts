/** Rate tables: operations, and which table and item counts. */
import assert from 'node:assert/strict'
import { type Check, check } from '../check.ts'
import { DAY, HOUR, type Json, type World, classOf, ratedItems, refused, requester, success, text } from '../world.ts'

const tablesOf = async (world: World, series: string): Promise<readonly Json[]> => {
  const { body } = await world.provisioning('GET', '/rate-tables')
  assert.ok(Array.isArray(body))
  return body.filter((table: Json) => table.series === series)
}

const query = (series: string, version: string): string => `/rate-tables?series=${series}&version=${version}`

/** What one of the item costs; null when it is refused. */
async function priceOf(world: World, instance: string, item: string): Promise<number | null> {
  const [said] = (await world.access(instance, { [item]: 1 })).body.requestedItems
  return classOf(said) === '1' ? said.totalTokensCharged : null
}

/** Formulas without variables, and what one of the item costs. */
const FORMULAS: Readonly<Record<string, number>> = {
  'FLOOR.MATH(2.9)': 2,
  'CEILING.MATH(2.1)': 3,
  'POWER(2,3)': 8,
  'PRODUCT(2,3)': 6,
  'SUM(2,3)': 5,
  'ABS(-4)': 4,
  'MIN(2,3)': 2,
  'MAX(2,3)': 3,
  'ROUND(2.345,1)': 2.3,
  '1+2*3': 7,
  '(1+2)*3': 9,
  '7-2/4': 6.5,
  '2^3': 8,
  '-1+2.5': 1.5,
}

export const rateTableChecks: readonly Check[] = [
  check(
    'doc.formula',
    'formulas of constants have the same value as in a spreadsheet',
    async (world) => {
      const items = Object.keys(FORMULAS).map((formula, index) => ({ name: `F${index}`, formula }))
      const rateTableSeries = world.unique('series')
      success(await world.rateTable({ series: rateTableSeries, items }))
      const instance = await world.instance()
      await world.lineItem(instance, { attributes: { rateTableSeries } })
      const counts = Object.fromEntries(items.map(({ name }) => [name, 1]))
      const { body } = await world.access(instance, counts)
      const costs = body.requestedItems.map((item: Json) => item.totalTokensCharged as unknown)
      assert.deepEqual(costs, Object.values(FORMULAS))
    },
    { versions: ['v1.1'] },
  ),
  check(
    'doc.variables',
    'a formula gets the variables of a request by name, whatever their case; without them the item is refused',
    async (world) => {
      const rateTableSeries = world.unique('series')
      const items = [{ name: 'A', formula: 'MAX(basePrice * quantity - DISCOUNT, 1)' }]
      success(await world.rateTable({ series: rateTableSeries, items }))
      const instance = await world.instance()
      const lineItem = await world.lineItem(instance, { attributes: { rateTableSeries } })
      const ask = async (variables?: Record<string, number>): Promise<Json> => {
        const requestedItems = [{ item: 'A', count: 2, ...(variables === undefined ? {} : { variables }) }]
        const body = { requester: requester(), requestedItems }
        return (await world.access(instance, {}, { body })).body.requestedItems[0]
      }
      assert.equal((await ask({ BASEPRICE: 2.5, Quantity: 4, discount: 1 })).totalTokensCharged, 18)
      assert.equal((await ask({ basePrice: 0, quantity: 4, discount: 0 })).totalTokensCharged, 2)
      for (const variables of [undefined, { basePrice: 1, quantity: 4 }])
        assert.equal(classOf(await ask(variables)), '2')
      assert.equal(await world.used(instance, lineItem), 20)
    },
    { versions: ['v1.1'], needs: ['extensions'] },
  ),
  check(
    'doc.formulaOnly',
    'an item with a rate and a formula, with neither, or with an invalid formula is refused',
    async (world) => {
      for (const wrong of [{ rate: 1, formula: '1+1' }, {}, { formula: 'SUM(' }, { formula: 'SYSTEM(1)' }]) {
        const items = [{ name: 'A', ...wrong }]
        refused(await world.rateTable({ series: world.unique('series'), items }), 400)
      }
    },
    { versions: ['v1.1'] },
  ),
  check(
    ['rateTables.get', 'rateTables.post', 'rateTable.effective', 'doc.tableSaved'],
    'GET returns every created table unchanged, in effect or not',
    async (world) => {
      const series = world.unique('series')
      const items = ratedItems({ 'PhotoPrint/1.0': 3, Plain: 0.5 })
      const past = { series, version: '1', effectiveFrom: world.now() - DAY, items }
      const future = { series, version: '2', effectiveFrom: world.now() + DAY, items }
      world.later(() => world.provisioning('DELETE', query(series, '2')))
      for (const table of [past, future]) {
        const saved = await world.rateTable(table)
        assert.equal(saved.status, 201, saved.text)
        text(saved.body.message)
      }
      const found = await tablesOf(world, series)
      assert.equal(found.length, 2)
      assert.partialDeepStrictEqual(
        found.toSorted((a, b) => a.effectiveFrom - b.effectiveFrom),
        [past, future],
      )
      for (const { created } of found) assert.ok(Number.isInteger(created))
    },
  ),
  check('doc.tableSaved', 'a duplicate of series and version responds 409 with error', async (world) => {
    const series = await world.rates({ A: 1 })
    const again = await world.rateTable({ series, items: ratedItems({ A: 2 }) })
    refused(again, 409)
    text(again.body.error)
  }),
  check(
    ['rateTables.delete', 'states.rule3', 'doc.tableDelete'],
    'a table can be deleted before it is in effect, but not afterwards',
    async (world) => {
      const series = await world.rates({ A: 1 })
      success(
        await world.rateTable({ series, version: '2', effectiveFrom: world.now() + DAY, items: ratedItems({ A: 2 }) }),
      )
      const gone = await world.provisioning('DELETE', query(series, '2'))
      assert.equal(gone.status, 204, gone.text)
      refused(await world.provisioning('DELETE', query(series, '1')), 409)
      assert.deepEqual(
        (await tablesOf(world, series)).map(({ version }) => version),
        ['1'],
      )
      refused(await world.provisioning('DELETE', query(series, '2')), 404)
    },
  ),
  check(
    'doc.tableDelete',
    'DELETE requires a version, finds tables by series, and accepts a trailing slash',
    async (world) => {
      const series = world.unique('series')
      success(await world.rateTable({ series, effectiveFrom: world.now() + DAY, items: ratedItems({ A: 1 }) }))
      refused(await world.provisioning('DELETE', `/rate-tables?series=${series}`), 400)
      refused(await world.provisioning('DELETE', query(world.unique('other'), '1')), 404)
      success(await world.provisioning('DELETE', `/rate-tables/?series=${series}&version=1`))
    },
  ),
  check(['doc.series', 'does.rates'], 'a line item is priced by its own series', async (world) => {
    const { instance } = await world.shop({ A: 2 })
    await world.rates({ A: 9, B: 1 })
    assert.equal(await priceOf(world, instance, 'A'), 2)
    assert.equal(await priceOf(world, instance, 'B'), null)
  }),
  check('doc.latest', 'the table that took effect last applies, whatever its version', async (world) => {
    const { instance, series } = await world.ownShop({ A: 2 })
    const later = { series, version: '0', effectiveFrom: world.now() - HOUR, items: ratedItems({ A: 5 }) }
    const earlier = { series, version: '9', effectiveFrom: world.now() - 2 * DAY, items: ratedItems({ A: 7 }) }
    const future = { series, version: '5', effectiveFrom: world.now() + DAY, items: ratedItems({ A: 11 }) }
    world.later(() => world.provisioning('DELETE', query(series, '5')))
    for (const table of [later, earlier, future]) success(await world.rateTable(table))
    assert.equal(await priceOf(world, instance, 'A'), 5)
  }),
  check(
    ['doc.latest', 'rateTable.effective'],
    'a future table applies from the moment it takes effect',
    async (world) => {
      const { instance, series } = await world.ownShop({ A: 2 })
      success(
        await world.rateTable({ series, version: '2', effectiveFrom: world.now() + HOUR, items: ratedItems({ A: 5 }) }),
      )
      await world.advance(HOUR - 1)
      assert.equal(await priceOf(world, instance, 'A'), 2)
      await world.advance(1)
      assert.equal(await priceOf(world, instance, 'A'), 5)
    },
    { needs: ['clock'] },
  ),
  check(
    'doc.exactVersion',
    'items match by exact version; an item without version matches only one without version',
    async (world) => {
      const { instance } = await world.shop({ 'A/1.0': 2, B: 3 })
      assert.equal(await priceOf(world, instance, 'A/1.0'), 2)
      assert.equal(await priceOf(world, instance, 'A/1'), null)
      assert.equal(await priceOf(world, instance, 'A'), null)
      assert.equal(await priceOf(world, instance, 'B/1.0'), null)
      assert.equal(await priceOf(world, instance, 'B'), 3)
    },
  ),
  check(
    'doc.noSeries',
    'a line item with an empty series is priced by the tables without one',
    async (world) => {
      const item = world.unique('Item')
      const version = world.unique('version')
      const before = ((await world.provisioning('GET', '/rate-tables')).body as readonly Json[])
        .filter(({ series, effectiveFrom }) => series === undefined && effectiveFrom <= world.now())
        .map(({ effectiveFrom }) => effectiveFrom as number)
      const effectiveFrom = Math.max(world.now() - DAY, ...before.map((time) => time + 1))
      success(await world.rateTable({ version, effectiveFrom, items: ratedItems({ [item]: 4 }) }))
      const instance = await world.instance()
      await world.lineItem(instance, { attributes: { rateTableSeries: '' } })
      assert.equal(await priceOf(world, instance, item), 4)
      const other = await world.shop({ A: 1 })
      assert.equal(await priceOf(world, other.instance, item), null)
    },
    { needs: ['scratch'] },
  ),
  check('rateTables.post', 'a table without version, items or time is refused', async (world) => {
    const table = {
      series: world.unique('series'),
      version: '1',
      effectiveFrom: world.now() + DAY,
      items: ratedItems({ A: 1 }),
    }
    for (const missing of ['version', 'items', 'effectiveFrom']) {
      refused(await world.provisioning('POST', '/rate-tables', { body: { ...table, [missing]: undefined } }), 400)
    }
  }),
]
