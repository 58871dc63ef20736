import fc from '../../support/fast-check.ts'
import { describe, expect, it, test } from 'vitest'
import { actionAccount, lineAccount, limitAccount } from '../../../src/core/accounts/account.ts'
import { decimal } from '../../../src/core/pricing/amount.ts'
import type { Decision } from '../../../src/core/rules/decision.ts'
import {
  type ReservedItem,
  SESSION_REST_MS,
  type Session,
  type SessionEvent,
  type SessionState,
  chargedUntil,
  due,
  hasEnded,
  reservedItems,
  isLive,
  newSession,
  nextDue,
  refundsByAccount,
  step,
  unused,
} from '../../../src/core/sessions/session.ts'

const HOUR = 3_600_000
const START = 1_000_000
const requester = { type: 'user', value: 'x', dictionary: {} }

const held = (...charges: bigint[]): readonly ReservedItem[] => [
  {
    item: { name: 'A', version: '', count: decimal(1), metaData: null },
    shares: charges.map((charged, index) => ({
      lineItemId: `L${index}`,
      accounts: [lineAccount('i', `L${index}`, 0)],
      charged,
    })),
  },
]

const granted = (items = held(600n)): SessionEvent => ({ kind: 'GRANTED', requester, items, intervalMs: HOUR })

const idle = newSession({ id: 's', instanceId: 'i', deviceId: null }, START)
const active = step(idle, granted(), START).session
const renewed = step(active, { kind: 'RENEWED', items: held(700n) }, START + HOUR).session

const amounts = (items: readonly ReservedItem[]): bigint[] =>
  items.flatMap(({ shares }) => shares.map(({ charged }) => charged))

