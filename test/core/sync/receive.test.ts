import fc from '../../support/fast-check.ts'
import { describe, expect, it } from 'vitest'
import { actionAccount, limitAccount, lineAccount } from '../../../src/core/accounts/account.ts'
import {
  type Counters,
  METERED_MAX,
  NO_COUNTERS,
  billed,
  available,
  outstanding,
} from '../../../src/core/accounts/grant.ts'
import {
  type ChainFit,
  type DeviceAccount,
  type EpochState,
  type MergeTerms,
  NO_DEVICE_ACCOUNT,
  type ReceivedEntry,
  type ReceivedSegment,
  type MergeOutcome,
  entryProblem,
  fitChain,
  mergeSegment,
  mergeReported,
  classifySegment,
  withoutKnown,
} from '../../../src/core/sync/receive.ts'

const INSTANCE = '64d2028c-ae87-4069-a624-66089d957ef9'
const OTHER = '0b8a1a52-6f3e-4b53-a6a5-9a7f6a0d8d11'
const LINE = lineAccount(INSTANCE, 'ACT-1', 0)
const ACTION = actionAccount(INSTANCE, 'ACT-1', 'a')
const instances = new Set([INSTANCE])

const movement = (before: Counters, after: Counters) => ({
  outstanding: outstanding(after) - outstanding(before),
  billed: billed(after) - billed(before),
})

const active: EpochState = {
  status: 'ACTIVE',
  lastSeq: 7,
  lastHash: 'h7',
  lastEntry: 20,
  entryHead: 'e20',
  carriedOn: false,
  forked: false,
}
const fenced: EpochState = { ...active, status: 'FENCED' }
const closed: EpochState = { ...active, status: 'CLOSED' }
const carriedOn: EpochState = { ...fenced, carriedOn: true }
const closedLater: EpochState = { ...closed, carriedOn: true }
const forked: EpochState = { ...fenced, forked: true }
const news: ChainFit = { kind: 'CONTINUES', known: 0, fresh: 1 }
const nothingNew: ChainFit = { kind: 'CONTINUES', known: 1, fresh: 0 }
const detached: ChainFit = { kind: 'DETACHED' }
const lost: ChainFit = { kind: 'LOST' }
const contradiction: ChainFit = { kind: 'CONTRADICTS' }

describe('the kind of a segment', () => {
  const next = { seq: 8, hash: 'h8', previousHash: 'h7' }
  const cases: [string, EpochState, Parameters<typeof classifySegment>[1], string | null, MergeOutcome][] = [
    ['the next one of the current epoch is merged', active, next, null, { kind: 'MERGE', mayGrant: true }],
    ['the next one of a fenced one is merged without grants', fenced, next, null, { kind: 'MERGE', mayGrant: false }],
    [
      'the last one again gets the stored answer',
      active,
      { ...next, seq: 7, hash: 'h7', previousHash: 'h6' },
      'h7',
      { kind: 'REPEAT' },
    ],
    [
      'the last one of a closed epoch again gets the stored answer',
      closed,
      { ...next, seq: 7, hash: 'h7', previousHash: 'h6' },
      'h7',
      { kind: 'REPEAT' },
    ],
    ['an earlier one again is known', active, { seq: 3, hash: 'h3', previousHash: 'h2' }, 'h3', { kind: 'KNOWN' }],
    ['another one with the last number is a fork', active, { ...next, seq: 7 }, 'h7', { kind: 'FORK' }],
    ['another one with an earlier number is a fork', active, { ...next, seq: 2 }, 'h2', { kind: 'FORK' }],
    ['the next one after another history is a fork', active, { ...next, previousHash: 'x' }, null, { kind: 'FORK' }],
    ['a later one says that this side forgot', active, { ...next, seq: 9 }, null, { kind: 'BEHIND' }],
    ['a later one of a fenced epoch too', fenced, { ...next, seq: 12 }, null, { kind: 'BEHIND' }],
    ['a later one is of one of two writers', forked, { ...next, seq: 9 }, null, { kind: 'FORK' }],
    ['the next one of two writers is merged', forked, next, null, { kind: 'MERGE', mayGrant: false }],
    ['anything after the final one is a second writer', closed, next, null, { kind: 'FORK' }],
    ['and so is anything long after it', closed, { ...next, seq: 12 }, null, { kind: 'FORK' }],
  ]
  it.each(cases)('%s', (_name, state, header, recorded, outcome) => {
    expect(classifySegment(state, header, recorded, news)).toEqual(outcome)
  })

  const late: [string, EpochState, Parameters<typeof classifySegment>[1], ChainFit, MergeOutcome][] = [
    ['is merged while more may come', carriedOn, next, nothingNew, { kind: 'MERGE', mayGrant: false }],
    ['is merged without effect after that', closedLater, next, nothingNew, { kind: 'MERGE', mayGrant: false }],
    ['is a fork when it has entries behind the end', closedLater, next, news, { kind: 'FORK' }],
    ['is a fork when its entries are others', closedLater, next, contradiction, { kind: 'FORK' }],
    ['is a fork when its entries are others, while more may come', carriedOn, next, contradiction, { kind: 'FORK' }],
    ['is a fork if no other writer has continued the epoch', closed, next, nothingNew, { kind: 'FORK' }],
    ['is no fork when others before it were lost', closedLater, { ...next, seq: 9 }, nothingNew, { kind: 'BEHIND' }],
    ['is no fork when it is one of those that were lost', closedLater, { ...next, seq: 9 }, lost, { kind: 'BEHIND' }],
    ['is a fork when it has entries behind the end, and others before it were lost', closedLater, { ...next, seq: 9 }, news, { kind: 'FORK' }], // prettier-ignore
    ['is a fork when others before it were lost, and there are two writers', { ...closedLater, forked: true }, { ...next, seq: 9 }, nothingNew, { kind: 'FORK' }], // prettier-ignore
    ['is a fork after another history', closedLater, { ...next, previousHash: 'x' }, nothingNew, { kind: 'FORK' }],
    [
      'is for the merge to judge when its entries do not follow',
      fenced,
      next,
      detached,
      { kind: 'MERGE', mayGrant: false },
    ],
  ]
  it.each(late)('a segment whose entries a later epoch may have delivered %s', (_name, state, header, fit, outcome) => {
    expect(classifySegment(state, header, null, fit)).toEqual(outcome)
  })
})

