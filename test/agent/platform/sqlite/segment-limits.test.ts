// A segment is sealed for good: whatever the device was asked for, the cloud must be able to take and to read it.
import { describe, expect, it } from 'vitest'
import { type AccountId, limitAccount } from '../../../../src/core/accounts/account.ts'
import { MICRO_MAX } from '../../../../src/core/pricing/amount.ts'
import {
  SEGMENT_ACCOUNTS_MAX,
  SEGMENT_BYTES_MAX,
  SEGMENT_COUNTERS_BYTES_MAX,
  SEGMENT_ENTRIES_BYTES_MAX,
  SEGMENT_SESSIONS_BYTES_MAX,
  SEGMENT_NEEDS_BYTES_MAX,
  SEGMENT_TOP_UPS_BYTES_MAX,
  SYNC_BODY_BYTES_MAX,
  type Segment,
  type SegmentWire,
  segment,
} from '../../../../src/protocol/edge/sync.ts'
import { SEGMENT_SESSIONS_MAX } from '../../../../src/protocol/edge/sessions.ts'
import { attach, entry, journalIn, payloadOf, SEAL, STAMP, temporaryDirectory } from '../../harness.ts'
import { INSTANCE } from '../../sync/fake-cloud.ts'

/** The limit of a requester whose name is as long as names may be. */
const accountOf = (n: number): AccountId =>
  limitAccount(INSTANCE, 'line-1', { type: 'ldap-distinguished-name', value: `CN=${n},OU=${'x'.repeat(1_100)}` }, 42)

/** As the twin reads it; throws when it could not. */
function readByTwin(document: string): Segment {
  const body = JSON.stringify({ segment: document, nonce: 'x'.repeat(64) })
  expect(Buffer.byteLength(body)).toBeLessThan(SYNC_BODY_BYTES_MAX)
  return segment.parse(payloadOf(document))
}

it('a top-up request above the maximum of a counter is sealed as the maximum', async () => {
  const journal = await journalIn(temporaryDirectory())
  await attach(journal, {})
  const topUpRequests = [{ account: accountOf(1), wanted: 3n * MICRO_MAX }]
  const needs = [[{ account: accountOf(1), amount: MICRO_MAX + 1n }]]
  const read = readByTwin((await journal.seal({ ...SEAL, topUpRequests, needs })).document)
  expect(read.topUpRequests).toEqual([{ account: accountOf(1), wanted: MICRO_MAX }])
  expect(read.needs).toEqual([[{ account: accountOf(1), amount: MICRO_MAX }]])
})

it('of too many top-up requests the first are sent with a segment, and those of waiting requests have separate space', async () => {
  const journal = await journalIn(temporaryDirectory())
  await attach(journal, {})
  const topUpRequests = Array.from({ length: SEGMENT_ACCOUNTS_MAX }, (_, n) => {
    return { account: accountOf(n), wanted: 10_000_000n }
  })
  const needs = topUpRequests.map(({ account }) => [{ account, amount: 5n }])
  const read = readByTwin((await journal.seal({ ...SEAL, topUpRequests, needs })).document)
  expect(read.needs.length).toBeGreaterThan(300)
  expect(read.needs).toEqual(needs.slice(0, read.needs.length))
  expect(read.topUpRequests.length).toBeGreaterThan(500)
  expect(read.topUpRequests).toEqual(topUpRequests.slice(0, read.topUpRequests.length))
})

describe('returned tokens', () => {
  const ACCOUNTS = 1_500
  const accounts = Array.from({ length: ACCOUNTS }, (_, n) => accountOf(n))

  it('that do not fit in a segment are reported with the next one, and the chain is closed after it', async () => {
    const journal = await journalIn(temporaryDirectory())
    await attach(journal, Object.fromEntries(accounts.map((account) => [account, 100n])))
    await journal.append([entry(1, [{ account: accountOf(ACCOUNTS - 1), amount: 30n }])], STAMP)
    await journal.fence()
    const returns = accounts.slice(0, -1).map((account) => ({ account, amount: 100n }))
    const told = new Map<AccountId, bigint>()
    const finals: boolean[] = []
    for (let segments = 0; segments < 2; segments += 1) {
      const { document, seq } = await journal.seal({ ...SEAL, returns: segments === 0 ? returns : [], final: true })
      const read = readByTwin(document)
      for (const { account, used, returned } of read.counters) {
        expect(used).toBe(account === accountOf(ACCOUNTS - 1) ? 30n : 0n)
        told.set(account, returned)
      }
      finals.push(read.final)
      await journal.acknowledge(seq, null, null)
    }
    expect(told).toEqual(
      new Map([[accountOf(ACCOUNTS - 1), 0n], ...returns.map((each) => [each.account, each.amount] as const)]),
    )
    expect(finals).toEqual([false, true])
  })
})

