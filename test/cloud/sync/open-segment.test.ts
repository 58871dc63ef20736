// The limits of a segment: those that its lists share, which no schema of one list checks.
import { randomUUID } from 'node:crypto'
import { expect, it } from 'vitest'
import { openSegment } from '../../../src/cloud/sync/open-segment.ts'
import { limitAccount, lineAccount } from '../../../src/core/accounts/account.ts'
import {
  type EntryBodyWire,
  NEED_ACCOUNTS_MAX,
  SEGMENT_ACCOUNTS_MAX,
  SEGMENT_NEED_POSTINGS_MAX,
  type SegmentWire,
} from '../../../src/protocol/edge/sync.ts'
import { CHAIN_START, entryHash, signDocument } from '../../../src/protocol/signing.ts'
import { newDeviceKeys } from './test-device.ts'
import { INSTANCE, START } from './twin.ts'

const DEVICE = randomUUID()
const keys = await newDeviceKeys()

const user = (n: number) => limitAccount(INSTANCE, 'ACT-1', { type: 'user', value: String(n) }, 0)
const counted = (count: number) => Array.from({ length: count }, (_, n) => ({ account: user(n), amount: '1' }))

type Postings = EntryBodyWire['postings']

function rangeOf(...postings: readonly Postings[]) {
  const bodies = postings.map((posted, index) =>
    JSON.stringify({
      n: index + 1,
      kind: 'burn',
      at: START,
      earliest: START,
      latest: null,
      instanceId: INSTANCE,
      policyRevision: 1,
      engine: 1,
      correlationId: randomUUID(),
      requester: { type: '', value: '' },
      items: [],
      postings: posted,
    } satisfies EntryBodyWire),
  )
  return { first: 1, previousHash: CHAIN_START, head: bodies.reduce(entryHash, CHAIN_START), bodies }
}

async function opened(change: Partial<SegmentWire>) {
  const payload: SegmentWire = {
    deviceId: DEVICE,
    epoch: 2,
    seq: 1,
    previousHash: CHAIN_START,
    salt: 'x'.repeat(16),
    bootId: 'boot',
    clock: { now: START, earliest: START, latest: null },
    counters: [],
    entries: rangeOf(),
    undeliveredRange: null,
    backlog: 0,
    grantTerm: 0,
    topUpRequests: [],
    needs: [],
    policies: [],
    final: false,
    ...change,
  }
  const document = await signDocument('segment', JSON.stringify(payload), keys.signer)
  return openSegment({ id: DEVICE }, keys.jwk, document)
}

const LINE = { account: lineAccount(INSTANCE, 'ACT-1', 0), amount: '1' }
const needs = (...counts: readonly number[]) => counts.map((count) => Array<typeof LINE>(count).fill(LINE))
const undelivered = (...postings: readonly Postings[]) => {
  return { undeliveredRange: { epoch: 1, entries: rangeOf(...postings), final: false } }
}
const half = counted(SEGMENT_ACCOUNTS_MAX).slice(0, SEGMENT_ACCOUNTS_MAX / 2)
const otherHalf = counted(SEGMENT_ACCOUNTS_MAX).slice(SEGMENT_ACCOUNTS_MAX / 2)

it.each([
  ['needs', { needs: needs(NEED_ACCOUNTS_MAX, SEGMENT_NEED_POSTINGS_MAX - NEED_ACCOUNTS_MAX) }],
  ['accounts of its entries', { entries: rangeOf(half, otherHalf, half) }],
  ['accounts of undelivered entries', undelivered(half, otherHalf, half)],
] as const)('takes a segment with as many %s as an agent sends', async (_, change) => {
  expect(await opened(change as Partial<SegmentWire>)).toMatchObject({ opened: true })
})

const ACCOUNTS = `segment: its entries name more than ${SEGMENT_ACCOUNTS_MAX} accounts`

it.each([
  [
    'needs',
    { needs: needs(NEED_ACCOUNTS_MAX, NEED_ACCOUNTS_MAX, 1) },
    `segment.needs: has more than ${SEGMENT_NEED_POSTINGS_MAX} amounts`,
  ],
  ['accounts of its entries', { entries: rangeOf(half, otherHalf, [LINE]) }, ACCOUNTS],
  ['accounts of undelivered entries', undelivered(half, otherHalf, [LINE]), ACCOUNTS],
] as const)('refuses a segment with more %s', async (_, change, problem) => {
  expect(await opened(change as Partial<SegmentWire>)).toEqual({ opened: false, problem })
})

it('leaves out a single undelivered entry that names more accounts than a segment', async () => {
  const result = await opened(undelivered(counted(SEGMENT_ACCOUNTS_MAX + 1)))
  expect(result).toMatchObject({ opened: true, segment: { undeliveredRange: { count: 1, entries: [] } } })
})
