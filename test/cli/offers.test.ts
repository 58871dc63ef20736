import { expect, test } from 'vitest'
import { AGENT_OFFERS_PATH } from '../../src/protocol/local/offers.ts'
import { instanceId } from './agent-status.ts'
import { fakeService } from './fake-service.ts'
import { tallygate } from './outside.ts'

const items = [
  { item: 'LaserCut', version: '1.0', lineItems: [{ activationId: 'FIRST-1000', rate: 0.85 }] },
  { item: 'LaserEngrave', lineItems: [{ activationId: 'FIRST-1000', formula: '0.1 * minutes' }] },
]
const found = (instances: readonly object[]) => ({ [`GET ${AGENT_OFFERS_PATH}`]: { body: { instances } } })

test('each item has a line with its version, its rate and who pays', async () => {
  await using agent = await fakeService('socket', found([{ instanceId, name: 'Workshop', policyRevision: 3, items }]))
  const { code, out } = await tallygate(['offers', '--socket', agent.address])
  expect(code).toBe(0)
  expect(out.split('\n').map((line) => line.split(/ {2,}/))).toEqual([
    ['ITEM', 'VERSION', 'RATE', 'LINE ITEM', 'INSTANCE'],
    ['LaserCut', '1.0', '0.85', 'FIRST-1000', `Workshop (${instanceId})`],
    ['LaserEngrave', '-', '0.1 * minutes', 'FIRST-1000', `Workshop (${instanceId})`],
    [''],
  ])
})

test('no items are said to be none, and --json is for programs', async () => {
  await using agent = await fakeService('socket', found([]))
  expect((await tallygate(['offers', '--socket', agent.address])).out).toBe('No items.\n')
  const { out } = await tallygate(['offers', '--json', '--socket', agent.address])
  expect(JSON.parse(out)).toEqual({ instances: [] })
})