describe('merging counters whose entries are lost', () => {
  it('takes the counters that the device reports, also of unknown accounts', () => {
    const told = counters(15n, 2n, 40n)
    expect(mergeReported(new Map([[LINE, account(100n, 10n)]]), told.slice(0, 1), open)).toEqual([
      { account: LINE, before: account(100n, 10n), after: account(100n, 15n, 2n, 40n) },
    ])
    const nothing = [{ account: ACTION, used: 0n, refunded: 0n, returned: 0n }]
    expect(mergeReported(new Map(), nothing, open)).toEqual([
      { account: ACTION, before: account(0n), after: account(0n) },
    ])
  })

  it('refuses counters that fell', () => {
    const merge = mergeReported(known(account(100n, 10n)), counters(9n), open)
    expect(merge).toMatchObject({ merged: false, problem: 'COUNTER_FELL', account: LINE })
  })
})

describe('how entries fit the merged chain', () => {
  const range = (firstEntry: number, entriesPreviousHash: string, ...entryHashes: string[]) => ({
    firstEntry,
    entriesPreviousHash,
    entryHashes,
  })
  const cases: [string, Parameters<typeof fitChain>[1], string | undefined, ChainFit][] = [
    ['follow its end', range(21, 'e20', 'e21', 'e22'), undefined, { kind: 'CONTINUES', known: 0, fresh: 2 }],
    ['are none, at its end', range(21, 'e20'), undefined, { kind: 'CONTINUES', known: 0, fresh: 0 }],
    ['overlap its end', range(20, 'e19', 'e20', 'e21'), undefined, { kind: 'CONTINUES', known: 1, fresh: 1 }],
    ['are its last ones', range(19, 'e18', 'e19', 'e20'), undefined, { kind: 'CONTINUES', known: 2, fresh: 0 }],
    ['are some from its middle', range(4, 'e3', 'e4', 'e5'), 'e5', { kind: 'CONTINUES', known: 2, fresh: 0 }],
    ['are none, in its middle', range(4, 'e3'), 'e3', { kind: 'CONTINUES', known: 0, fresh: 0 }],
    ['leave a gap', range(22, 'e21', 'e22'), undefined, { kind: 'DETACHED' }],
    ['follow another end', range(21, 'x20', 'x21'), undefined, { kind: 'DETACHED' }],
    ['differ at its end', range(20, 'e19', 'x20', 'x21'), undefined, { kind: 'CONTRADICTS' }],
    ['differ in its middle', range(4, 'e3', 'x4'), 'e4', { kind: 'CONTRADICTS' }],
    ['are of numbers that were lost', range(4, 'e3', 'e4'), undefined, { kind: 'LOST' }],
  ]
  it.each(cases)('when they %s', (_name, entries, recorded, fit) => {
    expect(fitChain(active, entries, recorded)).toEqual(fit)
  })
})

