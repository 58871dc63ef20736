// The offline policy of a line item: who has it, how much it exposes, and what becomes of it.
import { afterEach, beforeEach, expect, it } from 'vitest'
import { MICRO_MAX } from '../../../src/core/pricing/amount.ts'
import { deleteLineItem } from '../../../src/cloud/service-api/delete-line-item.ts'
import { setOfflinePolicy, showOfflinePolicy } from '../../../src/cloud/policy/offline-policy.ts'
import { Policies } from '../../../src/cloud/policy/load-policy.ts'
import { offlinePolicyState } from '../../../src/protocol/edge/administration.ts'
import { TestDevice } from '../sync/test-device.ts'
import { INSTANCE, Twin } from '../sync/twin.ts'

let twin: Twin
beforeEach(async () => {
  twin = await Twin.open()
  await twin.setLineItem('ACT-1', { quantity: 1_000n })
})
afterEach(async () => twin[Symbol.asyncDispose]())

const set = (lineItemId: string, cap: bigint) => setOfflinePolicy(twin, INSTANCE, lineItemId, cap)
const show = (lineItemId: string) => showOfflinePolicy(twin, INSTANCE, lineItemId)
const load = () => {
  const policies = new Policies({ max: 1, undecidedClock: 'refuse' })
  return twin.store.read((reader) => policies.of(reader, INSTANCE))
}
const capOf = async (lineItemId: string) => (await load())?.overspendCapsMax.get(lineItemId)

it('a line item without one is refused without tokens', async () => {
  expect(await show('ACT-1')).toEqual({
    ...{ instanceId: INSTANCE, lineItemId: 'ACT-1' },
    ...{ policy: 'refuse', overspendCap: '0', devices: 0, exposure: '0' },
  })
})

it('each line item has its own, which all devices together can overspend', async () => {
  await twin.setLineItem('ACT-2', { quantity: 1_000n })
  await TestDevice.join(twin)
  await TestDevice.join(twin)
  await set('ACT-2', 70n)
  expect(await set('ACT-1', 50n)).toEqual({
    ...{ instanceId: INSTANCE, lineItemId: 'ACT-1' },
    ...{ policy: 'essential', overspendCap: '50', devices: 2, exposure: '100' },
  })
  expect(await show('ACT-2')).toMatchObject({ policy: 'essential', overspendCap: '70', exposure: '140' })
  expect(await show('ACT-1')).toMatchObject({ overspendCap: '50' })
})

it('a lowered cap applies to the rules, and the higher one is still accepted from devices that have it', async () => {
  await twin.setLineItem('ACT-2', { quantity: 1_000n })
  await set('ACT-2', 90n)
  await set('ACT-1', 50n)
  await set('ACT-1', 20n)
  expect(await show('ACT-1')).toMatchObject({ overspendCap: '20' })
  expect(await capOf('ACT-1')).toBe(50n)
  const rules = (await load())?.policy.lineItems.map(({ id, offline }) => [id, offline])
  expect(rules).toEqual([
    ['ACT-1', { policy: 'essential', overspendCap: 20n }],
    ['ACT-2', { policy: 'essential', overspendCap: 90n }],
  ])
  await set('ACT-1', 60n)
  expect(await capOf('ACT-1')).toBe(60n)
})

it('all devices together can overspend at most the maximum of a pool', async () => {
  await TestDevice.join(twin)
  expect(await set('ACT-1', MICRO_MAX)).toMatchObject({ exposure: String(MICRO_MAX) })
  await set('ACT-1', 5n)
  await TestDevice.join(twin)
  await expect(set('ACT-1', MICRO_MAX)).rejects.toMatchObject({ code: 'BAD_REQUEST' })
  expect(await show('ACT-1')).toMatchObject({ overspendCap: '5', devices: 2 })
})

it('shows the exposure of devices that have enrolled since, beyond the maximum of a pool', async () => {
  await TestDevice.join(twin)
  await set('ACT-1', MICRO_MAX)
  await TestDevice.join(twin)
  expect(offlinePolicyState.parse(await show('ACT-1'))).toMatchObject({ devices: 2, exposure: 2n * MICRO_MAX })
})

it('is recorded in the audit log', async () => {
  await set('ACT-1', 1_500_000n)
  const { records } = await twin.store.read((reader) => reader.edge.audit.list({ traffic: false }, 1))
  expect(records[0]).toMatchObject({
    ...{ action: 'SET_OFFLINE_POLICY', instanceId: INSTANCE, lineItemId: 'ACT-1' },
    detail: JSON.stringify({ overspendCap: '1.5' }),
  })
})

it('a line item that is deleted and mapped again begins without its offline policy', async () => {
  await set('ACT-1', 50n)
  await twin.setLineItem('ACT-1', { quantity: 1_000n, state: 'OBSOLETE' })
  await deleteLineItem(twin.store, INSTANCE, 'ACT-1', twin.time)
  await twin.setLineItem('ACT-1', { quantity: 1_000n })
  expect(await show('ACT-1')).toMatchObject({ policy: 'refuse', overspendCap: '0', exposure: '0' })
  // What a device has spent by the policy from before is still believed.
  expect(await capOf('ACT-1')).toBe(50n)
})
