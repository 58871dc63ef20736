// Which accounts a device may come to charge within a horizon: the edges of windows, periods and tolerance.
import { describe, expect, it } from 'vitest'
import { accountsInSight } from '../../../src/agent/ledger/accounts-in-sight.ts'
import { actionAccount, lineAccount } from '../../../src/core/accounts/account.ts'
import { type LineItem, type Period, TOLERANCE_MS } from '../../../src/core/rules/policy.ts'
import { policyInForce } from '../harness.ts'
import { INSTANCE } from '../sync/fake-cloud.ts'

const NOW = 1_800_000_000_000
const HORIZON = 1_000

async function inSight(changes: Partial<LineItem>, timezoneTolerant = false): Promise<readonly string[]> {
  const { policy } = (await policyInForce(1)).compiled
  const [item] = policy.lineItems
  const lineItem: LineItem = { ...item!, startsAt: NOW, endsAt: NOW + HORIZON, ...changes }
  const reading = { now: NOW, earliest: 0, latest: null }
  return accountsInSight({ ...policy, timezoneTolerant, lineItems: [lineItem] }, reading, HORIZON)
}

const period = (from: number | null, until: number | null): Partial<LineItem> => {
  const one: Period = { index: 0, from, until }
  return { periods: [one] }
}

describe('the pool of a line item', () => {
  it.each<[string, boolean, Partial<LineItem>, boolean?]>([
    ['that is usable now', true, {}],
    ['that is not elastic', false, { elastic: false }],
    ['that is not deployed', false, { state: 'INACTIVE' }],
    ['that starts at the end of the horizon', true, { startsAt: NOW + HORIZON }],
    ['that starts after it', false, { startsAt: NOW + HORIZON + 1 }],
    ['that starts after it by no more than the tolerance', true, { startsAt: NOW + HORIZON + TOLERANCE_MS }, true],
    ['that starts after it by more', false, { startsAt: NOW + HORIZON + TOLERANCE_MS + 1 }, true],
    ['that ends now', true, { endsAt: NOW }],
    ['that has ended', false, { endsAt: NOW - 1 }],
    ['that has ended within the tolerance', true, { endsAt: NOW - TOLERANCE_MS }, true],
    ['that has ended before it', false, { endsAt: NOW - TOLERANCE_MS - 1 }, true],
    ['in a period that never begins or ends', true, period(null, null)],
    ['in a period that begins at the end of the horizon', true, period(NOW + HORIZON, null)],
    ['in a period that begins after it', false, period(NOW + HORIZON + 1, null)],
    ['in a period that ends right after now', true, period(null, NOW + 1)],
    ['in a period that ends now', false, period(null, NOW)],
    ['without periods', false, { periods: [] }],
  ])('%s: %s', async (_name, expected, changes, tolerant = false) => {
    expect(await inSight(changes, tolerant)).toEqual(expected ? [lineAccount(INSTANCE, 'line-1', 0)] : [])
  })
})

it('allocations are in sight with their line item, actions without one are not', async () => {
  const action = (id: string, allocation: bigint | null) =>
    ({ id, name: null, conditionId: 'c', effect: 'ALLOW', allocation }) as const
  const actions = [action('a', 5n), action('b', null)]
  expect(await inSight({ actions, periods: [] })).toEqual([actionAccount(INSTANCE, 'line-1', 'a')])
  expect(await inSight({ actions, endsAt: NOW - 1 })).toEqual([])
})