const onLine = (amount: bigint): ReceivedEntry => ({
  n: 21,
  kind: 'access',
  instanceId: INSTANCE,
  items: [{ total: amount, parts: [{ lineItemId: 'ACT-1', charged: amount }] }],
  postings: [
    { account: LINE, amount },
    { account: ACTION, amount },
  ],
})

const empty: ReceivedSegment = {
  counters: [],
  firstEntry: 21,
  entriesPreviousHash: 'e20',
  entryHead: 'e20',
  entries: [],
  entryHashes: [],
}

const withEntry = (entry: ReceivedEntry, counters: ReceivedSegment['counters']): ReceivedSegment => ({
  ...empty,
  counters,
  entries: [entry],
  entryHashes: ['e21'],
  entryHead: 'e21',
})

const account = (granted: bigint, used = 0n, refunded = 0n, returned = 0n): DeviceAccount => ({
  granted,
  used,
  refunded,
  returned,
  unlimited: false,
  metered: false,
  overspend: 0n,
})

const open: MergeTerms = { instances, returns: true, closes: false, grantTaken: false, grantsForgotten: false }
const counters = (used: bigint, refunded = 0n, returned = 0n): ReceivedSegment['counters'] =>
  [LINE, ACTION].map((name) => ({ account: name, used, refunded, returned }))
const known = (value: DeviceAccount): ReadonlyMap<string, DeviceAccount> =>
  new Map([
    [LINE, value],
    [ACTION, value],
  ])

