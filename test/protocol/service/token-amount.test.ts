import { expect, test } from 'vitest'
import { createdActionsBody, replacedActionsBody } from '../../../src/protocol/service/actions.ts'
import { consumptionLimitBody } from '../../../src/protocol/service/consumption-limits.ts'

const ENTRANCES: readonly (readonly [string, (amount: number) => unknown, (value: unknown) => unknown])[] = [
  [
    'POST actions',
    (allocation) => [{ action: 'ALLOW', allocation }],
    (body) => createdActionsBody.safeParse(body).data?.[0]?.allocation,
  ],
  [
    'PUT actions',
    (allocation) => [{ action: 'ALLOW', allocation }],
    (body) => replacedActionsBody.safeParse(body).data?.[0]?.allocation,
  ],
  [
    'a consumption limit',
    (limit) => ({ limit, frequency: 'DAILY', nextReset: 0 }),
    (body) => consumptionLimitBody.safeParse(body).data?.limit,
  ],
]

test.each(ENTRANCES)('%s rounds tokens half to even, but no amount to 0', (_what, bodyOf, amountIn) => {
  const read = (amount: number): unknown => amountIn(bodyOf(amount))
  expect([1.5, 1e-6, 1.0000015, 1.0000025, 100 / 3].map(read)).toEqual([
    1_500_000n,
    1n,
    1_000_002n,
    1_000_002n,
    33_333_333n,
  ])
  expect([1e-7, 5e-7, 1e13, -1].map(read)).toEqual([undefined, undefined, undefined, undefined])
})

test('an amount that is too fine is refused with the smallest amount', () => {
  const { error } = createdActionsBody.safeParse([{ action: 'ALLOW', allocation: 1e-7 }])
  expect(error?.issues).toMatchObject([
    { path: [0, 'allocation'], message: 'is above 0 and below 0.000001 tokens, the smallest amount' },
  ])
})