it.each([
  ['texts', 1_000, 2, accountOf],
  ['counters', 440, 20, (n: number) => limitAccount(INSTANCE, 'line-1', { type: 'user', value: `${n}` }, 42)],
])('entries that move more accounts than fit go up in several segments, by their %s', async (_by, count, each, of) => {
  const journal = await journalIn(temporaryDirectory())
  const accounts = Array.from({ length: count }, (_, n) => Array.from({ length: each }, (__, i) => of(each * n + i)))
  await attach(journal, Object.fromEntries(accounts.flat().map((account) => [account, 100n])))
  await journal.append(
    accounts.map((those, index) =>
      entry(
        index + 1,
        those.map((account) => ({ account, amount: 7n })),
      ),
    ),
    STAMP,
  )
  let sent = 0
  for (let segments = 0; sent < accounts.length; segments += 1) {
    expect(segments).toBeLessThan(20)
    const { document, seq } = await journal.seal(SEAL)
    const { counters } = payloadOf(document) as SegmentWire
    const { bodies } = readByTwin(document).entries
    expect(bodies.length).toBeLessThan(count)
    expect(counters).toHaveLength(each * bodies.length)
    expect(Buffer.byteLength(JSON.stringify(counters))).toBeLessThanOrEqual(SEGMENT_COUNTERS_BYTES_MAX)
    sent += bodies.length
    await journal.acknowledge(seq, null, null)
  }
})

it('undelivered entries that name more accounts than fit go up in several segments', async () => {
  const journal = await journalIn(temporaryDirectory())
  const each = SEGMENT_ACCOUNTS_MAX / 2
  const nameOf = (n: number) => limitAccount(INSTANCE, 'line-1', { type: 'user', value: `${n}` }, 42)
  const accounts = Array.from({ length: 3 * each }, (_, n) => nameOf(n))
  await attach(journal, Object.fromEntries(accounts.map((account) => [account, 100n])))
  const charges = [0, 1, 2].map((n) => accounts.slice(n * each, (n + 1) * each))
  await journal.append(
    charges.map((charged, index) =>
      entry(
        index + 1,
        charged.map((account) => ({ account, amount: 7n })),
      ),
    ),
    STAMP,
  )
  await journal.fence()
  await journal.attach(2)
  const counts: number[] = []
  for (let left = 3; left > 0;) {
    const { document, seq } = await journal.seal(SEAL)
    const { bodies } = readByTwin(document).undeliveredRange!.entries
    counts.push(bodies.length)
    left -= bodies.length
    await journal.acknowledge(seq, null, null)
  }
  expect(counts).toEqual([2, 1])
})

it('entries that do not fit in one segment are sent in several, each with the counters as of its last entry', async () => {
  const [charged, refunded, returned] = [accountOf(1), accountOf(2), accountOf(3)]
  const journal = await journalIn(temporaryDirectory())
  await attach(journal, { [charged]: 100n, [refunded]: 100n, [returned]: 100n })
  await journal.append([entry(1, [{ account: refunded, amount: 50n }])], STAMP)
  await journal.acknowledge((await journal.seal(SEAL)).seq, null, null)
  const long = (...how: Parameters<typeof entry>) => {
    const plain = entry(...how)
    return { ...plain, body: JSON.stringify({ ...(JSON.parse(plain.body) as object), note: 'x'.repeat(400_000) }) }
  }
  const back = [{ account: refunded, amount: 5n }]
  const charge = [{ account: charged, amount: 7n }]
  await journal.append([long(2, charge), long(3, back, { moves: 'refunded' }), long(4, charge), long(5, charge)], STAMP)
  const parts: unknown[] = []
  for (let left = true; left;) {
    const returns = [
      { account: returned, amount: 9n },
      { account: charged, amount: 3n },
    ]
    const { document, seq } = await journal.seal({ ...SEAL, returns: parts.length === 0 ? returns : [], final: true })
    const { entries, counters, backlog, final } = payloadOf(document) as SegmentWire
    const moved = counters.map((each) => [Number(each.used), Number(each.refunded), Number(each.returned)])
    parts.push({ first: entries.first, count: entries.bodies.length, moved, backlog, final })
    left = backlog > 0
    await journal.acknowledge(seq, null, null)
  }
  expect(parts).toEqual([
    {
      ...{ first: 2, count: 2, backlog: 2, final: false },
      moved: [
        [7, 0, 0],
        [50, 5, 0],
      ],
    },
    {
      ...{ first: 4, count: 2, backlog: 0, final: true },
      moved: [
        [21, 0, 3],
        [0, 0, 9],
      ],
    },
  ])
})