describe('merging a segment', () => {
  it('raises the counters by the sums of the entries, and moves the chain forward', () => {
    const merge = mergeSegment(active, known(account(100n, 10n)), withEntry(onLine(5n), counters(15n)), open)
    expect(merge).toEqual({
      merged: true,
      changes: [LINE, ACTION].map((name) => ({
        account: name,
        before: account(100n, 10n),
        after: account(100n, 15n),
      })),
      lastEntry: 21,
      entryHead: 'e21',
    })
  })

  it('adds the tokens that the device returned to the counters', () => {
    const merge = mergeSegment(active, known(account(100n, 10n)), { ...empty, counters: counters(10n, 0n, 40n) }, open)
    expect(merge.merged && merge.changes[0]?.after).toEqual(account(100n, 10n, 0n, 40n))
  })

  it('ignores returns of a fenced epoch, which keeps holding them', () => {
    const merge = mergeSegment(fenced, known(account(100n, 10n)), withEntry(onLine(5n), counters(15n, 0n, 40n)), {
      ...open,
      returns: false,
    })
    expect(merge.merged && merge.changes[0]?.after).toEqual(account(100n, 15n))
  })

  it('closes every account exactly with the final segment, also those that it does not name', () => {
    const merge = mergeSegment(
      fenced,
      new Map([...known(account(100n, 10n)), ['line/other', account(7n, 3n, 1n)]]),
      withEntry(onLine(5n), counters(15n)),
      { ...open, returns: false, closes: true },
    )
    if (!merge.merged) throw new Error(merge.problem)
    expect(merge.changes.map(({ after }) => after)).toEqual([
      account(100n, 15n, 0n, 85n),
      account(100n, 15n, 0n, 85n),
      account(7n, 3n, 1n, 5n),
    ])
    for (const { after } of merge.changes) expect(available(after)).toBe(0n)
  })

  it('raises the grant to the use of a metered account', () => {
    const metered = { ...account(10n, 10n), unlimited: true, metered: true }
    const merge = mergeSegment(active, known(metered), withEntry(onLine(50n), counters(60n)), open)
    expect(merge.merged && merge.changes[0]?.after).toEqual({ ...account(60n, 60n), unlimited: true, metered: true })
  })

  it('raises no grant above the maximum that a device counts without a limit', () => {
    const metered = { ...account(10n, 10n), unlimited: true, metered: true }
    const use = (amount: bigint) =>
      mergeSegment(active, known(metered), withEntry(onLine(amount), counters(10n + amount)), open)
    expect(use(METERED_MAX - 10n).merged).toBe(true)
    expect(use(METERED_MAX - 9n)).toMatchObject({ merged: false, problem: 'MORE_SPENT_THAN_GRANTED' })
  })

  it('counts returned tokens of a metered account as granted, like used ones', () => {
    const metered = { ...account(10n, 4n), unlimited: true, metered: true }
    const merge = mergeSegment(active, known(metered), withEntry(onLine(50n), counters(54n, 0n, 6n)), open)
    const after = { ...account(60n, 54n, 0n, 6n), unlimited: true, metered: true }
    expect(merge.merged && merge.changes[0]?.after).toEqual(after)
    expect(available(after)).toBe(0n)
  })

  it('follows the use of an account with a limit until the device has reported all that it decided before it knew of it', () => {
    const limited = { ...account(10n, 10n), metered: true }
    const more = withEntry(onLine(50n), counters(60n))
    const merged = (grantTaken: boolean) => {
      const merge = mergeSegment(active, known(limited), more, { ...open, grantTaken })
      return merge.merged && merge.changes.map(({ after }) => after)
    }
    const after = account(60n, 60n)
    expect(merged(false)).toEqual([
      { ...after, metered: true },
      { ...after, metered: true },
    ])
    expect(merged(true)).toEqual([after, after])
  })

  it('ends the meter of an account with a limit that the segment says nothing of, and of no other', () => {
    const accounts = new Map([
      [LINE, { ...account(10n), metered: true }],
      [ACTION, { ...account(10n), unlimited: true, metered: true }],
    ])
    const merge = mergeSegment(active, accounts, empty, { ...open, grantTaken: true })
    expect(merge.merged && merge.changes.map(({ account: id, after }) => [id, after])).toEqual([[LINE, account(10n)]])
  })

  it('accepts the use of a device whose grants this side has forgotten', () => {
    const merge = mergeSegment(active, new Map(), withEntry(onLine(50n), counters(50n)), {
      ...open,
      grantsForgotten: true,
    })
    expect(merge.merged && merge.changes[0]?.after).toEqual(account(50n, 50n))
  })

  it('takes a burn, whose accounts each burn their own amount, as use', () => {
    const burn: ReceivedEntry = {
      ...onLine(0n),
      kind: 'burn',
      items: [],
      postings: [
        { account: LINE, amount: 7n },
        { account: ACTION, amount: 3n },
      ],
    }
    const after = [
      { account: LINE, used: 17n, refunded: 0n, returned: 0n },
      { account: ACTION, used: 13n, refunded: 0n, returned: 0n },
    ]
    const merge = mergeSegment(active, known(account(100n, 10n)), withEntry(burn, after), open)
    expect(merge.merged && merge.changes.map((change) => change.after.used)).toEqual([17n, 13n])
    expect(entryProblem({ ...burn, items: onLine(7n).items }, instances)).toBe('ENTRY_DOES_NOT_ADD_UP')
    expect(entryProblem({ ...burn, kind: 'access' }, instances)).toBe('ENTRY_DOES_NOT_ADD_UP')
  })

  it('raises the grant to the overspend that the offline policy permits, and not above the cap', () => {
    const essential = (cap: bigint): MergeTerms => ({
      ...open,
      overspendCapOf: (instanceId, lineItemId) => (instanceId === INSTANCE && lineItemId === 'ACT-1' ? cap : 0n),
    })
    const above = withEntry(onLine(95n), counters(105n))
    const within = mergeSegment(active, known(account(100n, 10n)), above, essential(5n))
    const settled = { ...account(105n, 105n), overspend: 5n }
    expect(within.merged && within.changes.map(({ after }) => after)).toEqual([settled, settled])
    const beyond = mergeSegment(active, known(account(100n, 10n)), above, essential(4n))
    expect(beyond).toMatchObject({ merged: false, problem: 'MORE_OVERSPEND_THAN_ALLOWED', account: LINE })
  })

  it('treats use above the cap as a forgotten grant where grants were forgotten, and the rest as overspend', () => {
    const terms: MergeTerms = { ...open, grantsForgotten: true, overspendCapOf: () => 4n }
    const above = withEntry(onLine(95n), counters(105n))
    const merge = mergeSegment(active, known(account(100n, 10n)), above, terms)
    const settled = { ...account(105n, 105n), overspend: 4n }
    expect(merge.merged && merge.changes.map(({ after }) => after)).toEqual([settled, settled])
    const unlimited = { ...account(100n, 10n), unlimited: true, metered: true }
    const metered = mergeSegment(active, known(unlimited), above, terms)
    expect(metered.merged && metered.changes.map(({ after }) => after.overspend)).toEqual([0n, 0n])
  })

  it('applies the cap to all periods of a line item together', () => {
    const next = lineAccount(INSTANCE, 'ACT-1', 1)
    const both: ReceivedSegment = {
      ...empty,
      counters: [LINE, next].map((name) => ({ account: name, used: 13n, refunded: 0n, returned: 0n })),
      entries: [21, 22].map((n, index) => ({
        ...onLine(3n),
        n,
        postings: [{ account: [LINE, next][index] ?? '', amount: 3n }],
      })),
      entryHashes: ['e21', 'e22'],
      entryHead: 'e22',
    }
    const before = new Map([
      [LINE, account(10n, 10n)],
      [next, account(10n, 10n)],
    ])
    const terms = (cap: bigint): MergeTerms => ({ ...open, overspendCapOf: () => cap })
    expect(mergeSegment(active, before, both, terms(6n)).merged).toBe(true)
    expect(mergeSegment(active, before, both, terms(5n))).toMatchObject({
      problem: 'MORE_OVERSPEND_THAN_ALLOWED',
      account: next,
    })
  })

  const one = withEntry(onLine(5n), counters(15n))
  const refund: ReceivedEntry = { ...onLine(20n), kind: 'refund' }
  const broken: [string, string, ReceivedSegment][] = [
    ['COUNTER_FELL', 'a counter that falls', { ...empty, counters: counters(9n) }],
    ['COUNTERS_DO_NOT_FIT_ENTRIES', 'use without an entry', { ...empty, counters: counters(11n) }],
    ['COUNTERS_DO_NOT_FIT_ENTRIES', 'an entry without its use', withEntry(onLine(5n), counters(14n))],
    ['COUNTERS_DO_NOT_FIT_ENTRIES', 'an entry on an account that no counter names', withEntry(onLine(5n), [])],
    ['COUNTERS_DO_NOT_FIT_ENTRIES', 'a refund counted as use', withEntry(refund, counters(30n))],
    ['MORE_SPENT_THAN_GRANTED', 'more use than was granted', withEntry(onLine(95n), counters(105n))],
    ['MORE_SPENT_THAN_GRANTED', 'more returned than is left', { ...empty, counters: counters(10n, 0n, 91n) }],
    ['MORE_SPENT_THAN_GRANTED', 'more refunded than was used', withEntry(refund, counters(10n, 20n))],
    ['ACCOUNT_NAMED_TWICE', 'an account named twice', { ...one, counters: [...counters(15n), ...counters(15n)] }],
    [
      'ACCOUNT_UNKNOWN',
      'an account of an impossible form',
      { ...empty, counters: [{ account: 'line/x', used: 0n, refunded: 0n, returned: 0n }] },
    ],
    [
      'INSTANCE_NOT_SERVED',
      'an account of an instance that the device does not serve',
      { ...empty, counters: [{ account: lineAccount(OTHER, 'x', 0), used: 0n, refunded: 0n, returned: 0n }] },
    ],
    ['ENTRY_CHAIN_BROKEN', 'another history of entries', { ...one, entriesPreviousHash: 'x' }],
    ['ENTRY_CHAIN_BROKEN', 'a head that is not the hash of the last entry', { ...one, entryHead: 'x' }],
    ['ENTRY_CHAIN_BROKEN', 'a head that moves without entries', { ...empty, entryHead: 'x' }],
    ['ENTRY_NUMBER_WRONG', 'a gap before the entries', { ...one, firstEntry: 22 }],
    ['ENTRY_NUMBER_WRONG', 'an entry with another number', { ...one, entries: [{ ...onLine(5n), n: 22 }] }],
  ]
  it.each(broken)('refuses with %s %s', (problem, _name, segment) => {
    const merge = mergeSegment(active, known(account(100n, 10n)), segment, open)
    expect(merge.merged ? 'merged' : merge.problem).toBe(problem)
  })

  it('refuses use of tokens that were never granted, even if all of it was refunded', () => {
    const both: ReceivedSegment = {
      ...empty,
      counters: counters(5n, 5n),
      entries: [onLine(5n), { ...onLine(5n), n: 22, kind: 'refund' }],
      entryHashes: ['e21', 'e22'],
      entryHead: 'e22',
    }
    const merged = (of: DeviceAccount, terms: Partial<MergeTerms> = {}) =>
      mergeSegment(active, new Map(known(of)), both, { ...open, ...terms })
    expect(merged(account(0n))).toMatchObject({ merged: false, problem: 'MORE_SPENT_THAN_GRANTED', account: LINE })
    expect(merged(account(1n))).toMatchObject({ merged: true })
    expect(merged({ ...account(0n), metered: true })).toMatchObject({ merged: true })
    expect(merged(account(0n), { grantsForgotten: true })).toMatchObject({ merged: true })
    const essential = (lineItem: string) => ({ overspendCapOf: (_: string, id: string) => (id === lineItem ? 1n : 0n) })
    expect(merged(account(0n), essential('ACT-1'))).toMatchObject({ merged: true })
    expect(merged(account(0n), essential('ACT-2'))).toMatchObject({ merged: false })
    const before = account(0n, 5n, 5n)
    const unchanged = mergeSegment(active, known(before), { ...empty, counters: counters(5n, 5n) }, open)
    expect(unchanged).toMatchObject({ merged: true, changes: [] })
  })

  it('refuses a device that takes back returned tokens', () => {
    const segment = { ...empty, counters: counters(10n, 0n, 4n) }
    const merge = mergeSegment(active, known(account(100n, 10n, 0n, 5n)), segment, open)
    expect(merge.merged ? 'merged' : merge.problem).toBe('COUNTER_FELL')
  })

  it('never lets billing differ from the entries, nor a balance become negative', () => {
    const move = fc.record({ kind: fc.constantFrom('access' as const, 'refund' as const), amount: fc.bigInt(0n, 40n) })
    fc.assert(
      fc.property(fc.array(move), fc.bigInt(0n, 100n), fc.bigInt(0n, 60n), (moves, granted, lie) => {
        let state: EpochState = active
        let accounts: ReadonlyMap<string, DeviceAccount> = known(account(granted))
        let [used, refunded, bill] = [0n, 0n, 0n]
        for (const { kind, amount } of moves) {
          const [u, f] = kind === 'access' ? [used + amount, refunded] : [used, refunded + amount]
          const segment: ReceivedSegment = {
            counters: counters(u, f, 0n),
            firstEntry: state.lastEntry + 1,
            entriesPreviousHash: state.entryHead,
            entryHead: `e${state.lastEntry + 1}`,
            entries: [{ ...onLine(amount), kind, n: state.lastEntry + 1 }],
            entryHashes: [`e${state.lastEntry + 1}`],
          }
          const merge = mergeSegment(state, accounts, segment, open)
          const lied = { ...segment, counters: counters(u + 1n + lie, f, 0n) }
          expect(mergeSegment(state, accounts, lied, open).merged).toBe(false)
          const fits = u - f <= granted && f <= u
          expect(merge.merged).toBe(fits)
          if (!merge.merged) continue
          const changed = new Map(merge.changes.map((change) => [change.account, change.after]))
          accounts = new Map([...accounts].map(([name, value]) => [name, changed.get(name) ?? value]))
          for (const { before, after } of merge.changes.slice(0, 1)) bill += movement(before, after).billed
          state = { ...state, lastEntry: merge.lastEntry, entryHead: merge.entryHead }
          ;[used, refunded] = [u, f]
          const now = accounts.get(LINE) ?? NO_DEVICE_ACCOUNT
          expect(available(now) >= 0n).toBe(true)
          expect(billed(now)).toBe(used - refunded)
          expect(bill).toBe(used - refunded)
        }
      }),
    )
  })
})

