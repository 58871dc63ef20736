/**
 * What a decision looks at. Counted, not timed: the facts are watched through proxies, and the rooms by the questions that
 * are asked. A decision must cost the same beside ten and beside ten thousand facts that do not apply.
 */
import { describe, expect, test } from 'vitest'
import { CROWD_NOW, crowdRequest, crowdBalances, crowdedPolicy } from '../../../bench/crowd.ts'
import { compilePolicy } from '../../../src/core/rules/compile.ts'
import { decide } from '../../../src/core/rules/decide.ts'
import { type ClockReading, exactly } from '../../../src/core/rules/decision.ts'
import type { Policy } from '../../../src/core/rules/policy.ts'

const HOUR = 3_600_000

/** A policy of which every read of a list, a line item or a rated item is counted. */
function watched(policy: Policy): { readonly policy: Policy; readonly reads: () => number } {
  let reads = 0
  const watch = <T extends object>(target: T): T =>
    new Proxy(target, {
      get(from, key): unknown {
        reads += 1
        return Reflect.get(from, key)
      },
    })
  const rateTables = policy.rateTables.map((table) => watch({ ...table, items: watch(table.items.map(watch)) }))
  const lineItems = watch(policy.lineItems.map(watch))
  return { policy: { ...policy, lineItems, rateTables: watch(rateTables) }, reads: () => reads }
}

/** How often a decision reads the facts after the first one of its span of time has been made. */
function readsOfOneDecision(lineItems: number, items: number): number {
  const { policy, reads } = watched(crowdedPolicy(lineItems, items))
  const compiled = compilePolicy(policy)
  const once = (clock: ClockReading) => {
    const before = reads()
    expect(decide(compiled.at(clock), crowdRequest, crowdBalances, 'BEST_EFFORT').items[0]?.outcome).toBe('GRANTED')
    return reads() - before
  }
  once(exactly(CROWD_NOW))
  return once(exactly(CROWD_NOW)) + once(exactly(CROWD_NOW))
}

describe('a decision', () => {
  test('reads no more facts beside ten thousand line items that do not apply than beside none', () => {
    expect(readsOfOneDecision(10_000, 1)).toBe(readsOfOneDecision(0, 1))
  })

  test('reads no more inputs beside ten thousand items that are not requested than beside none', () => {
    expect(readsOfOneDecision(1, 10_000)).toBe(readsOfOneDecision(1, 0))
  })

  test('has only the line items that apply as candidates', () => {
    const view = compilePolicy(crowdedPolicy(10_000, 10)).at(exactly(CROWD_NOW)).item('scan', '1.0')
    expect(view.rated && view.candidates.map(({ lineItem }) => lineItem.id)).toEqual(['payer'])
  })

  test('reads only the balance of the account that pays', () => {
    const asked: string[] = []
    const compiled = compilePolicy(crowdedPolicy(10_000, 10))
    const availableOf = (account: string) => {
      asked.push(account)
      return crowdBalances()
    }
    decide(compiled.at(exactly(CROWD_NOW)), crowdRequest, availableOf, 'BEST_EFFORT')
    expect(asked).toEqual(['line/crowd/payer/0'])
  })

  test('looks at no line item behind the one that serves the rest', () => {
    const policy = crowdedPolicy(0, 0)
    const lineItems = policy.lineItems.flatMap((payer) =>
      Array.from({ length: 1000 }, (_, index) => ({ ...payer, id: `payer ${String(index).padStart(4, '0')}` })),
    )
    const asked: string[] = []
    const availableOf = (account: string) => {
      asked.push(account)
      return { left: 2_000_000n, shortage: 'POOL' } as const
    }
    const compiled = compilePolicy({ ...policy, lineItems })
    const { postings } = decide(compiled.at(exactly(CROWD_NOW)), crowdRequest, availableOf, 'BEST_EFFORT')
    expect(asked).toEqual(['line/crowd/payer%200000/0', 'line/crowd/payer%200001/0'])
    expect(postings).toHaveLength(2)
  })
})

