/** Explanations are bounded: a policy of any size gives a refusal of a size that fits a log line and an answer. */
import { expect, test } from 'vitest'
import { type AccountId, parseAccount } from '../../../src/core/accounts/account.ts'
import { compilePolicy } from '../../../src/core/rules/compile.ts'
import { decide } from '../../../src/core/rules/decide.ts'
import { REJECTION_DETAILS_MAX, type AvailableBalance, exactly } from '../../../src/core/rules/decision.ts'
import type { Action, LineItem } from '../../../src/core/rules/policy.ts'

const always = [{ index: 0, from: null, until: null }]
const some: Action = { id: 'some', name: null, conditionId: null, effect: 'ALLOW', allocation: 5_000_000n }
const usable: Omit<LineItem, 'id'> = {
  state: 'DEPLOYED',
  elastic: true,
  rateTableSeries: '',
  startsAt: 0,
  endsAt: 1000,
  quantity: 10_000_000n,
  overdraft: 0n,
  periods: always,
  actions: [some],
  consumptionLimit: { limit: 5_000_000n, periods: always },
}

function refusal(
  change: Partial<LineItem>,
  availableOf: AvailableBalance | ((account: AccountId) => AvailableBalance),
  formula?: string,
) {
  const balance = typeof availableOf === 'function' ? availableOf : () => availableOf
  const ids = Array.from({ length: 3 * REJECTION_DETAILS_MAX }, (_, index) => `line item ${index}`)
  const rate = { digits: 1n, scale: 0 }
  const table = { version: '1', effectiveFrom: 0 }
  const compiled = compilePolicy({
    instanceId: 'an instance',
    revision: 1,
    lineItems: ids.map((id): LineItem => ({ id, ...usable, ...change })),
    conditions: [],
    rateTables: [
      {
        ...table,
        series: '',
        items: [{ name: 'scan', version: '', ...(formula === undefined ? { rate } : { formula }) }],
      },
      { ...table, series: 'other', items: [{ name: 'print', version: '', rate }] },
    ],
    timezoneTolerant: false,
    undecidedClock: 'refuse',
  })
  const requester = { type: 'user', value: 'LisaBarry', dictionary: {} }
  const request = { requester, items: [{ name: 'scan', version: '', count: { digits: 1n, scale: 0 } }] }
  const [outcome] = decide(compiled.at(exactly(500)), request, balance, 'BEST_EFFORT').items
  if (outcome?.outcome !== 'REFUSED') throw new Error('nothing here is granted')
  return outcome
}

const full: AvailableBalance = { left: 'UNLIMITED', shortage: 'POOL' }
const empty: AvailableBalance = { left: 0n, shortage: 'POOL' }

test.each([
  ['NO_USABLE_LINE_ITEM', 'ENDED', { endsAt: 499 }, full],
  ['ITEM_NOT_RATED', 'SERIES_DOES_NOT_RATE_ITEM', { rateTableSeries: 'other' }, full],
  ['ITEM_NOT_RATED', 'SERIES_HAS_NO_TABLE', { rateTableSeries: 'none' }, full],
  ['DENIED_BY_RULE', 'RULE_DENIES', { actions: [{ ...some, effect: 'DENY', allocation: null }] }, full],
  ['DENIED_BY_RULE', 'RULE_ERROR', { actions: [{ ...some, conditionId: 'missing' }] }, full],
  ['INSUFFICIENT_TOKENS', 'TOO_FEW_TOKENS', {}, empty],
] as const)('%s names no more than so many line items with %s', (reason, why, change, balance) => {
  const refused = refusal(change, balance)
  expect(refused.reason).toBe(reason)
  expect(refused.rejectionDetails).toHaveLength(REJECTION_DETAILS_MAX)
  expect(refused.rejectionDetails.map((rejectionDetail) => rejectionDetail.why)).toContain(why)
})

test('a formula that fails is named for each line item, up to a limit', () => {
  const { reason, rejectionDetails } = refusal({}, full, 'pages * 2')
  expect(reason).toBe('FORMULA_FAILED')
  expect(rejectionDetails).toHaveLength(REJECTION_DETAILS_MAX)
  expect(rejectionDetails[0]).toEqual({ lineItemId: 'line item 0', why: 'FORMULA_VARIABLE_MISSING' })
})

test('a shortage names every account that is too small by itself, with its balance and the need', () => {
  const only = refusal({}, empty).rejectionDetails.filter(({ lineItemId }) => lineItemId === 'line item 0')
  expect(only).toEqual(
    [
      { why: 'TOO_FEW_TOKENS', account: 'line/an%20instance/line%20item%200/0' },
      { why: 'ALLOCATION_TOO_SMALL', account: 'action/an%20instance/line%20item%200/some' },
      { why: 'LIMIT_TOO_SMALL', account: 'limit/an%20instance/line%20item%200/user/LisaBarry/0' },
    ].map((expected) => ({ ...expected, lineItemId: 'line item 0', actionId: 'some', needed: 1_000_000n, left: 0n })),
  )
})

test.each([
  ['POOL', 'POOL', 'INSUFFICIENT_TOKENS'],
  ['POOL', 'RECOVERY', 'POOL_IN_RECOVERY'],
  ['RECOVERY', 'POOL', 'POOL_IN_RECOVERY'],
  ['POOL', 'COUNTER', 'COUNTER_FULL'],
  ['COUNTER', 'POOL', 'COUNTER_FULL'],
  ['COUNTER', 'RECOVERY', 'POOL_IN_RECOVERY'],
  ['RECOVERY', 'COUNTER', 'POOL_IN_RECOVERY'],
  ['COUNTER', 'GRANT', 'GRANT_EXHAUSTED'],
  ['POOL', 'GRANT', 'GRANT_EXHAUSTED'],
  ['GRANT', 'POOL', 'GRANT_EXHAUSTED'],
  ['GRANT', 'RECOVERY', 'GRANT_EXHAUSTED'],
  ['GRANT', 'GRANT_EXPIRED', 'GRANT_EXPIRED'],
  ['GRANT_EXPIRED', 'GRANT', 'GRANT_EXPIRED'],
  ['POOL', 'DEVICE_REFUSED', 'DEVICE_REFUSED'],
  ['DEVICE_REFUSED', 'GRANT_EXPIRED', 'DEVICE_REFUSED'],
] as const)('a shortage of one line item for %s and of the others for %s is %s', (first, others, reason) => {
  const balance = (account: AccountId): AvailableBalance => {
    const parsed = parseAccount(account)
    if (parsed?.kind !== 'line') return full
    return { left: 0n, shortage: parsed.lineItemId === 'line item 0' ? first : others }
  }
  expect(refusal({}, balance).reason).toBe(reason)
})

test('the reason comes from the first check that fails, whether later ones fail or not', () => {
  const balance = (account: AccountId): AvailableBalance =>
    parseAccount(account)?.kind === 'line' ? empty : { left: 0n, shortage: 'GRANT' }
  expect(refusal({}, balance).reason).toBe('INSUFFICIENT_TOKENS')
})