describe('a single entry', () => {
  it.each([actionAccount(INSTANCE, 'ACT-1', 'b'), limitAccount(INSTANCE, 'ACT-1', { type: 'user', value: 'u' }, 0)])(
    'posts to %s no more than the line item was charged',
    (account) => {
      const entry = onLine(5n)
      const beside = (...amounts: bigint[]) => ({
        ...entry,
        postings: [...entry.postings, ...amounts.map((amount) => ({ account, amount }))],
      })
      expect(entryProblem(beside(5n), instances)).toBeUndefined()
      expect(entryProblem(beside(3n, 2n), instances)).toBeUndefined()
      expect(entryProblem(beside(3n, 3n), instances)).toBe('ENTRY_DOES_NOT_ADD_UP')
      const alone = { ...entry, items: [], postings: [{ account, amount: 1n }] }
      expect(entryProblem(alone, instances)).toBe('ENTRY_DOES_NOT_ADD_UP')
      expect(entryProblem({ ...alone, kind: 'burn' }, instances)).toBeUndefined()
    },
  )

  it('is in order when postings and lines of the bill agree', () => {
    expect(entryProblem(onLine(5n), instances)).toBeUndefined()
  })

  it('may bill nothing at all', () => {
    const refused = { ...onLine(0n), items: [{ total: 0n, parts: [] }], postings: [] }
    expect(entryProblem(refused, instances)).toBeUndefined()
  })

  it('is refused when it posts something that it does not bill', () => {
    expect(entryProblem({ ...onLine(5n), items: [] }, instances)).toBe('ENTRY_DOES_NOT_ADD_UP')
  })

  it('is refused when it bills something that it does not post', () => {
    expect(entryProblem({ ...onLine(5n), postings: [] }, instances)).toBe('ENTRY_DOES_NOT_ADD_UP')
  })

  it('is refused when the parts are not the total', () => {
    const entry = onLine(5n)
    expect(entryProblem({ ...entry, items: [{ ...entry.items[0]!, total: 6n }] }, instances)).toBe(
      'ENTRY_DOES_NOT_ADD_UP',
    )
  })

  it('is refused when it posts to another instance than its own', () => {
    const entry = { ...onLine(5n), instanceId: OTHER }
    expect(entryProblem(entry, new Set([INSTANCE, OTHER]))).toBe('ACCOUNT_UNKNOWN')
  })
})

