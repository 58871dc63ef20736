// What may be spent beyond the grants: only after every grant, in the order in which line items are charged, and no further
// than the overspend of each account.
import { describe, expect, it } from 'vitest'
import { actionAccount, limitAccount, lineAccount } from '../../../src/core/accounts/account.ts'
import { decimal, parseDecimal } from '../../../src/core/pricing/amount.ts'
import { compilePolicy } from '../../../src/core/rules/compile.ts'
import { type Mode, decide } from '../../../src/core/rules/decide.ts'
import { type Decision, type AvailableBalance, exactly } from '../../../src/core/rules/decision.ts'
import type { LineItem } from '../../../src/core/rules/policy.ts'
import fc from '../../support/fast-check.ts'

interface Line {
  readonly left: number | 'UNLIMITED'
  readonly overspend?: number
  readonly rate?: string
  /** Of an action that allows everybody. */
  readonly allocation?: { readonly left: number; readonly overspend?: number }
  /** Left of the requester's consumption limit. */
  readonly limit?: number
}

function availableOf({ left, overspend }: Pick<Line, 'left' | 'overspend'>): AvailableBalance {
  return {
    left: left === 'UNLIMITED' ? left : BigInt(left),
    shortage: 'GRANT',
    ...(overspend === undefined ? {} : { overspend: BigInt(overspend) }),
  }
}

/** Line items a, b, c ... in the order in which they are charged; counts are micro-tokens at the rate 1. */
function decided(lines: readonly Line[], counts: readonly string[], mode: Mode = 'BEST_EFFORT'): Decision {
  const periods = [{ index: 0, from: null, until: null }]
  const requester = { type: 'user', value: 'ada' }
  const lineItems = lines.map(({ allocation, limit }, index): LineItem => {
    const id = 'abc'[index] ?? ''
    const action = { id: 'x', name: null, conditionId: null, effect: 'ALLOW' as const, allocation: 1n }
    return {
      ...{ id, state: 'DEPLOYED', elastic: true, rateTableSeries: id, startsAt: 0, endsAt: 1_000 + index, periods },
      ...{ quantity: 1n, overdraft: 0n, actions: allocation === undefined ? [] : [action] },
      consumptionLimit: limit === undefined ? null : { limit: 1n, periods },
    }
  })
  const rateTables = lines.map(({ rate = '1' }, index) => {
    const micro = decimal(rate)
    const item = { name: 'print', version: '', rate: { ...micro, scale: micro.scale + 6 } }
    return { series: 'abc'[index] ?? '', version: '1', effectiveFrom: 0, items: [item] }
  })
  const rules = { conditions: [], timezoneTolerant: false, undecidedClock: 'refuse' as const }
  const policy = compilePolicy({ instanceId: 'i', revision: 1, lineItems, rateTables, ...rules })
  const balances = new Map<string, AvailableBalance>()
  for (const [index, line] of lines.entries()) {
    const id = 'abc'[index] ?? ''
    balances.set(lineAccount('i', id, 0), availableOf(line))
    if (line.allocation !== undefined) balances.set(actionAccount('i', id, 'x'), availableOf(line.allocation))
    if (line.limit !== undefined) {
      balances.set(limitAccount('i', id, requester, 0), { left: BigInt(line.limit), shortage: 'POOL' })
    }
  }
  const items = counts.map((count) => ({ name: 'print', version: '', count: parseDecimal(count)! }))
  const request = { requester: { ...requester, dictionary: {} }, items }
  return decide(policy.at(exactly(500)), request, (account) => balances.get(account)!, mode)
}

/** What each line item pays, by item; null for an item that is refused. */
function paid({ items }: Decision): readonly (readonly (readonly [string, number])[] | null)[] {
  return items.map((item) =>
    item.outcome === 'GRANTED' ? item.shares.map((share) => [share.lineItemId, Number(share.charged)] as const) : null,
  )
}