it('sessions that do not fit in a segment are sent with the next one, but each segment has at least one', async () => {
  const journal = await journalIn(temporaryDirectory())
  await attach(journal, {})
  const lengths = [SEGMENT_SESSIONS_BYTES_MAX + 1, SEGMENT_SESSIONS_BYTES_MAX / 2, SEGMENT_SESSIONS_BYTES_MAX / 4]
  const entries = lengths.map((length, index) => {
    const snapshot = JSON.stringify({ id: `s${index}`, note: 'x'.repeat(length) })
    return entry(index + 1, [], { session: { id: `s${index}`, ended: false, since: 1, document: '{}', snapshot } })
  })
  await journal.append(entries, STAMP)
  const parts: string[][] = []
  for (let segments = 0; segments < 3; segments += 1) {
    const { document, seq } = await journal.seal(SEAL)
    parts.push(((payloadOf(document) as SegmentWire).sessions ?? []).map(({ id }) => id))
    await journal.acknowledge(seq, null, null)
  }
  expect(parts).toEqual([['s0'], ['s1', 's2'], []])
})

it('reports live sessions before ended ones in the first segment of an epoch only, and says that more follow', async () => {
  const journal = await journalIn(temporaryDirectory())
  await attach(journal, {})
  await journal.attach(2)
  const sessions = Array.from({ length: SEGMENT_SESSIONS_MAX + 2 }, (_, index) => {
    const id = `s${String(index).padStart(4, '0')}`
    return { id, ended: index < SEGMENT_SESSIONS_MAX, since: 1, document: '{}', snapshot: JSON.stringify({ id }) }
  })
  const change = (first: number, changed: typeof sessions) =>
    journal.append(
      changed.map((session, index) => entry(first + index, [], { session })),
      STAMP,
    )
  await change(1, sessions)
  const first = await journal.seal(SEAL)
  const reported = ((payloadOf(first.document) as SegmentWire).sessions ?? []).map(({ id }) => id)
  expect(reported).toHaveLength(SEGMENT_SESSIONS_MAX)
  expect(reported.slice(0, 3)).toEqual(['s1000', 's1001', 's0000'])
  expect(first.isMoreToFollow).toBe(true)
  await journal.acknowledge(first.seq, null, null)
  const second = await journal.seal(SEAL)
  expect((payloadOf(second.document) as SegmentWire).sessions).toEqual([{ id: 's0998' }, { id: 's0999' }])
  expect(second.isMoreToFollow).toBe(false)
  await journal.acknowledge(second.seq, null, null)
  await change(sessions.length + 1, sessions.slice(-3))
  const { document } = await journal.seal(SEAL)
  expect((payloadOf(document) as SegmentWire).sessions).toEqual([{ id: 's0999' }, { id: 's1000' }, { id: 's1001' }])
})

it('seals no final segment before every session is reported', async () => {
  const journal = await journalIn(temporaryDirectory())
  await attach(journal, {})
  const note = 'x'.repeat(SEGMENT_SESSIONS_BYTES_MAX / 2)
  const entries = ['s1', 's2', 's3'].map((id, index) => {
    const snapshot = JSON.stringify({ id, note })
    return entry(index + 1, [], { session: { id, ended: true, since: 1, document: '{}', snapshot } })
  })
  await journal.append(entries, STAMP)
  await journal.fence()
  const segments: [sessions: string[], final: boolean][] = []
  for (let sealed = 0; sealed < 3; sealed += 1) {
    const { document, seq, final } = await journal.seal({ ...SEAL, final: true })
    segments.push([((payloadOf(document) as SegmentWire).sessions ?? []).map(({ id }) => id), final])
    await journal.acknowledge(seq, null, null)
  }
  expect(segments).toEqual([
    [['s1'], false],
    [['s2'], false],
    [['s3'], true],
  ])
})

it('a segment names the rules in force, and the newest grant with the last entry decided before it', async () => {
  const journal = await journalIn(temporaryDirectory())
  await attach(journal, { [accountOf(1)]: 100n })
  await journal.append([entry(1, [{ account: accountOf(1), amount: 1n }])], STAMP)
  const policies = [{ instanceId: INSTANCE, revision: 3 }]
  const { document } = await journal.seal({ ...SEAL, policies, grant: { term: 7, lastEntry: 1 } })
  expect(payloadOf(document)).toMatchObject({ policies, grantTerm: 7 })
})

it('a segment that is full in every part fits the body of a sync', () => {
  const parts = [
    SEGMENT_ENTRIES_BYTES_MAX,
    SEGMENT_COUNTERS_BYTES_MAX,
    SEGMENT_SESSIONS_BYTES_MAX,
    SEGMENT_NEEDS_BYTES_MAX,
    SEGMENT_TOP_UPS_BYTES_MAX,
  ]
  expect(parts.reduce((sum, bytes) => sum + bytes, 0)).toBeLessThan(SEGMENT_BYTES_MAX)
  const signed = `${'x'.repeat(200)}.${Buffer.alloc(SEGMENT_BYTES_MAX).toString('base64url')}.${'x'.repeat(100)}`
  expect(Buffer.byteLength(JSON.stringify({ segment: signed, nonce: 'x'.repeat(64) }))).toBeLessThan(
    SYNC_BODY_BYTES_MAX,
  )
})