it('moves the totals of an account by the reserved and the billed tokens', () => {
  expect(movement(NO_COUNTERS, account(100n, 30n, 10n, 50n))).toEqual({ outstanding: 50n, billed: 20n })
})

describe('the change of a segment', () => {
  const merged = (
    accounts: ReadonlyMap<string, DeviceAccount>,
    segment: ReceivedSegment,
    terms: Partial<MergeTerms> = {},
    state = active,
  ) => mergeSegment(state, accounts, segment, { ...open, ...terms })
  const changed = (merge: ReturnType<typeof merged>) => (merge.merged ? merge.changes.map(({ after }) => after) : merge)

  it('is empty if it only repeats known counters', () => {
    const segment = { ...empty, counters: counters(10n, 3n, 2n) }
    expect(changed(merged(known(account(100n, 10n, 3n, 2n)), segment))).toEqual([])
    expect(changed(merged(known(account(12n, 10n, 0n, 2n)), empty, { closes: true }))).toEqual([])
  })

  it('raises the grant to earlier use above it, although no counter moves', () => {
    const segment = { ...empty, counters: [{ account: LINE, used: 15n, refunded: 0n, returned: 0n }] }
    const before = new Map([[LINE, account(10n, 15n)]])
    expect(changed(merged(before, segment, { overspendCapOf: () => 5n }))).toEqual([
      { ...account(15n, 15n), overspend: 5n },
    ])
  })

  it('is empty for a segment without entries, whichever entry it would begin with', () => {
    expect(merged(known(account(10n)), { ...empty, firstEntry: 99 }).merged).toBe(true)
  })

  it.each<[string, DeviceAccount, bigint, bigint, bigint, bigint]>([
    ['what was refunded', account(10n, 20n), 70n, 10n, 0n, 60n],
    ['what was returned', account(10n, 20n, 10n, 5n), 70n, 10n, 5n, 65n],
    ['no use that it holds already', account(100n, 20n), 70n, 0n, 0n, 100n],
    ['use that it holds exactly', account(70n, 20n), 70n, 0n, 0n, 70n],
  ])('is a metered grant that follows use less %s', (_name, before, used, refunded, returned, granted) => {
    const counter = { account: LINE, used, refunded, returned }
    const entries = [
      { ...onLine(used - before.used), postings: [{ account: LINE, amount: used - before.used }] },
      ...(refunded > before.refunded
        ? [
            {
              ...onLine(refunded - before.refunded),
              n: 22,
              kind: 'refund' as const,
              postings: [{ account: LINE, amount: refunded - before.refunded }],
            },
          ]
        : []),
    ]
    const entryHashes = entries.map(({ n }) => `e${n}`)
    const segment = { ...empty, counters: [counter], entries, entryHashes, entryHead: entryHashes.at(-1)! }
    const merge = merged(new Map([[LINE, { ...before, unlimited: true, metered: true }]]), segment)
    expect(merge.merged && merge.changes[0]?.after.granted).toBe(granted)
  })

  it('is judged by a cap for each line item, and for each other account by itself', () => {
    const other = lineAccount(INSTANCE, 'ACT-2', 0)
    const accounts = [ACTION, LINE, other]
    const segment = {
      ...empty,
      counters: accounts.map((name) => ({ account: name, used: 15n, refunded: 0n, returned: 0n })),
    }
    const before = new Map(accounts.map((name) => [name, account(10n, 15n)]))
    const merge = merged(before, segment, { overspendCapOf: () => 5n })
    expect(merge.merged && merge.changes.map((change) => change.after.overspend)).toEqual([5n, 5n, 5n])
  })

  it.each<[string, ReceivedSegment, object]>([
    ['refunds that fall', { ...empty, counters: counters(10n, 2n) }, { problem: 'COUNTER_FELL', account: LINE }],
    [
      'refunds that no entry gives',
      { ...empty, counters: counters(10n, 4n) },
      { problem: 'COUNTERS_DO_NOT_FIT_ENTRIES', account: LINE },
    ],
    [
      'a gap before the entries',
      { ...withEntry({ ...onLine(5n), n: 22 }, counters(15n, 3n)), firstEntry: 22 },
      { problem: 'ENTRY_NUMBER_WRONG', n: 22 },
    ],
    [
      'an entry of an instance that the device does not serve',
      withEntry({ ...onLine(5n), instanceId: OTHER }, counters(15n, 3n)),
      { problem: 'INSTANCE_NOT_SERVED', n: 21 },
    ],
  ])('is nothing with %s, and the refusal says where', (_name, segment, problem) => {
    expect(merged(known(account(100n, 10n, 3n)), segment)).toEqual({ merged: false, ...problem })
  })
})