describe('a request of many items', () => {
  const policy = crowdedPolicy(0, 0)
  const [item] = crowdRequest.items
  const request = { ...crowdRequest, items: Array.from({ length: 100 }, () => item!) }
  /** Line items, as many as `count`. Only the last one has tokens. */
  const of = (count: number): Policy => ({
    ...policy,
    lineItems: policy.lineItems.flatMap((payer) =>
      Array.from({ length: count }, (_, index) => ({ ...payer, id: `payer ${String(index).padStart(4, '0')}` })),
    ),
  })

  test('asks once for the balance of each line item that is used up', () => {
    const asked: string[] = []
    const availableOf = (account: string) => {
      asked.push(account)
      return account.includes('0049') ? crowdBalances() : ({ left: 0n, shortage: 'POOL' } as const)
    }
    const decision = decide(compilePolicy(of(50)).at(exactly(CROWD_NOW)), request, availableOf, 'BEST_EFFORT')
    expect(new Set(decision.items.map(({ outcome }) => outcome))).toEqual(new Set(['GRANTED']))
    // The one that pays changes with each item.
    expect(asked).toHaveLength(49 + 100)
  })

  test('checks each line item once for all items, in each span of time', () => {
    const names = Array.from({ length: 100 }, (_, index) => `item ${index}`)
    const readsFor = (items: readonly string[]): number => {
      const { rateTables } = crowdedPolicy(0, 100)
      const { policy: facts, reads } = watched({ ...of(50), rateTables })
      const compiled = compilePolicy(facts)
      const before = reads()
      for (const name of items) compiled.at(exactly(CROWD_NOW)).item(name, '')
      return reads() - before
    }
    expect(readsFor(names)).toBeLessThan(2 * readsFor(names.slice(0, 1)))
  })
})

describe('the dictionary of a requester', () => {
  const conditions: Policy['conditions'] = Array.from({ length: 20 }, (_, index) => ({
    id: `c${index}`,
    name: null,
    operator: 'IN',
    property: 'teams',
    values: [`nobody ${index}`],
  }))
  const denials = Array.from({ length: 200 }, (_, index) => ({
    id: `d${index}`,
    name: null,
    conditionId: `c${index % conditions.length}`,
    effect: 'DENY' as const,
    allocation: null,
  }))

  /** How often a request of so many items, in an instance of so many line items, reads the dictionary and its array. */
  function readsOf(items: number, lineItems: number): { readonly dictionary: number; readonly array: number } {
    const policy = crowdedPolicy(0, 0)
    const compiled = compilePolicy({
      ...policy,
      conditions,
      lineItems: policy.lineItems.flatMap((each) =>
        Array.from({ length: lineItems }, (_, index) => ({ ...each, id: `line ${index}`, actions: denials })),
      ),
    })
    const reads = { dictionary: 0, array: 0 }
    const teams = new Proxy(['a', 'b', 'c'], {
      get(from, key): unknown {
        reads.array += 1
        return Reflect.get(from, key)
      },
    })
    const dictionary = new Proxy<Readonly<Record<string, unknown>>>(
      { teams },
      {
        get(from, key): unknown {
          reads.dictionary += 1
          return Reflect.get(from, key)
        },
      },
    )
    const [item] = crowdRequest.items
    const request = {
      requester: { ...crowdRequest.requester, dictionary },
      items: Array.from({ length: items }, () => item!),
    }
    const decision = decide(compiled.at(exactly(CROWD_NOW)), request, crowdBalances, 'BEST_EFFORT')
    expect(new Set(decision.items.map(({ outcome }) => outcome))).toEqual(new Set(['REFUSED']))
    return reads
  }

  test('is asked once by each condition, however many items, line items and actions there are', () => {
    expect(readsOf(1, 1).dictionary).toBe(conditions.length)
    expect(readsOf(100, 10)).toEqual(readsOf(1, 1))
  })

  test('has its arrays walked once, however many conditions ask', () => {
    expect(readsOf(1, 1).array).toBeLessThan(conditions.length)
  })
})

describe('time', () => {
  test('that passes without a change in the policy costs no further look at the facts', () => {
    const { policy, reads } = watched(crowdedPolicy(1000, 10))
    const compiled = compilePolicy(policy)
    const at = (now: number) => decide(compiled.at(exactly(now)), crowdRequest, crowdBalances, 'BEST_EFFORT')
    at(CROWD_NOW + HOUR)
    const before = reads()
    at(CROWD_NOW + HOUR)
    const perDecision = reads() - before
    for (let minute = 1; minute <= 60; minute += 1) at(CROWD_NOW + HOUR + minute * 60_000)
    expect(reads() - before).toBe(61 * perDecision)
  })

  test('of a clock that is never sure costs no further look either, as long as no edge passes a change', () => {
    const { policy, reads } = watched(crowdedPolicy(1000, 10))
    const compiled = compilePolicy({ ...policy, undecidedClock: 'allow' })
    const at = (clock: ClockReading) => decide(compiled.at(clock), crowdRequest, crowdBalances, 'BEST_EFFORT')
    const from = CROWD_NOW + 2 * HOUR
    at({ now: from, earliest: from - HOUR, latest: null })
    const before = reads()
    at({ now: from, earliest: from - HOUR, latest: null })
    const perDecision = reads() - before
    for (let minute = 1; minute <= 60; minute += 1) {
      at({ now: from + minute * 60_000, earliest: from - HOUR + minute, latest: null })
    }
    expect(reads() - before).toBe(61 * perDecision)
  })
})
