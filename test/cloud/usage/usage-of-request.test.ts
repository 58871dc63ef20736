import { describe, expect, it } from 'vitest'
import { charge, newPool } from '../../../src/cloud/accounts/pool.ts'
import type { LoadedPolicy } from '../../../src/cloud/policy/load-policy.ts'
import type { UsageRecord } from '../../../src/cloud/storage/records.ts'
import { usageOfDecision, usageOfRefund, withMetaData } from '../../../src/cloud/usage/usage-of-request.ts'
import { type AccountId, lineAccount, limitAccount } from '../../../src/core/accounts/account.ts'
import { decimal } from '../../../src/core/pricing/amount.ts'
import type { Decision } from '../../../src/core/rules/decision.ts'
import type { ReservedItem } from '../../../src/core/sessions/session.ts'

const NOW = Date.UTC(2026, 4, 6)
const [A, B, NEXT] = [lineAccount('i', 'A', 0), lineAccount('i', 'B', 0), lineAccount('i', 'A', 1)]
const OF_LISA = limitAccount('i', 'A', { type: 'user', value: 'Lisa' }, 0)

const periods = [
  { index: 0, from: null, until: NOW + 1 },
  { index: 1, from: NOW + 1, until: null },
]
const loaded = {
  accountId: 'customer',
  policy: { instanceId: 'i' },
  lineItems: new Map(['A', 'B'].map((id) => [id, { id, quantity: 100n, periods }])),
} as unknown as LoadedPolicy
const header = {
  correlationId: 'c',
  requester: { type: 'user', value: 'Lisa' },
  source: { kind: 'one-off' },
  now: NOW,
} as const

const item = (name: string, metaData: string | null = null) => ({ name, version: '', count: decimal('1'), metaData })
const reserved = (name: string, ...shares: (readonly [lineItemId: string, charged: bigint, ...AccountId[]])[]) =>
  ({
    item: item(name),
    shares: shares.map(([lineItemId, charged, ...accounts]) => ({ lineItemId, charged, accounts })),
  }) satisfies ReservedItem
const used = (account: AccountId, amount: bigint) => [account, charge(newPool(account, 100n), amount)] as const
const gist = (records: readonly UsageRecord[]) =>
  records.map(({ item: name, activationId, operation, status, tokens, used: total }) => [
    name,
    activationId,
    operation,
    status,
    tokens,
    total,
  ])

describe('the records of a refund', () => {
  it('show the refund of each share, in the order of the charge, with the total after it', () => {
    const refunded = [
      reserved('Print', ['A', 3n, A, OF_LISA], ['B', 2n, B]),
      reserved('Scan', ['A', 5n, OF_LISA, A], ['B', 0n, B]),
    ]
    const records = usageOfRefund(header, loaded, refunded, new Map([used(A, 10n), used(B, 20n), used(OF_LISA, 1n)]))
    expect(gist(records)).toEqual([
      ['Print', 'A', 'REFUND', 'REFUNDED', -3n, 15n],
      ['Print', 'B', 'REFUND', 'REFUNDED', -2n, 20n],
      ['Scan', 'A', 'REFUND', 'REFUNDED', -5n, 10n],
    ])
    for (const record of records) expect(record).toMatchObject({ quantity: 100n, correlationId: 'c', instanceId: 'i' })
  })

  it('are written without a total or a quantity where the line item is gone', () => {
    const refunded = [reserved('Print', ['gone', 3n, lineAccount('i', 'gone', 0)], ['gone', 2n])]
    const records = usageOfRefund(header, loaded, refunded, new Map([used(A, 10n)]))
    expect(records).toMatchObject([
      { activationId: 'gone', quantity: null, used: null, tokens: -3n },
      { activationId: 'gone', quantity: null, used: null, tokens: -2n },
    ])
  })
})

describe('the records of a decision', () => {
  const operation = { ...header, operation: 'REQUEST' } as const
  const granted = (...shares: (readonly [string, bigint])[]): Decision['items'][number] => ({
    outcome: 'GRANTED',
    total: 0n,
    shares: shares.map(([lineItemId, charged]) => ({ lineItemId, charged, rate: decimal('1'), actionId: null })),
  })
  const decided = (...items: Decision['items']): Decision => ({ items, postings: [], warnings: [] })

  it('continue from the tokens used in the current period', () => {
    const items = [item('Print', '{"job":7}'), item('Scan')]
    const decision = decided(granted(['A', 3n], ['B', 2n]), granted(['A', 4n]))
    const before = new Map([used(A, 10n), used(NEXT, 50n)])
    const records = usageOfDecision(operation, loaded, items, { decision, before })
    expect(gist(records)).toEqual([
      ['Print', 'A', 'REQUEST', 'GRANTED', 3n, 13n],
      ['Print', 'B', 'REQUEST', 'GRANTED', 2n, 2n],
      ['Scan', 'A', 'REQUEST', 'GRANTED', 4n, 17n],
    ])
    expect(records.map(({ metaData, quantity }) => [metaData, quantity])).toEqual([
      ['{"job":7}', 100n],
      ['{"job":7}', 100n],
      [null, 100n],
    ])
    const later = usageOfDecision({ ...operation, now: NOW + 1 }, loaded, items, { decision, before })
    expect(later.map(({ used: total }) => total)).toEqual([53n, 2n, 57n])
  })

  it('show why an item was not charged, without a line item', () => {
    const decision = decided(
      { outcome: 'REFUSED', reason: 'INSUFFICIENT_TOKENS', rejectionDetails: [] },
      { outcome: 'NOT_CHARGED' },
      granted(['gone', 1n]),
    )
    const items = [item('Print'), item('Scan'), item('Sign')]
    const records = usageOfDecision(operation, loaded, items, { decision, before: new Map() })
    expect(gist(records)).toEqual([
      ['Print', null, 'REQUEST', 'INSUFFICIENT_TOKENS', 0n, null],
      ['Scan', null, 'REQUEST', 'NOT_CHARGED', 0n, null],
      ['Sign', 'gone', 'REQUEST', 'GRANTED', 1n, 1n],
    ])
    expect(records.map(({ quantity }) => quantity)).toEqual([null, null, null])
  })
})

it('adds meta data to the items in their order', () => {
  const { name, version, count } = item('Print')
  const items = [1, 2, 3].map(() => ({ name, version, count }))
  expect(withMetaData(items, [null, '{}']).map(({ metaData }) => metaData)).toEqual([null, '{}', null])
})