describe('a session, step by step', () => {
  it('begins IDLE, without a charge, and stays so for 30 days', () => {
    expect(idle).toMatchObject({
      state: 'IDLE',
      charge: null,
      heartbeatDue: null,
      lastHeartbeat: 0,
      lastAccessRequest: 0,
    })
    expect(chargedUntil(idle)).toBe(0)
    expect([due(idle, START + SESSION_REST_MS - 1), due(idle, START + SESSION_REST_MS)]).toEqual([null, 'IDLED_OUT'])
  })

  it('is ACTIVE once items are granted, charged for one interval, and needs no heartbeat', () => {
    expect(active).toMatchObject({
      state: 'ACTIVE',
      requester,
      intervalMs: HOUR,
      heartbeatDue: null,
      lastAccessRequest: START,
    })
    expect(chargedUntil(active)).toBe(START + HOUR)
    expect([due(active, START + HOUR - 1), due(active, START + HOUR)]).toEqual([null, 'RENEWAL'])
  })

  it('refunds the rest of the interval and begins a new timeline when its items are replaced', () => {
    const at = START + HOUR / 3
    const { session, refund } = step(active, granted(held(900n)), at)
    expect(amounts(refund)).toEqual([400n])
    expect(session.charge).toEqual({ from: at, until: at + HOUR, items: held(900n) })
  })

  it('needs a heartbeat within half an interval after a renewal, which is otherwise refunded in full', () => {
    expect(renewed).toMatchObject({ state: 'ACTIVE', heartbeatDue: START + 1.5 * HOUR })
    expect(chargedUntil(renewed)).toBe(START + 2 * HOUR)
    expect(due(renewed, START + 1.5 * HOUR)).toBe('HEARTBEAT_MISSED')
    const missed = step(renewed, { kind: 'HEARTBEAT_MISSED' }, START + 1.5 * HOUR)
    expect(missed.session.state).toBe('TERMINATED')
    expect(amounts(missed.refund)).toEqual([700n])
    const beaten = step(renewed, { kind: 'HEARTBEAT' }, START + 1.2 * HOUR)
    expect(beaten).toEqual({
      session: { ...renewed, lastHeartbeat: START + 1.2 * HOUR, heartbeatDue: null },
      refund: [],
    })
    expect(nextDue(beaten.session)).toBe(START + 2 * HOUR)
  })

  it('is renewed late without charging for the time before, and with a heartbeat from then on', () => {
    const late = START + 4.2 * HOUR
    const { session } = step(active, { kind: 'RENEWED', items: held(600n) }, late)
    expect(session.charge).toMatchObject({ from: START + 4 * HOUR, until: START + 5 * HOUR })
    expect(session.heartbeatDue).toBe(late + HOUR / 2)
  })

  it('is renewed at once when the clock has gone back by more than an interval before its charge', () => {
    const from = START + 90 * HOUR
    const ahead = step(active, { kind: 'RENEWED', items: held(600n) }, from).session
    expect([due(ahead, from - HOUR), due(ahead, from - HOUR - 1)]).toEqual([null, 'RENEWAL'])
    const at = START + HOUR
    const { session, refund } = step(ahead, { kind: 'RENEWED', items: held(700n) }, at)
    expect(session.charge).toEqual({ from: at, until: at + HOUR, items: held(700n) })
    expect([session.heartbeatDue, refund]).toEqual([at + HOUR / 2, ahead.charge?.items])
    expect(step(ahead, { kind: 'NOT_RENEWED' }, at).refund).toEqual(ahead.charge?.items)
    expect([due(ahead, from - 2 * HOUR, 2 * HOUR), due(ahead, from - 2 * HOUR - 1, 2 * HOUR)]).toEqual([
      null,
      'RENEWAL',
    ])
    expect(due({ ...ahead, keptBy: 'device' }, at)).toBeNull()
    expect(due(step(ahead, { kind: 'LOCKED' }, at).session, at)).toBeNull()
  })

  it('does not get more time for its heartbeat by the next renewal', () => {
    const late = step(active, { kind: 'RENEWED', items: held(600n) }, START + 1.9 * HOUR).session
    expect(late.heartbeatDue).toBe(START + 2.4 * HOUR)
    expect(due(late, START + 2 * HOUR)).toBe('RENEWAL')
    const again = step(late, { kind: 'RENEWED', items: held(600n) }, START + 2 * HOUR).session
    expect(again.heartbeatDue).toBe(START + 2.4 * HOUR)
  })

  it.each<[string, SessionEvent, SessionState, bigint[]]>([
    ['a refusal that keeps it', { kind: 'REFUSED', then: 'KEEP' }, 'ACTIVE', []],
    ['a refusal that ends it', { kind: 'REFUSED', then: 'END' }, 'TERMINATED', [300n]],
    ['a halt', { kind: 'HALTED' }, 'IDLE', [300n]],
    ['a close', { kind: 'CLOSED' }, 'TERMINATED', [300n]],
    ['a renewal that is refused', { kind: 'NOT_RENEWED' }, 'TERMINATED', []],
    ['a failure', { kind: 'FAILED' }, 'FAILED', []],
  ])('after %s', (_name, event, state, refund) => {
    const at = START + HOUR / 2
    const after = step(active, event, at)
    expect([after.session.state, amounts(after.refund)]).toEqual([state, refund])
    if (state === 'ACTIVE') expect(after.session).toEqual({ ...active, lastAccessRequest: at })
    else expect(after.session).toMatchObject({ charge: null, intervalMs: 0, heartbeatDue: null, since: at })
  })

  it('refunds nothing if it is IDLE', () => {
    for (const event of [{ kind: 'CLOSED' }, { kind: 'IDLED_OUT' }, { kind: 'REFUSED', then: 'END' }] as const) {
      expect(step(idle, event, START + 1)).toMatchObject({ session: { state: 'TERMINATED' }, refund: [] })
    }
    expect(step(idle, { kind: 'HALTED' }, START + 1).session).toEqual({ ...idle, lastAccessRequest: START + 1 })
  })

  it('accepts no event after its end', () => {
    const states: SessionState[] = ['TERMINATED', 'FAILED', 'DISCONNECTED']
    for (const state of states) {
      const over: Session = { ...idle, state }
      expect(() => step(over, { kind: 'HEARTBEAT' }, START)).toThrow('invariant')
      expect(due(over, START + SESSION_REST_MS)).toBe('FORGET')
    }
  })
})

describe('a session that an administrator locks', () => {
  const HALF = START + HOUR / 2
  const locked = step(renewed, { kind: 'LOCKED' }, START + HOUR + 1).session

  it('keeps its charge, and needs neither heartbeat nor renewal', () => {
    expect(locked).toMatchObject({ state: 'LOCKED', charge: renewed.charge, heartbeatDue: null })
    expect([due(locked, START + 20 * HOUR), due(locked, locked.since + SESSION_REST_MS)]).toEqual([null, 'IDLED_OUT'])
    expect(() => step(locked, { kind: 'HEARTBEAT' }, HALF)).toThrow('invariant')
    expect(() => step(active, { kind: 'UNLOCKED' }, HALF)).toThrow('invariant')
  })

  it('is ACTIVE again until the end of the charged interval, and IDLE afterwards', () => {
    const again = step(locked, { kind: 'UNLOCKED' }, START + HOUR + 2).session
    expect(again).toMatchObject({ state: 'ACTIVE', charge: renewed.charge, heartbeatDue: null })
    const late = step(locked, { kind: 'UNLOCKED' }, START + 2 * HOUR)
    expect(late).toMatchObject({ session: { state: 'IDLE', charge: null }, refund: [] })
    expect(step(step(idle, { kind: 'LOCKED' }, HALF).session, { kind: 'UNLOCKED' }, HALF).session.state).toBe('IDLE')
  })

  it('refunds the rest of the interval at its end', () => {
    const { session, refund } = step(locked, { kind: 'CLOSED' }, START + 1.5 * HOUR)
    expect([session.state, amounts(refund)]).toEqual(['TERMINATED', [350n]])
  })
})

