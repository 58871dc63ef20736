/** Consumption limits: most tokens of a line item for each requester, in periods of the calendar. */
import assert from 'node:assert/strict'
import { type Check, check } from '../check.ts'
import { DAY, HOUR, type Reply, type World, classOf, refused, success } from '../world.ts'

const path = (instance: string, lineItem: string): string =>
  `/instances/${instance}/line-items/${lineItem}/consumption-limit`

const limit = (world: World, instance: string, lineItem: string, body: Record<string, unknown>): Promise<Reply> =>
  world.call('PUT', path(instance, lineItem), { body })

async function isGranted(world: World, instance: string, user: string, count: number): Promise<boolean> {
  const [item] = (await world.access(instance, { A: count }, { user })).body.requestedItems
  return classOf(item) === '1'
}

/** The first instant of the month that begins so many months after this one. */
function monthAfter(now: number, months: number): number {
  const date = new Date(now)
  return Date.UTC(date.getUTCFullYear(), date.getUTCMonth() + months)
}

const options = { versions: ['v1.1'], needs: ['extensions'] } as const

export const consumptionLimitChecks: readonly Check[] = [
  check(
    ['limits.consumption', 'doc.limitRequester'],
    'only a requester that has reached its limit is refused on that line item',
    async (world) => {
      const { instance, lineItem } = await world.shop({ A: 1 })
      const terms = { limit: 5, frequency: 'DAILY', nextReset: world.now() + 12 * HOUR }
      success(await limit(world, instance, lineItem, terms))
      assert.deepEqual((await world.call('GET', path(instance, lineItem))).body, terms)
      assert.equal(await isGranted(world, instance, 'lisa', 4), true)
      assert.equal(await isGranted(world, instance, 'lisa', 2), false)
      assert.equal(await isGranted(world, instance, 'lisa', 1), true)
      assert.equal(await isGranted(world, instance, 'lisa', 0.001), false)
      assert.equal(await isGranted(world, instance, 'tom', 5), true)
      assert.equal(await world.used(instance, lineItem), 10)
      success(await world.call('DELETE', path(instance, lineItem)))
      assert.equal(await isGranted(world, instance, 'lisa', 1), true)
    },
    options,
  ),
  check(
    ['doc.limitRequester', 'limits.consumption'],
    'if the limit of one line item is reached, another line item without a limit serves the request',
    async (world) => {
      const { instance, series, lineItem } = await world.shop({ A: 1 }, { end: world.now() + 5 * DAY })
      const other = await world.lineItem(instance, { attributes: { rateTableSeries: series } })
      success(await limit(world, instance, lineItem, { limit: 2, frequency: 'WEEKLY', nextReset: world.now() + DAY }))
      assert.equal(await isGranted(world, instance, 'lisa', 5), true)
      assert.deepEqual([await world.used(instance, lineItem), await world.used(instance, other)], [2, 3])
    },
    options,
  ),
  check(
    'doc.limitFresh',
    'consumption before the limit was set does not count',
    async (world) => {
      const { instance, lineItem } = await world.shop({ A: 1 })
      assert.equal(await isGranted(world, instance, 'lisa', 50), true)
      success(await limit(world, instance, lineItem, { limit: 3, frequency: 'YEARLY', nextReset: world.now() + DAY }))
      assert.equal(await isGranted(world, instance, 'lisa', 3), true)
      assert.equal(await isGranted(world, instance, 'lisa', 1), false)
    },
    options,
  ),
  check(
    'limits.consumption',
    'a limit of zero, an unknown frequency, and a reset in the past are refused',
    async (world) => {
      const { instance, lineItem } = await world.shop({ A: 1 })
      const terms = { limit: 3, frequency: 'MONTHLY', nextReset: world.now() + DAY }
      for (const change of [{ limit: 0 }, { limit: -1 }, { frequency: 'HOURLY' }, { nextReset: world.now() - DAY }]) {
        refused(await limit(world, instance, lineItem, { ...terms, ...change }), 400)
      }
      refused(await world.call('GET', path(instance, lineItem)), 404)
    },
    options,
  ),
  check(
    ['doc.limitReset', 'limits.consumption'],
    'a monthly limit resets on the first of each month, whatever its length',
    async (world) => {
      const { instance, lineItem } = await world.shop({ A: 1 }, { quantity: 1000 })
      const resets = [1, 2, 3].map((months) => monthAfter(world.now(), months))
      success(await limit(world, instance, lineItem, { limit: 5, frequency: 'MONTHLY', nextReset: resets[0] }))
      for (const reset of resets) {
        assert.equal((await world.call('GET', path(instance, lineItem))).body.nextReset, reset)
        assert.equal(await isGranted(world, instance, 'lisa', 5), true)
        await world.advance(reset - 1 - world.now())
        assert.equal(await isGranted(world, instance, 'lisa', 1), false)
        await world.advance(1)
      }
      assert.equal(await isGranted(world, instance, 'lisa', 5), true)
      assert.equal(await world.used(instance, lineItem), 20)
    },
    { versions: ['v1.1'], needs: ['clock', 'extensions'] },
  ),
]
