/** Usage rows: what is recorded of charges, refunds and refusals. */
import assert from 'node:assert/strict'
import { type Check, check } from '../check.ts'
import { HOUR, type Json, MINUTE, type World, success, uuid } from '../world.ts'

/** The rows of an instance, oldest first. */
async function rows(world: World, instance: string): Promise<readonly Json[]> {
  const path = `/usage?instanceId=${instance}&format=ndjson`
  const answer = await world.provisioning('GET', path, { version: 'v1.1' })
  success(answer)
  return answer.text
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line))
}

export const usageChecks: readonly Check[] = [
  check(
    ['doc.usageRows', 'doc.usageCorrelation'],
    'a request writes a row for each item, granted or refused, with the columns of the data warehouse',
    async (world) => {
      const accountId = world.unique('account')
      const instance = await world.instance(accountId)
      const attributes = { rateTableSeries: await world.rates({ 'A/1.0': 3 }) }
      const lineItem = await world.lineItem(instance, { quantity: 100, attributes })
      const { body } = await world.access(instance, { 'A/1.0': 2, Nothing: 1 }, { user: 'lisa' })
      const found = await rows(world, instance)
      assert.equal(found.length, 2)
      for (const row of found) {
        assert.equal(row.correlationId, body.correlationId)
        assert.partialDeepStrictEqual(row, {
          consumerId: 'lisa',
          consumerType: 'user',
          accountId,
          instanceId: instance,
        })
        assert.ok(Math.abs(row.usageTime - world.now()) < HOUR)
        assert.ok(Number.isInteger(row.writeTime))
        assert.equal(typeof row.tenantId, 'string')
      }
      const [granted, refusal] = found
      assert.partialDeepStrictEqual(granted, { activationId: lineItem, mappedEntitledCount: 100, used: 6, item: 'A' })
      assert.equal(refusal.item, 'Nothing')
      assert.ok(!refusal.activationId, 'a row of a refusal names no line item')
    },
    { needs: ['extensions'] },
  ),
  check(
    'doc.usageRows',
    'a charge over two line items has a row for each, and used is the total of each',
    async (world) => {
      const instance = await world.instance()
      const attributes = { rateTableSeries: await world.rates({ A: 6 }) }
      const first = await world.lineItem(instance, { quantity: 12, end: world.now() + HOUR, attributes })
      const second = await world.lineItem(instance, { quantity: 100, attributes })
      await world.access(instance, { A: 5 })
      const found = (await rows(world, instance)).map(({ activationId, used }) => [activationId, used] as unknown)
      assert.deepEqual(found, [
        [first, 12],
        [second, 18],
      ])
    },
    { needs: ['extensions'] },
  ),
  check(
    ['doc.usageRows', 'doc.usageCorrelation'],
    'a session writes rows for its charge, each automatic charge and the refund, which add up to used',
    async (world) => {
      const { instance, lineItem } = await world.shop({ A: 3 })
      const session = await world.session(instance)
      const { body } = await world.ask(session, { A: 2 })
      await world.advance(HOUR)
      success(await world.heartbeat(session))
      await world.advance(20 * MINUTE)
      success(await world.call('DELETE', `/sessions/${session}`))
      const found = await rows(world, instance)
      assert.deepEqual(
        found.map(({ used }) => used as number),
        [6, 12, 8],
      )
      const ids = found.map(({ correlationId }) => uuid(correlationId))
      assert.equal(ids[0], body.correlationId)
      assert.equal(new Set(ids).size, 3)
      assert.equal(await world.used(instance, lineItem), 8)
    },
    { needs: ['clock', 'extensions'] },
  ),
]