describe('a suspended session', () => {
  const at = START + HOUR / 4
  const { session: suspended, refund } = step(active, { kind: 'SUSPENDED' }, at)

  it('refunds the rest of the interval once', () => {
    expect(amounts(refund)).toEqual([450n])
    expect(amounts(step(suspended, { kind: 'CLOSED' }, at).refund)).toEqual([])
    expect(amounts(unused(suspended, at))).toEqual([])
  })

  it('stays ACTIVE, and is charged from the suspension on as soon as possible', () => {
    expect(suspended.state).toBe('ACTIVE')
    expect(due(suspended, at)).toBe('RENEWAL')
    const resumed = step(suspended, { kind: 'RENEWED', items: held(600n) }, at + 5).session
    expect(resumed.charge).toMatchObject({ from: at, until: at + HOUR })
    const late = step(suspended, { kind: 'RENEWED', items: held(600n) }, at + 3.5 * HOUR).session
    expect(late.charge).toMatchObject({ from: at + 3 * HOUR, until: at + 4 * HOUR })
  })

  it('needs no heartbeat until half an interval after its next charge', () => {
    const at = START + 1.25 * HOUR
    const waiting = step(renewed, { kind: 'SUSPENDED' }, at).session
    expect(waiting.heartbeatDue).toBeNull()
    expect(due(waiting, START + 10 * HOUR)).toBe('RENEWAL')
    const resumed = step(waiting, { kind: 'RENEWED', items: held(700n) }, START + 1.4 * HOUR).session
    expect(resumed.heartbeatDue).toBe(START + 1.9 * HOUR)
    expect(due(resumed, START + 1.5 * HOUR)).toBeNull()
  })

  it('is refunded for no time before or after its interval', () => {
    const early = step(active, { kind: 'SUSPENDED' }, START - HOUR)
    expect([early.session.charge?.from, amounts(early.refund)]).toEqual([START, [600n]])
    const late = step(active, { kind: 'SUSPENDED' }, START + 5 * HOUR)
    expect([late.session.charge?.from, amounts(late.refund)]).toEqual([START + HOUR, [0n]])
  })

  it('keeps its items without their cost', () => {
    const [item] = active.charge?.items ?? []
    expect(step(active, { kind: 'SUSPENDED' }, at).session.charge).toEqual({
      from: at,
      until: at,
      items: [{ item: item?.item, shares: [] }],
    })
  })

  it('is unchanged if it was IDLE', () => {
    expect(step(idle, { kind: 'SUSPENDED' }, at)).toEqual({ session: idle, refund: [] })
  })
})

describe('a session that a device keeps', () => {
  it('has nothing due until it has ended', () => {
    const kept: Session = { ...renewed, keptBy: 'device' }
    expect(due(kept, START + 100 * SESSION_REST_MS)).toBeNull()
    const ended: Session = { ...kept, state: 'TERMINATED', since: START }
    expect(due(ended, START + SESSION_REST_MS)).toBe('FORGET')
  })
})

