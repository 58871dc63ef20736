import { expect, test } from 'vitest'
import { usageOfEntries } from '../../../src/cloud/usage/usage-of-entries.ts'
import { lineAccount } from '../../../src/core/accounts/account.ts'
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
  const records = usageOfEntries(
    [
      entry(1, 'access', null, 'GRANTED', 1n),
      entry(2, 'access', 'GRANTED', 'GRANTED', 5n),
      entry(3, 'access', 'RENEWED', 'GRANTED', 5n),
      entry(4, 'access', 'HALTED', 'GRANT_EXHAUSTED', 0n),
      entry(5, 'access', 'NOT_RENEWED', 'GRANT_EXHAUSTED', 0n),
      entry(6, 'refund', 'CLOSED', 'REFUNDED', 2n),
    ],
    {
      deviceId: 'device',
      epoch: 1,
      writeTime: 9_000,
      accountIdOf: () => 'customer',
      quantityOf: () => null,
      usedBefore: () => 100n,
    },
  )
  expect(records.map(({ operation, status, tokens, used }) => [operation, status, tokens, used])).toEqual([
    ['REQUEST', 'GRANTED', 1n, 101n],
    ['REQUEST', 'GRANTED', 5n, 106n],
    ['AUTOMATIC_CHARGE', 'GRANTED', 5n, 111n],
    ['REQUEST', 'GRANT_EXHAUSTED', 0n, null],
    ['AUTOMATIC_CHARGE', 'GRANT_EXHAUSTED', 0n, null],
    ['REFUND', 'REFUNDED', -2n, 109n],
  ])
})
