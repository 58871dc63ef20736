import { expect, test } from 'vitest'
import { REFUSAL_REASONS, isShortage } from '../../../src/core/rules/refusal-reasons.ts'

test('a shortage is a refusal that a top-up or a recall may end', () => {
  const reasons = Object.keys(REFUSAL_REASONS) as (keyof typeof REFUSAL_REASONS)[]
  expect(reasons.filter(isShortage)).toEqual([
    'INSUFFICIENT_TOKENS',
    'GRANT_EXHAUSTED',
    'GRANT_EXPIRED',
    'DEVICE_REFUSED',
    'POOL_IN_RECOVERY',
    'COUNTER_FULL',
    'ALLOCATION_EXHAUSTED',
    'CONSUMPTION_LIMIT_REACHED',
  ])
})
