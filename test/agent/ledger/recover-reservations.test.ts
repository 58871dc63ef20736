// What a start records of the reservations that the previous process left open.
import { expect, it } from 'vitest'
import type { Journal, PendingEntry, Reservation, Snapshot } from '../../../src/agent/ledger/journal.ts'
import { counterBytesMax } from '../../../src/agent/ledger/balances.ts'
import { recoverReservations } from '../../../src/agent/ledger/recover-reservations.ts'
import type { LeftLog } from '../../../src/agent/ledger/volatile-log.ts'
import { ACCOUNT_ID_MAX, type AccountId, lineAccount } from '../../../src/core/accounts/account.ts'
import { SEGMENT_COUNTERS_BYTES_MAX, SEGMENT_ENTRIES_BYTES_MAX } from '../../../src/protocol/edge/sync.ts'
import { CHAIN_START } from '../../../src/protocol/signing.ts'
import { IDENTITY, STAMP, accountState, entry, snapshotWith } from '../harness.ts'
import { INSTANCE } from '../sync/fake-cloud.ts'

const OTHER_INSTANCE = '9d9f0f5e-5d3a-4c53-9f43-0a2f8f1b7c11'
const A = lineAccount(INSTANCE, 'line-1', 0)
const B = lineAccount(INSTANCE, 'line-1', 1)
const C = lineAccount(OTHER_INSTANCE, 'line-1', 0)
const READING = { now: 2_000, earliest: 1_000, latest: 3_000 }

interface Recorded {
  readonly entries: readonly PendingEntry[]
  readonly closed: Readonly<Record<AccountId, bigint>>
  readonly answered: boolean
}

interface Recovery {
  readonly changed: boolean
  readonly recorded: readonly Recorded[]
  readonly warned: readonly unknown[]
}

async function recover(changes: Partial<Snapshot>, left?: LeftLog): Promise<Recovery> {
  const recorded: Recorded[] = []
  const warned: unknown[] = []
  const appendWriteBehind: Journal['appendWriteBehind'] = async (entries, reservations, _stamp, answered) => {
    const closed = Object.fromEntries(reservations.map(({ account, usedUpTo }: Reservation) => [account, usedUpTo]))
    recorded.push({ entries, closed, answered })
    return 'head'
  }
  const parts = {
    journal: { appendWriteBehind },
    left,
    bootId: 'boot-1',
    reading: READING,
    stamp: STAMP,
    newCorrelationId: () => 'id',
    engine: 1,
    log: { warn: (fields: unknown) => void warned.push(fields) },
  }
  const changed = await recoverReservations(parts, snapshotWith({ epoch: 1, ...changes }))
  return { changed, recorded, warned }
}

function logWith(...entries: readonly PendingEntry[]): LeftLog {
  return { bootId: 'boot-1', deviceId: IDENTITY.deviceId, epoch: 1, anchors: [{ n: 0, head: CHAIN_START }], entries }
}

it('records nothing when no reservation is open and no entry is missing', async () => {
  const nothing = { changed: false, recorded: [], warned: [] }
  expect(await recover({}, logWith())).toEqual(nothing)
  expect(await recover({})).toMatchObject({ changed: false, recorded: [] })
})

it('records the entries of a log that fits, and ends the reservations at the use after them', async () => {
  const entries = [
    entry(1, [
      { account: A, amount: 5n },
      { account: C, amount: 9n },
    ]),
    entry(2, [{ account: A, amount: 3n }]),
    entry(3, [{ account: A, amount: 2n }], { moves: 'refunded' }),
  ]
  const accounts = new Map([[A, accountState({ used: 20n, granted: 100n })]])
  const openReservations = new Map([
    [A, 60n],
    [B, 40n],
  ])
  expect(await recover({ accounts, openReservations }, logWith(...entries))).toEqual({
    changed: true,
    recorded: [{ entries, closed: { [A]: 28n, [B]: 0n }, answered: true }],
    warned: [],
  })
})

it('records the entries of a log without reservations', async () => {
  const entries = [entry(1, [{ account: A, amount: 5n }])]
  expect(await recover({}, logWith(...entries))).toEqual({
    changed: true,
    recorded: [{ entries, closed: {}, answered: true }],
    warned: [],
  })
})

it('ends reservations without missing entries at the present use', async () => {
  const accounts = new Map([[A, accountState({ used: 20n })]])
  const { changed, recorded } = await recover({ accounts, openReservations: new Map([[A, 60n]]) }, logWith())
  expect({ changed, recorded }).toEqual({
    changed: true,
    recorded: [{ entries: [], closed: { [A]: 20n }, answered: true }],
  })
})

it('burns the rest of each reservation without a log: one entry per instance, under the rules in force there', async () => {
  const accounts = new Map([[A, accountState({ used: 20n })]])
  const openReservations = new Map([
    [A, 60n],
    [B, 40n],
    [C, 7n],
  ])
  const policies = [
    { instanceId: OTHER_INSTANCE, revision: 3, document: '', confirmedAt: 0 },
    { instanceId: INSTANCE.toUpperCase(), revision: 8, document: '', confirmedAt: 0 },
  ]
  const { changed, recorded, warned } = await recover({ accounts, openReservations, policies, lastEntry: 4 })
  expect(changed).toBe(true)
  expect(recorded.map(({ closed, answered }) => ({ closed, answered }))).toEqual([
    { closed: { [A]: 60n, [B]: 40n, [C]: 7n }, answered: true },
  ])
  const entries = recorded.flatMap((each) => each.entries)
  expect(entries.map(({ n, moves, postings }) => ({ n, moves, postings }))).toEqual([
    {
      n: 5,
      moves: 'burned',
      postings: [
        { account: A, amount: 40n },
        { account: B, amount: 40n },
      ],
    },
    { n: 6, moves: 'burned', postings: [{ account: C, amount: 7n }] },
  ])
  const common = { kind: 'burn', at: 2_000, earliest: 1_000, latest: 3_000, requester: { type: '', value: '' } }
  expect(entries.map(({ body }): unknown => JSON.parse(body))).toMatchObject([
    { ...common, n: 5, policyRevision: 8, postings: [{ amount: '40' }, { amount: '40' }] },
    { ...common, n: 6, policyRevision: 3, postings: [{ account: C, amount: '7' }] },
  ])
  const tokens = [
    { account: A, tokens: '40' },
    { account: B, tokens: '40' },
    { account: C, tokens: '7' },
  ]
  expect(warned).toEqual([{ reservations: tokens }])
})

it('burns many reservations in several entries that each fit a segment', async () => {
  const longest = (n: number): AccountId => {
    const prefix = `limit/${INSTANCE}/line-1/user/`
    return `${prefix}${String(n).padStart(ACCOUNT_ID_MAX - prefix.length - 2, 'x')}/0`
  }
  const openReservations = new Map(Array.from({ length: 1_201 }, (_, n) => [longest(n), 1n] as const))
  const { recorded } = await recover({ openReservations })
  const entries = recorded.flatMap((each) => each.entries)
  expect(entries.map(({ n, postings }) => [n, postings.length])).toEqual([
    [1, 500],
    [2, 500],
    [3, 201],
  ])
  for (const { body, postings } of entries) {
    const counters = postings.reduce((bytes, { account }) => bytes + counterBytesMax(account), 0)
    expect(counters).toBeLessThan(SEGMENT_COUNTERS_BYTES_MAX)
    expect(Buffer.byteLength(JSON.stringify(body))).toBeLessThan(SEGMENT_ENTRIES_BYTES_MAX)
  }
})
