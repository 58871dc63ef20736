import { expect, it } from 'vitest'
import { lineItemOf } from '../../../src/cloud/policy/line-item-of.ts'
import type { LineItemRecord } from '../../../src/cloud/storage/records.ts'

const NOW = Date.UTC(2026, 4, 6)
const record = {
  id: 'A',
  state: 'DEPLOYED',
  elastic: true,
  rateTableSeries: null,
  start: NOW,
  end: NOW + 1,
  quantity: 10_000_000n,
  overdraftType: null,
  overdraftLimit: null,
  calendar: { frequency: 'NONE', first: 0, firstAt: NOW, next: 1 },
} as unknown as LineItemRecord
const none = { actions: [], limit: undefined }

it('shows devices an offline policy only where they may use tokens above their grants', () => {
  expect(lineItemOf(record, none, NOW)).not.toHaveProperty('offline')
  expect(lineItemOf(record, { ...none, overspendCap: 0n }, NOW)).not.toHaveProperty('offline')
  expect(lineItemOf(record, { ...none, overspendCap: 1n }, NOW).offline).toEqual({
    policy: 'essential',
    overspendCap: 1n,
  })
})

it('adds an overdraft only of the kind that the line item has', () => {
  const overdraft = (change: Partial<LineItemRecord>) => lineItemOf({ ...record, ...change }, none, NOW).overdraft
  expect(overdraft({ overdraftType: 'Unlimited', overdraftLimit: 5n })).toBe('UNLIMITED')
  expect(overdraft({ overdraftType: 'Number', overdraftLimit: 5n })).toBe(5n)
  expect(overdraft({ overdraftType: 'Number', overdraftLimit: null })).toBe(0n)
  expect(overdraft({ overdraftType: null, overdraftLimit: 5n })).toBe(0n)
})
