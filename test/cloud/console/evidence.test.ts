// What the page of a device says about its epochs: forks, contested use and settlement.
import { afterEach, beforeEach, expect, it } from 'vitest'
import { EdgeClient } from '../devices/edge-client.ts'
import { topUpRequest } from '../sync/test-device.ts'
import { DAY, type Twin, openTwin } from '../harness.ts'
import { Browser } from './browse.ts'

let twin: Twin
let instanceId: string

beforeEach(async () => {
  twin = await openTwin()
  instanceId = await twin.shop({ quantity: 100 }, 3)
})
afterEach(() => twin[Symbol.asyncDispose]())

const pageOf = async ({ id }: EdgeClient): Promise<string> =>
  (await (await Browser.signedIn(twin)).open(`/devices/${id}`)).page

it('says that nothing was contested', async () => {
  const client = await EdgeClient.join(twin, instanceId)
  await client.device.sync()
  const page = await pageOf(client)
  expect(page).toContain('No segment contradicts another one.')
  expect(page).not.toContain('tallygate verify')
})

it('shows the segments of a copy, why the epoch was fenced, and the ids of what the copy used', async () => {
  const client = await EdgeClient.join(twin, instanceId)
  const line = client.line('ACT-1')
  await client.device.sync([topUpRequest(line, 10_000_000n)])
  const copy = client.device.copy()
  await client.device.sync()
  copy.charge({ lineItemId: 'ACT-1', accounts: [line], amount: 3_000_000n })
  const other = await copy.seal()
  await copy.sync()
  const page = await pageOf(client)
  expect(page).toContain('two writers used the identity of this device')
  expect(page).toContain(other.hash)
  expect(page).toContain(client.device.state.hash)
  const exported = await twin.usage(instanceId)
  const [record] = exported.filter(({ source }) => source.kind === 'device')
  expect(page).toContain('Use that another writer of this device reported')
  expect(page).toContain(`<code>${record?.correlationId}</code>`)
})

it('says that it shows the newest epochs only', async () => {
  const client = await EdgeClient.join(twin, instanceId)
  const NOTE = 'The newest 10 are shown.'
  for (let epochs = 1; epochs < 10; epochs += 1) await client.device.attach()
  expect(await pageOf(client)).not.toContain(NOTE)
  await client.device.attach()
  expect(await pageOf(client)).toContain(NOTE)
})

it('shows how a silent device was settled', async () => {
  const client = await EdgeClient.join(twin, instanceId)
  await client.device.sync([topUpRequest(client.line('ACT-1'), 10_000_000n)])
  twin.now += 40 * DAY
  await twin.tick()
  const page = await pageOf(client)
  expect(page).toContain('its unreported tokens count as used, until reports show otherwise')
})
