// A change of rules rewrites the accounts that can still be charged, not those of periods that are over.
import { afterEach, beforeEach, expect, it } from 'vitest'
import { deleteLineItem } from '../../../src/cloud/service-api/delete-line-item.ts'
import { mapLineItem } from '../../../src/cloud/service-api/map-line-item.ts'
import { removeConsumptionLimit, setConsumptionLimit } from '../../../src/cloud/service-api/set-consumption-limit.ts'
import { limitAccount } from '../../../src/core/accounts/account.ts'
import { wholeTokens } from '../../../src/core/pricing/amount.ts'
import { INSTANCE, Twin } from '../sync/twin.ts'

const DAY = 86_400_000
const PLACE = { instanceId: INSTANCE, lineItemId: 'ACT-1' }

let twin: Twin
let firstReset: number
beforeEach(async () => {
  twin = await Twin.open()
  await map('DEPLOYED')
  firstReset = twin.time + DAY
  await setLimit(5)
  // On the third day.
  twin.time += 2 * DAY
  const days = [0, 1, 2, 3].map((period) => ({ account: limitOf(period), cap: wholeTokens(5) }))
  await twin.store.transaction((tx) => tx.accounts.open(days))
})
afterEach(async () => twin[Symbol.asyncDispose]())

const map = (state: 'DEPLOYED' | 'OBSOLETE') => {
  const lineItem = { activationId: 'ACT-1', quantity: 100, start: 0, end: 2 ** 42, attributes: { elastic: true } }
  return mapLineItem(twin.store, INSTANCE, { ...lineItem, state }, twin.time)
}
const limitOf = (period: number) => limitAccount(INSTANCE, 'ACT-1', { type: 'user', value: 'Lisa' }, period)
const setLimit = (tokens: number, nextReset = firstReset) =>
  setConsumptionLimit(twin.store, PLACE, { limit: wholeTokens(tokens), frequency: 'DAILY', nextReset }, twin.time)
const caps = async () => {
  const accounts = [0, 1, 2, 3].map(limitOf)
  const pools = await twin.store.read((reader) => reader.accounts.get(accounts))
  return accounts.map((account) => Number(pools.get(account)?.capTarget) / 1_000_000)
}

it('a changed consumption limit applies to the period that is under way, and later ones', async () => {
  await setLimit(7, firstReset + 2 * DAY)
  expect(await caps()).toEqual([5, 5, 7, 7])
})

it('a consumption limit that is removed leaves nothing to grant in these periods', async () => {
  await removeConsumptionLimit(twin.store, PLACE, twin.time)
  expect(await caps()).toEqual([5, 5, 0, 0])
})

it('neither does a line item that is deleted', async () => {
  await map('OBSOLETE')
  await deleteLineItem(twin.store, INSTANCE, 'ACT-1', twin.time)
  expect(await caps()).toEqual([5, 5, 0, 0])
})