describe('a refund', () => {
  it('is rounded so that the shares sum to the rounded total, and none exceeds its charge', () => {
    fc.assert(
      fc.property(
        fc.array(fc.bigInt({ min: 1n, max: 1_000_000_000n }), { minLength: 1, maxLength: 20 }),
        fc.integer({ min: 0, max: HOUR }),
        (charges, elapsed) => {
          const session = step(idle, granted(held(...charges)), START).session
          const back = amounts(unused(session, START + elapsed))
          const total = charges.reduce((sum, charge) => sum + charge, 0n)
          const sum = back.reduce((all, part) => all + part, 0n)
          const exactly = (total * BigInt(HOUR - elapsed) * 2n) / BigInt(HOUR)
          expect(back.every((part, index) => part >= 0n && part <= (charges[index] ?? 0n))).toBe(true)
          expect(sum * 2n - exactly >= -1n && sum * 2n - exactly <= 2n).toBe(true)
        },
      ),
    )
  })

  it('is the whole charge at the beginning, and nothing at the end', () => {
    const session = step(idle, granted(held(1n, 1n, 1n)), START).session
    expect(amounts(unused(session, START))).toEqual([1n, 1n, 1n])
    expect(amounts(unused(session, START - 5))).toEqual([1n, 1n, 1n])
    expect(amounts(unused(session, START + HOUR))).toEqual([0n, 0n, 0n])
    expect(amounts(unused(session, START + 9 * HOUR))).toEqual([0n, 0n, 0n])
    expect(amounts(unused(session, START + HOUR / 2))).toEqual([0n, 1n, 1n])
  })

  it('is returned to every charged account: pool, allocation and limit', () => {
    const [pool, other] = [lineAccount('i', 'L', 2), lineAccount('i', 'M', 0)]
    const allocation = actionAccount('i', 'L', 'a')
    const limit = limitAccount('i', 'L', requester, 1)
    const decision: Decision = {
      items: [
        {
          outcome: 'GRANTED',
          total: 30n,
          shares: [
            { lineItemId: 'L', rate: decimal(1), actionId: 'a', charged: 20n },
            { lineItemId: 'M', rate: decimal(2), actionId: null, charged: 10n },
          ],
        },
      ],
      postings: [pool, allocation, limit, other].map((account) => ({ account, amount: 1n })),
      warnings: [],
    }
    const item = { name: 'A', version: '', count: decimal(1), metaData: null }
    expect(reservedItems([item], decision)).toEqual([
      {
        item,
        shares: [
          { lineItemId: 'L', charged: 20n, accounts: [pool, allocation, limit], rate: decimal(1) },
          { lineItemId: 'M', charged: 10n, accounts: [other], rate: decimal(2) },
        ],
      },
    ])
  })
})

test.each<[SessionState, boolean, boolean]>([
  ['IDLE', true, false],
  ['ACTIVE', true, false],
  ['LOCKED', false, false],
  ['TERMINATED', false, true],
  ['FAILED', false, true],
  ['DISCONNECTED', false, true],
])('a session that is %s is live: %s, and has ended: %s', (state, live, ended) => {
  expect([isLive({ state }), hasEnded({ state })]).toEqual([live, ended])
})

test('a session is in its state since it came into it', () => {
  expect(active.since).toBe(START)
  const resting = step(active, { kind: 'HALTED' }, START + 5).session
  const again = step(resting, granted(), START + 9).session
  expect([resting.since, again.since]).toEqual([START + 5, START + 9])
  expect(step(again, granted(), START + 20).session.since).toBe(START + 9)
})

test('a charge names the accounts of its line item and of the action that allowed it, and none for a free item', () => {
  const pool = lineAccount('i', 'L', 0)
  const [own, other] = [actionAccount('i', 'L', 'a'), actionAccount('i', 'L', 'b')]
  const decision: Decision = {
    items: [
      {
        outcome: 'GRANTED',
        total: 5n,
        shares: [
          { lineItemId: 'L', rate: decimal(1), actionId: 'a', charged: 5n },
          { lineItemId: 'M', rate: decimal(0), actionId: null, charged: 0n },
        ],
      },
    ],
    postings: [pool, own, other, 'no account', lineAccount('i', 'M', 0)].map((account) => ({ account, amount: 5n })),
    warnings: [],
  }
  const item = { name: 'A', version: '', count: decimal(1), metaData: null }
  expect(reservedItems([item], decision)[0]?.shares).toEqual([
    { lineItemId: 'L', charged: 5n, accounts: [pool, own], rate: decimal(1) },
  ])
  const refused: Decision = { items: [{ outcome: 'NOT_CHARGED' }], postings: [], warnings: [] }
  expect(() => reservedItems([item], refused)).toThrow('invariant')
  expect(() => reservedItems([item, item], decision)).toThrow('invariant')
})

test('refunds add up by account, without those of amounts that round to zero', () => {
  const [first, second] = [lineAccount('i', 'L0', 0), lineAccount('i', 'L1', 0)]
  const refund = [...held(5n, 0n), ...held(2n), ...held(0n, 0n, 0n)]
  expect([...refundsByAccount(refund)]).toEqual([[first, 7n]])
  expect([...refundsByAccount(held(1n, 3n))]).toEqual([
    [first, 1n],
    [second, 3n],
  ])
})
