// What becomes of the offline policy of a line item when the line item goes.
import { expect, it } from 'vitest'
import { deleteLineItem } from '../../../src/cloud/service-api/delete-line-item.ts'
import { overspendCaps, setOfflinePolicy, showOfflinePolicy } from '../../../src/cloud/policy/offline-policy.ts'
import { INSTANCE, Twin } from '../sync/twin.ts'

it('a line item that is deleted and mapped again begins without its offline policy', async () => {
  await using twin = await Twin.open()
  await twin.setLineItem('ACT-1', { quantity: 1_000n })
  await setOfflinePolicy(twin, INSTANCE, 'ACT-1', 50n)
  await twin.setLineItem('ACT-1', { quantity: 1_000n, state: 'OBSOLETE' })
  await deleteLineItem(twin.store, INSTANCE, 'ACT-1', twin.time)
  await twin.setLineItem('ACT-1', { quantity: 1_000n })
  const shown = await showOfflinePolicy(twin, INSTANCE, 'ACT-1')
  expect(shown).toMatchObject({ policy: 'refuse', overspendCap: '0', exposure: '0' })
  // What a device has spent by the policy from before is still believed.
  const caps = await twin.store.read((reader) => overspendCaps(reader, [INSTANCE]))
  expect(caps.get(`${INSTANCE}/ACT-1`)).toBe(50n)
})
