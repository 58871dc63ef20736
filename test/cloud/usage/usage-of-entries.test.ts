import { expect, test } from 'vitest'
import { sumUsage, usageOfEntries } from '../../../src/cloud/usage/usage-of-entries.ts'
import { archiveLine, readArchiveLine } from '../../../src/cloud/usage/usage-text.ts'
import { limitAccount, lineAccount } from '../../../src/core/accounts/account.ts'
import { type EntryBodyWire, entryBody } from '../../../src/protocol/edge/sync.ts'
import type { SESSION_EVENTS } from '../../../src/protocol/edge/sessions.ts'

const INSTANCE = '0b9a2b4e-7b4e-4a52-9f5b-8d6a7c1e2f30'
const SESSION = 'f3b9d6f0-2f4b-4d5e-8a3c-6c1d2e3f4a5b'
const account = lineAccount(INSTANCE, 'ACT-1', 0)

type Event = (typeof SESSION_EVENTS)[number]

function entry(n: number, kind: 'access' | 'refund', event: Event | null, outcome: string, charged: bigint) {
  const parts = charged === 0n ? [] : [{ lineItemId: 'ACT-1', rate: '1', actionId: null, charged: String(charged) }]
  const body: EntryBodyWire = {
    n,
    kind,
    at: 1_000 + n,
    earliest: 1_000 + n,
    latest: 1_000 + n,
    instanceId: INSTANCE,
    policyRevision: 1,
    engine: 1,
    correlationId: '5c8ec4fd-f17f-4657-bf09-74a97ddc9f8b',
    requester: { type: 'user', value: 'lisa' },
    items: [{ item: 'Print', version: '', count: '1', outcome, total: String(charged), parts }],
    postings: charged === 0n ? [] : [{ account, amount: String(charged) }],
    ...(event === null ? {} : { session: { id: SESSION, event } }),
  }
  return { n, hash: '', text: JSON.stringify(body), body: entryBody.parse(body) }
}

test('distinguishes automatic charges of a session from requested ones', () => {
  const entries = [
    entry(1, 'access', null, 'GRANTED', 1n),
    entry(2, 'access', 'GRANTED', 'GRANTED', 5n),
    entry(3, 'access', 'RENEWED', 'GRANTED', 5n),
    entry(4, 'access', 'HALTED', 'GRANT_EXHAUSTED', 0n),
    entry(5, 'access', 'NOT_RENEWED', 'GRANT_EXHAUSTED', 0n),
    entry(6, 'refund', 'CLOSED', 'REFUNDED', 2n),
  ]
  const records = usageOfEntries(entries, {
    deviceId: 'device',
    epoch: 1,
    writeTime: 9_000,
    accountIds: new Map([[INSTANCE, 'customer']]),
    quantities: new Map(),
    used: new Map([[account, 100n]]),
  })
  expect(records.map(({ operation, status, tokens, used }) => [operation, status, tokens, used])).toEqual([
    ['REQUEST', 'GRANTED', 1n, 101n],
    ['REQUEST', 'GRANTED', 5n, 106n],
    ['AUTOMATIC_CHARGE', 'GRANTED', 5n, 111n],
    ['REQUEST', 'GRANT_EXHAUSTED', 0n, null],
    ['AUTOMATIC_CHARGE', 'GRANT_EXHAUSTED', 0n, null],
    ['REFUND', 'REFUNDED', -2n, 109n],
  ])
  expect(sumUsage(entries)).toEqual({
    records: 6,
    instanceId: INSTANCE,
    from: 1_001,
    to: 1_006,
    lines: [
      { operation: 'REQUEST', status: 'GRANTED', records: 2, tokens: 6n },
      { operation: 'AUTOMATIC_CHARGE', status: 'GRANTED', records: 1, tokens: 5n },
      { operation: 'REQUEST', status: 'GRANT_EXHAUSTED', records: 1, tokens: 0n },
      { operation: 'AUTOMATIC_CHARGE', status: 'GRANT_EXHAUSTED', records: 1, tokens: 0n },
      { operation: 'REFUND', status: 'REFUNDED', records: 1, tokens: -2n },
    ],
    refunds: 1,
    automaticCharges: { charged: 1, refused: 1 },
  })
})

test('the sums of burned tokens and of items with several shares count their records', () => {
  const burned = { ...entry(1, 'access', null, 'GRANTED', 0n).body, kind: 'burn' as const, items: [] }
  const limit = limitAccount(INSTANCE, 'ACT-1', { type: 'user', value: 'lisa' }, 0)
  const postings = [account, limit].map((each) => ({ account: each, amount: 7n }))
  const shared = entry(2, 'access', null, 'GRANTED', 4n)
  const parts = shared.body.items.flatMap((item) => [...item.parts, ...item.parts])
  const items = shared.body.items.map((item) => ({ ...item, parts, total: 8n }))
  const entries = [
    { n: 1, body: { ...burned, postings } },
    { n: 2, body: { ...shared.body, items, instanceId: SESSION } },
  ]
  const inputs = {
    deviceId: 'device',
    epoch: 1,
    writeTime: 1,
    accountIds: new Map(),
    quantities: new Map(),
    used: new Map(),
  }
  const records = usageOfEntries(entries, inputs)
  expect(sumUsage(entries)).toMatchObject({
    records: records.length,
    instanceId: null,
    lines: [
      { operation: 'BURN', status: 'BURNED', records: 1, tokens: 7n },
      { operation: 'REQUEST', status: 'GRANTED', records: 2, tokens: 8n },
    ],
  })
})

test('says no total of a line item that paid nothing, because the entry does not name its account', () => {
  const { n, body } = entry(1, 'access', null, 'GRANTED', 1n)
  const [item] = body.items
  const free = {
    ...body,
    items: [{ ...item!, parts: [{ ...item!.parts[0]!, charged: 0n }] }],
    postings: [],
  }
  const inputs = {
    deviceId: 'device',
    epoch: 1,
    writeTime: 9_000,
    accountIds: new Map(),
    quantities: new Map(),
    used: new Map([[account, 100n]]),
  }
  expect(usageOfEntries([{ n, body: free }], inputs)).toMatchObject([
    { activationId: 'ACT-1', status: 'GRANTED', tokens: 0n, used: null },
  ])
})

test.each(['', 'x', '-1', '-0.5'])('has no rate if the device wrote %j, and can be archived', (rate) => {
  const { n, body } = entry(1, 'access', null, 'GRANTED', 1n)
  const items = body.items.map((item) => ({ ...item, parts: item.parts.map((part) => ({ ...part, rate })) }))
  const [record] = usageOfEntries([{ n, body: { ...body, items } }], {
    deviceId: 'device',
    epoch: 1,
    writeTime: 1,
    accountIds: new Map(),
    quantities: new Map(),
    used: new Map(),
  })
  if (record === undefined) throw new Error('the entry has one record')
  expect(record.rate).toBeUndefined()
  const line = archiveLine('producer', { position: 1n, record })
  expect(readArchiveLine(line.slice(0, -1))).toMatchObject({ position: 1n, tokens: 1n })
})