describe('beyond the grants', () => {
  it.each<[string, readonly Line[], number, readonly (readonly [string, number])[] | null, boolean]>([
    ['nothing is spent while they hold enough', [{ left: 10, overspend: 5 }], 10, [['a', 10]], false],
    ['all of the overspend may be spent', [{ left: 10, overspend: 5 }], 15, [['a', 15]], true],
    ['no more than that', [{ left: 10, overspend: 5 }], 16, null, false],
    ['overspend pays where the grant is used up', [{ left: 0, overspend: 5 }], 5, [['a', 5]], true],
    ['nothing is spent without overspend', [{ left: 10 }], 11, null, false],
    ['an overspend of 0 is the same as none', [{ left: 10, overspend: 0 }], 11, null, false],
    [
      'overspend waits for the grants of all line items',
      [{ left: 5, overspend: 10 }, { left: 3 }],
      10,
      [
        ['a', 7],
        ['b', 3],
      ],
      true,
    ],
    [
      'they are spent in the order of the line items',
      [{ left: 1, overspend: 2 }, { left: 1 }, { left: 1, overspend: 9 }],
      6,
      [
        ['a', 3],
        ['b', 1],
        ['c', 2],
      ],
      true,
    ],
    [
      'a line item without limit is never overdrawn',
      [{ left: 'UNLIMITED' }, { left: 0, overspend: 9 }],
      99,
      [['a', 99]],
      false,
    ],
    [
      'the account that reaches least bounds them',
      [{ left: 5, overspend: 10, allocation: { left: 2, overspend: 4 } }],
      6,
      [['a', 6]],
      true,
    ],
    ['and nothing beyond it', [{ left: 5, overspend: 10, allocation: { left: 2, overspend: 4 } }], 7, null, false],
    [
      'an allocation without overspend allows none',
      [{ left: 5, overspend: 10, allocation: { left: 2 } }],
      3,
      null,
      false,
    ],
    [
      'a pool without overspend allows none, whatever its allocation may owe',
      [{ left: 5, allocation: { left: 2, overspend: 9 } }],
      6,
      null,
      false,
    ],
    [
      'an allocation of a pool without limit may owe its own',
      [{ left: 'UNLIMITED', allocation: { left: 2, overspend: 4 } }],
      6,
      [['a', 6]],
      true,
    ],
    [
      'the last micro-token counts there too',
      [{ left: 'UNLIMITED', allocation: { left: 2, overspend: 4 } }],
      7,
      null,
      false,
    ],
  ])('%s', (_name, lines, count, expected, isBeyond) => {
    const decision = decided(lines, [String(count)])
    expect(paid(decision)).toEqual([expected])
    expect(decision.warnings).toEqual(isBeyond ? ['ESSENTIAL_OFFLINE'] : [])
    const posted = decision.postings.filter(({ account }) => account.startsWith('line/'))
    expect(posted.reduce((sum, { amount }) => sum + amount, 0n)).toBe(expected === null ? 0n : BigInt(count))
  })

  it('the items of a request share the overspend, and the warning is named once', () => {
    const decision = decided([{ left: 10, overspend: 5 }], ['12', '3', '1'])
    expect(paid(decision)).toEqual([[['a', 12]], [['a', 3]], null])
    expect(decision.warnings).toEqual(['ESSENTIAL_OFFLINE'])
    expect(decision.postings).toEqual([{ account: 'line/i/a/0', amount: 15n }])
  })

  it('an item that finds the grant overdrawn by the one before it has no grant left', () => {
    expect(paid(decided([{ left: 10, overspend: 5 }, { left: 3 }], ['14', '4']))).toEqual([
      [
        ['a', 11],
        ['b', 3],
      ],
      [['a', 4]],
    ])
  })

  it('a request of which nothing is charged has no warning', () => {
    const decision = decided([{ left: 10, overspend: 5 }], ['12', '99'], 'ALL_OR_NOTHING')
    expect(decision).toMatchObject({ postings: [], warnings: [] })
  })

  it('a free item is not beyond any grant', () => {
    const decision = decided([{ left: 0, overspend: 5, rate: '0' }], ['1'])
    expect([paid(decision), decision.warnings]).toEqual([[[['a', 0]]], []])
  })

  it('a rest that rounds to nothing is not beyond anything', () => {
    const decision = decided([{ left: 0, overspend: 5, rate: '0.1' }, { left: 9 }], ['10.4'])
    expect(paid(decision)[0]).toContainEqual(['b', 9])
    expect([decision.warnings, decision.postings]).toEqual([[], [{ account: 'line/i/b/0', amount: 9n }]])
  })

  it('a refusal names each account once, with the rest of its grant', () => {
    const [item] = decided([{ left: 4, overspend: 5 }], ['10']).items
    expect(item).toMatchObject({
      reason: 'GRANT_EXHAUSTED',
      rejectionDetails: [{ lineItemId: 'a', why: 'TOO_FEW_TOKENS', account: 'line/i/a/0', needed: 10n, left: 4n }],
    })
    expect(item).toHaveProperty('rejectionDetails.length', 1)
  })

  it('a limit that is too small is the reason, where grants and overspend together would pay', () => {
    const [item] = decided([{ left: 5, overspend: 10, limit: 3 }], ['6']).items
    expect(item).toMatchObject({ reason: 'CONSUMPTION_LIMIT_REACHED' })
  })

  it('a refusal names no account whose balance is exactly the need', () => {
    const [item] = decided([{ left: 10, allocation: { left: 5 } }], ['10']).items
    expect(item).toMatchObject({ rejectionDetails: [{ why: 'ALLOCATION_TOO_SMALL', needed: 10n, left: 5n }] })
    expect(item).toHaveProperty('rejectionDetails.length', 1)
  })

  it('is granted at most the grants and the permitted overspend together, grants first', () => {
    const line = fc.record({ left: fc.nat(20), overspend: fc.nat(20) })
    fc.assert(
      fc.property(fc.array(line, { minLength: 1, maxLength: 3 }), fc.integer({ min: 1, max: 90 }), (lines, count) => {
        const [held, owed] = [lines, lines].map((all, index) =>
          all.reduce((sum, { left, overspend }) => sum + (index === 0 ? left : overspend), 0),
        ) as [number, number]
        const decision = decided(lines, [String(count)])
        const [parts] = paid(decision)
        expect(parts !== null).toBe(count <= held + owed)
        if (parts === null || parts === undefined) return
        expect(decision.warnings.length > 0).toBe(count > held)
        expect(parts.reduce((sum, [, charged]) => sum + charged, 0)).toBe(count)
        let rest = Math.max(0, count - held)
        for (const [index, { left, overspend }] of lines.entries()) {
          const charged = parts.find(([id]) => id === 'abc'[index])?.[1] ?? 0
          const beyond = Math.min(rest, overspend)
          if (count >= held) expect(charged).toBe(left + beyond)
          else expect(charged).toBeLessThanOrEqual(left)
          rest -= beyond
        }
      }),
    )
  })
})