it.each<[string, Partial<ReceivedEntry>, string | undefined]>([
  ['that moves nothing is in order', { items: [], postings: [] }, undefined],
  ['moves no tokens, whatever adds up', {}, 'ENTRY_DOES_NOT_ADD_UP'],
  ['has no items', { postings: [] }, 'ENTRY_DOES_NOT_ADD_UP'],
  ['has no postings', { items: [] }, 'ENTRY_DOES_NOT_ADD_UP'],
])('a change of a session %s', (_name, changes, problem) => {
  expect(entryProblem({ ...onLine(5n), kind: 'session', ...changes }, instances)).toBe(problem)
})

it('an entry that posts to no account at all is refused', () => {
  const postings = [{ account: 'no account', amount: 5n }]
  expect(entryProblem({ ...onLine(5n), postings }, instances)).toBe('ACCOUNT_UNKNOWN')
})

it('only changed counters move the totals of an account', () => {
  const [before, after] = [account(100n, 30n, 10n, 50n), account(120n, 50n, 10n, 60n)]
  expect(movement(before, after)).toEqual({ outstanding: 10n, billed: 20n })
})

it.each([
  [0, 21, 'e20', ['a', 'b', 'c']],
  [1, 22, 'e21', ['b', 'c']],
  [2, 23, 'e22', ['c']],
  [3, 24, 'e23', []],
])(
  'without its first %d entries, which are known, a segment begins with the one after them',
  (count, first, previous, ids) => {
    const entries = ['a', 'b', 'c'].map((id, index) => ({ ...onLine(1n), n: 21 + index, instanceId: id }))
    const segment = { ...empty, entries, entryHashes: ['e21', 'e22', 'e23'], entryHead: 'e23' }
    const rest = withoutKnown(segment, count)
    expect([rest.firstEntry, rest.entriesPreviousHash, rest.entryHead]).toEqual([first, previous, 'e23'])
    expect(rest.entries.map(({ instanceId }) => instanceId)).toEqual(ids)
    expect(rest.entryHashes).toEqual(['e21', 'e22', 'e23'].slice(count))
  },
)
