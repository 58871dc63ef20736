/**
 * What must hold of every decision, whatever the policy, the request, the clock and the rooms. A failure prints the seed
 * and the smallest scenario found: put it into the corpus.
 */
import fc from '../../support/fast-check.ts'
import { describe, expect, test } from 'vitest'
import {
  type AccountId,
  type Posting,
  actionAccount,
  lineAccount,
  parseAccount,
} from '../../../src/core/accounts/account.ts'
import type { Decimal, Micro } from '../../../src/core/pricing/amount.ts'
import { compilePolicy } from '../../../src/core/rules/compile.ts'
import { decide } from '../../../src/core/rules/decide.ts'
import {
  type Decision,
  type ItemOutcome,
  REJECTION_DETAILS_MAX,
  type AvailableOf,
} from '../../../src/core/rules/decision.ts'
import type { Condition, LineItem, NamedCondition, Policy } from '../../../src/core/rules/policy.ts'
import {
  countersRunAt,
  naiveDecide,
  periodAt,
  rateFor,
  ratedItem,
  rulingOf,
  truthOf,
  windowState,
} from './naive-evaluator.ts'
import { nearest, shifted, times, whole } from '../pricing/naive-fraction.ts'
import * as arbitrary from './properties.arbitraries.ts'
import type { Scenario } from './properties.arbitraries.ts'

const RUNS = 1000
const holds = <T>(values: fc.Arbitrary<T>, property: (value: T) => void, numRuns = RUNS): void => {
  fc.assert(fc.property(values, property), { numRuns })
}

function run(scenario: Scenario, balances: AvailableOf = arbitrary.availableOf(scenario.balances)): Decision {
  return decide(compilePolicy(scenario.policy).at(scenario.clock), scenario.request, balances, scenario.mode)
}

/** A decision without its explanations, which may name line items in an order that the facts have chosen. */
function bare({ items, postings, warnings }: Decision): object {
  return {
    items: items.map((item) => (item.outcome === 'REFUSED' ? { outcome: item.outcome, reason: item.reason } : item)),
    postings,
    warnings,
  }
}

function granted(items: readonly ItemOutcome[]) {
  return items.flatMap((item) => (item.outcome === 'GRANTED' ? [item] : []))
}

function sumOf(amounts: readonly Micro[]): Micro {
  return amounts.reduce((sum, amount) => sum + amount, 0n)
}

function after(balances: AvailableOf, postings: readonly Posting[]): AvailableOf {
  return (account) => {
    const balance = balances(account)
    const taken = sumOf(postings.filter((posting) => posting.account === account).map(({ amount }) => amount))
    return balance.left === 'UNLIMITED' ? balance : { ...balance, left: balance.left - taken }
  }
}

function frozen<T>(value: T): T {
  if (typeof value === 'object' && value !== null && !Object.isFrozen(value)) {
    Object.freeze(value)
    for (const each of Object.values(value)) frozen(each)
  }
  return value
}

function itemAt<T>(list: readonly T[], index: number): T {
  const item = list[index]
  if (item === undefined) throw new Error(`nothing at ${index}`)
  return item
}

describe('against the naive evaluator', () => {
  test('the engine decides like the naive evaluator and changes nothing that it was given', () => {
    holds(
      arbitrary.scenario(),
      (scenario) => {
        const { policy, request, clock, balances, mode } = frozen(scenario)
        const naive = naiveDecide(policy, request, clock, arbitrary.availableOf(balances), mode)
        expect(bare(run(scenario))).toEqual(naive)
      },
      5 * RUNS,
    )
  })

  test('one compiled policy decides many requests as if each were the first', () => {
    holds(
      fc.tuple(arbitrary.scenario(), fc.array(arbitrary.scenario(), { maxLength: 4 })),
      ([{ policy }, scenarios]) => {
        const compiled = compilePolicy(policy)
        for (const { request, clock, balances, mode } of [...scenarios, ...scenarios]) {
          const availableOf = arbitrary.availableOf(balances)
          expect(bare(decide(compiled.at(clock), request, availableOf, mode))).toEqual(
            naiveDecide(policy, request, clock, availableOf, mode),
          )
        }
      },
    )
  })

  test('one compiled policy walks over every instant at which something changes, forth and back, sure or not', () => {
    const doubt = fc.constantFrom<readonly [number, number | null]>(
      [0, 0],
      [1, 0],
      [0, 1],
      [2, 3],
      [0, null],
      [1, null],
    )
    holds(
      fc.tuple(arbitrary.scenario(1), fc.array(doubt, { minLength: 1, maxLength: 4 })),
      ([{ policy, request, balances, mode }, doubts]) => {
        const availableOf = arbitrary.availableOf(balances)
        const compiled = compilePolicy(policy)
        const forth = [...instantsOf(policy)].sort((a, b) => a - b)
        const walk = [...forth, ...forth.toReversed()].flatMap((instant) => [instant - 1, instant, instant + 1])
        for (const [step, now] of walk.entries()) {
          const [before, later] = itemAt(doubts, step % doubts.length)
          const clock = { now, earliest: now - before, latest: later === null ? null : now + later }
          expect(bare(decide(compiled.at(clock), request, availableOf, mode))).toEqual(
            naiveDecide(policy, request, clock, availableOf, mode),
          )
        }
      },
      RUNS / 5,
    )
  })

  test('a rule of access allows exactly when its condition is true and denies exactly when it is undecided', () => {
    holds(
      fc.tuple(arbitrary.scenario(1), arbitrary.condition, arbitrary.dictionary),
      ([scenario, condition, dictionary]) => {
        const action = { name: null, allocation: null }
        const entries = { deny: { ...action, id: 'deny', conditionId: 'it', effect: 'DENY' as const } }
        const allowed = (actions: LineItem['actions']): boolean => {
          const policy = open(scenario, { actions }, [{ id: 'it', name: null, ...condition }])
          const request = { ...policy.request, requester: { ...policy.request.requester, dictionary } }
          return run({ ...policy, request }).items[0]?.outcome === 'GRANTED'
        }
        const truth = truthOf(condition, dictionary)
        expect(allowed([{ ...entries.deny, effect: 'ALLOW' }])).toBe(truth === 'TRUE')
        const orElse = { ...action, id: 'rest', conditionId: null, effect: 'ALLOW' as const }
        expect(allowed([entries.deny, orElse])).toBe(truth === 'FALSE')
      },
    )
  })

  test('the scenarios reach every outcome, splits over several line items and charges of nothing', () => {
    const seen = new Map<string, number>()
    const count = (what: string) => seen.set(what, (seen.get(what) ?? 0) + 1)
    for (const scenario of fc.sample(arbitrary.scenario(), { numRuns: 3000, seed: 20 })) {
      const { items, warnings } = run(scenario)
      warnings.forEach(count)
      for (const item of items) {
        count(item.outcome === 'REFUSED' ? item.reason : item.outcome)
        if (item.outcome !== 'GRANTED') continue
        if (item.total === 0n) count('free')
        if (item.shares.length > 1) count('split')
        if (item.shares.some(({ actionId }) => actionId !== null)) count('by rule')
      }
    }
    const wanted = ['ITEM_NOT_RATED', 'NO_USABLE_LINE_ITEM', 'CLOCK_UNDECIDED', 'DENIED_BY_RULE', 'INSUFFICIENT_TOKENS']
    wanted.push('ALLOCATION_EXHAUSTED', 'CONSUMPTION_LIMIT_REACHED', 'GRANT_EXHAUSTED', 'GRANT_EXPIRED', 'GRANTED')
    wanted.push('NOT_CHARGED', 'CLOCK_UNDECIDED_ALLOWED', 'free', 'split', 'by rule')
    const rare = wanted.filter((what) => (seen.get(what) ?? 0) < 15)
    expect(rare, JSON.stringify(Object.fromEntries(seen))).toEqual([])
  })
})

/** Every edge that the policy draws in time, with tolerance and without. */
function instantsOf(policy: Policy): ReadonlySet<number> {
  const twelveHours = 43_200_000
  const edges = policy.lineItems.flatMap(({ startsAt, endsAt, periods, consumptionLimit }) => [
    startsAt,
    startsAt - twelveHours,
    endsAt,
    endsAt + twelveHours,
    ...[...periods, ...(consumptionLimit?.periods ?? [])].flatMap(({ from, until }) => [from, until]),
  ])
  const effective = policy.rateTables.map(({ effectiveFrom }) => effectiveFrom)
  return new Set([...edges, ...effective].filter((instant) => instant !== null))
}

/** The scenario with one line item that nothing but `change` restricts: open, rated, and with tokens without end. */
function open(scenario: Scenario, change: Partial<LineItem>, conditions: readonly NamedCondition[] = []): Scenario {
  const { clock, request } = scenario
  const latest = clock.latest ?? clock.now
  const only: LineItem = {
    id: 'only',
    state: 'DEPLOYED',
    elastic: true,
    rateTableSeries: '',
    startsAt: Math.min(clock.earliest, clock.now),
    endsAt: Math.max(latest, clock.now),
    quantity: 1n,
    overdraft: 'UNLIMITED',
    periods: [{ index: 0, from: null, until: null }],
    actions: [],
    consumptionLimit: null,
    ...change,
  }
  const items = request.items.map(({ name, version }) => ({ name, version, rate: { digits: 3n, scale: 6 } }))
  return {
    ...scenario,
    clock: { ...clock, latest },
    balances: [{ left: 'UNLIMITED', shortage: 'POOL' }],
    policy: {
      ...scenario.policy,
      lineItems: [only],
      conditions,
      rateTables: [{ series: '', version: '1', effectiveFrom: 0, items: items.slice(0, 1) }],
    },
  }
}

describe('tokens', () => {
  test('the parts of an item add up to its total, and the postings to all totals', () => {
    holds(arbitrary.scenario(), (scenario) => {
      const { items, postings } = run(scenario)
      for (const { shares, total } of granted(items)) expect(sumOf(shares.map(({ charged }) => charged))).toBe(total)
      const lines = postings.filter(({ account }) => account.startsWith('line/'))
      expect(sumOf(lines.map(({ amount }) => amount))).toBe(sumOf(granted(items).map(({ total }) => total)))
    })
  })

  test('each posting is the sum of the parts of its line item, its action or its limit, and never of nothing', () => {
    holds(arbitrary.scenario(), (scenario) => {
      const { instanceId, lineItems } = scenario.policy
      const { items, postings } = run(scenario)
      const shares = granted(items).flatMap((item) => item.shares)
      const expected = new Map<AccountId, Micro>()
      const add = (account: AccountId, amount: Micro) => {
        if (amount > 0n) expected.set(account, (expected.get(account) ?? 0n) + amount)
      }
      const limits = new Map<string, Micro>()
      for (const { lineItemId, actionId, charged } of shares) {
        const item = lineItems.find(({ id }) => id === lineItemId)
        const period = periodAt(item?.periods ?? [], scenario.clock.now)
        if (item === undefined || period === undefined) throw new Error('only a line item of the policy pays')
        add(lineAccount(instanceId, item.id, period.index), charged)
        const action = item.actions.find(({ id }) => id === actionId)
        if (action !== undefined && action.allocation !== null) {
          add(actionAccount(instanceId, item.id, action.id), charged)
        }
        if (item.consumptionLimit !== null && charged > 0n) limits.set(item.id, (limits.get(item.id) ?? 0n) + charged)
      }
      const limitPostings = postings.filter(({ account }) => account.startsWith('limit/'))
      expect(new Map(postings.filter((p) => !limitPostings.includes(p)).map((p) => [p.account, p.amount]))).toEqual(
        expected,
      )
      const { type, value } = scenario.request.requester
      const postedLimits = limitPostings.map(({ account, amount }) => {
        const parsed = parseAccount(account)
        if (parsed?.kind !== 'limit') throw new Error('a limit account reads back')
        expect(parsed.requester).toEqual({ type, value })
        return [parsed.lineItemId, amount] as const
      })
      expect(new Map(postedLimits)).toEqual(limits)
      expect(new Set(postings.map(({ account }) => account)).size).toBe(postings.length)
    })
  })

  test('no balance is ever exceeded', () => {
    holds(arbitrary.scenario(), (scenario) => {
      const availableOf = arbitrary.availableOf(scenario.balances)
      for (const { account, amount } of run(scenario).postings) {
        const { left } = availableOf(account)
        expect(amount > 0n && (left === 'UNLIMITED' || amount <= left)).toBe(true)
      }
    })
  })

  test('with one rate everywhere, an item is granted exactly if all balances together cover its rounded price', () => {
    const single = fc.record({
      rooms: fc.array(fc.bigInt({ min: -3n, max: 12n }), { minLength: 1, maxLength: 5 }),
      rate: fc.record({ digits: fc.bigInt({ min: 0n, max: 60n }), scale: fc.integer({ min: 6, max: 8 }) }),
      count: fc.record({ digits: fc.bigInt({ min: 1n, max: 200n }), scale: fc.integer({ min: 0, max: 2 }) }),
      scenario: arbitrary.scenario(1),
    })
    holds(
      single,
      ({ rooms, rate, count, scenario }) => {
        const price = nearest(
          times(times(shifted(rate.digits, rate.scale), shifted(count.digits, count.scale)), whole(1_000_000n)),
        )
        const base = withRate(open(scenario, {}), rate)
        const template = itemAt(base.policy.lineItems, 0)
        const lineItems = rooms.map((_, index) => ({ ...template, id: `line ${index}` }))
        const asked = { ...itemAt(base.request.items, 0), count }
        const left = new Map(
          rooms.map((available, index) => [lineAccount('an instance', `line ${index}`, 0), available]),
        )
        const many = { ...base, policy: { ...base.policy, lineItems }, request: { ...base.request, items: [asked] } }
        const { items } = run(many, (account) => ({ left: left.get(account) ?? 0n, shortage: 'POOL' }))
        const total = granted(items)[0]?.total
        expect(total).toBe(price <= sumOf(rooms.filter((available) => available > 0n)) ? price : undefined)
      },
      3 * RUNS,
    )
  })

  test('a higher balance never turns a grant of one item into a refusal', () => {
    const raised = fc.tuple(arbitrary.scenario(1), fc.nat(), fc.bigInt({ min: 1n, max: 9n }), fc.boolean())
    holds(
      raised,
      ([scenario, which, by, unlimited]) => {
        if (granted(run(scenario).items).length === 0) return
        const balances = scenario.balances.map((balance, index) => {
          if (index !== which % scenario.balances.length || balance.left === 'UNLIMITED') return balance
          return { ...balance, left: unlimited ? ('UNLIMITED' as const) : balance.left + by }
        })
        expect(granted(run({ ...scenario, balances }).items)).toHaveLength(1)
      },
      3 * RUNS,
    )
  })
})

function withRate(scenario: Scenario, rate: Decimal): Scenario {
  const rateTables = scenario.policy.rateTables.map((table) => ({
    ...table,
    items: table.items.map(({ name, version }) => ({ name, version, rate })),
  }))
  return { ...scenario, policy: { ...scenario.policy, rateTables } }
}

describe('several items', () => {
  test('best effort decides one item after the other, each with the balances that the previous ones leave', () => {
    holds(arbitrary.scenario(), (scenario) => {
      const all = run({ ...scenario, mode: 'BEST_EFFORT' })
      let balances = arbitrary.availableOf(scenario.balances)
      const items = scenario.request.items.map((item) => {
        const request = { ...scenario.request, items: [item] }
        const { items: outcomes, postings } = run({ ...scenario, request, mode: 'BEST_EFFORT' }, balances)
        balances = after(balances, postings)
        return outcomes[0]
      })
      expect(all.items).toEqual(items)
    })
  })

  test('all or nothing grants the same as best effort if all items are granted, and otherwise charges nothing', () => {
    holds(arbitrary.scenario(), (scenario) => {
      const each = run({ ...scenario, mode: 'BEST_EFFORT' })
      const together = run({ ...scenario, mode: 'ALL_OR_NOTHING' })
      if (granted(each.items).length === each.items.length) {
        expect(together).toEqual(each)
        return
      }
      expect(together.postings).toEqual([])
      expect(bare(together)).toMatchObject({
        items: each.items.map((item) =>
          item.outcome === 'GRANTED'
            ? { outcome: 'NOT_CHARGED' }
            : { outcome: 'REFUSED', reason: item.outcome === 'REFUSED' ? item.reason : '' },
        ),
      })
    })
  })
})

describe('changes that must not affect a decision', () => {
  test('the order of line items, conditions and rate tables', () => {
    const shuffled = arbitrary.scenario().chain((scenario) => {
      const { policy } = scenario
      return fc.tuple(
        fc.constant(scenario),
        fc.shuffledSubarray([...policy.lineItems], { minLength: policy.lineItems.length }),
        fc.shuffledSubarray([...policy.conditions], { minLength: policy.conditions.length }),
        fc.shuffledSubarray([...policy.rateTables], { minLength: policy.rateTables.length }),
      )
    })
    holds(shuffled, ([scenario, lineItems, conditions, tables]) => {
      const { policy } = scenario
      // Of two tables of one series with one effective time the later one wins: those two keep their order.
      const placeOf = (table: Policy['rateTables'][number]) => `${table.series} ${table.effectiveFrom}`
      const queues = Map.groupBy(policy.rateTables, placeOf)
      const rateTables = tables.map((table) => queues.get(placeOf(table))?.shift() ?? table)
      const moved = { ...scenario, policy: { ...policy, lineItems, conditions, rateTables } }
      expect(bare(run(moved))).toEqual(bare(run(scenario)))
    })
  })

  test('line items that do not apply', () => {
    const why = fc.constantFrom('not elastic', 'INACTIVE', 'OBSOLETE', 'ended', 'not started', 'not rated', 'no period')
    const more = arbitrary.lineItems(['0', 'aa', 'x', '\u{1F601}', 'constructor'])
    const added = fc.tuple(
      arbitrary.scenario(),
      more,
      fc.array(fc.tuple(why, fc.nat()), { minLength: 5, maxLength: 5 }),
    )
    holds(added, ([scenario, strangers, changes]) => {
      const { policy, clock } = scenario
      const lineItems = [...policy.lineItems]
      for (const [index, stranger] of strangers.entries()) {
        const [reason, place] = itemAt(changes, index)
        lineItems.splice(place % (lineItems.length + 1), 0, useless(stranger, reason, clock))
      }
      // Another line item may draw on a series that rates the item: the refusal then has another reason.
      const merged = (decision: ReturnType<typeof bare>): unknown =>
        JSON.parse(
          JSON.stringify(decision, (_, value: unknown) =>
            typeof value === 'bigint' ? String(value) : value === 'ITEM_NOT_RATED' ? 'NO_USABLE_LINE_ITEM' : value,
          ),
        )
      expect(merged(bare(run({ ...scenario, policy: { ...policy, lineItems } })))).toEqual(merged(bare(run(scenario))))
    })
  })

  test('conditions that no action refers to and rate tables of the future', () => {
    const added = fc.tuple(arbitrary.scenario(), arbitrary.condition, fc.array(arbitrary.rateTable, { maxLength: 3 }))
    holds(added, ([scenario, condition, tables]) => {
      const { policy, clock } = scenario
      const future = tables.map((table, index) => ({ ...table, effectiveFrom: clock.now + 1 + index }))
      const conditions = [{ id: 'nobody refers to it', name: null, ...condition }, ...policy.conditions]
      const rateTables = [...future, ...policy.rateTables]
      expect(bare(run({ ...scenario, policy: { ...policy, conditions, rateTables } }))).toEqual(bare(run(scenario)))
    })
  })

  test('rate tables that a later one of their series has superseded', () => {
    holds(arbitrary.scenario(), (scenario) => {
      const { policy, clock } = scenario
      const rateTables = policy.rateTables.filter((table, index) => {
        const laterOnes = policy.rateTables.filter(
          (other, at) =>
            other.series === table.series &&
            other.effectiveFrom <= clock.now &&
            (other.effectiveFrom > table.effectiveFrom || (other.effectiveFrom === table.effectiveFrom && at > index)),
        )
        return laterOnes.length === 0
      })
      expect(bare(run({ ...scenario, policy: { ...policy, rateTables } }))).toEqual(bare(run(scenario)))
    })
  })

  test('other properties in the dictionary', () => {
    holds(fc.tuple(arbitrary.scenario(), fc.jsonValue()), ([scenario, value]) => {
      const { requester } = scenario.request
      const dictionary = { ...requester.dictionary, 'nobody asks for it': value }
      const request = { ...scenario.request, requester: { ...requester, dictionary } }
      // The spread turns an own __proto__ into the prototype, where nothing may find it.
      if (Object.hasOwn(requester.dictionary, '__proto__')) return
      expect(run({ ...scenario, request })).toEqual(run(scenario))
    })
  })

  test('the century: every instant moved by the same span', () => {
    holds(fc.tuple(arbitrary.scenario(), fc.integer({ min: -3e12, max: 3e12 })), ([scenario, by]) => {
      const moved = <T extends number | null>(instant: T) => (instant === null ? instant : instant + by) as T
      const periodsOf = (periods: LineItem['periods']) =>
        periods.map(({ index, from, until }) => ({ index, from: moved(from), until: moved(until) }))
      const { policy, clock } = scenario
      const lineItems = policy.lineItems.map((item) => ({
        ...item,
        startsAt: moved(item.startsAt),
        endsAt: moved(item.endsAt),
        periods: periodsOf(item.periods),
        consumptionLimit:
          item.consumptionLimit === null
            ? null
            : { limit: item.consumptionLimit.limit, periods: periodsOf(item.consumptionLimit.periods) },
      }))
      const rateTables = policy.rateTables.map((table) => ({ ...table, effectiveFrom: moved(table.effectiveFrom) }))
      const then = { now: moved(clock.now), earliest: moved(clock.earliest), latest: moved(clock.latest) }
      expect(run({ ...scenario, clock: then, policy: { ...policy, lineItems, rateTables } })).toEqual(run(scenario))
    })
  })
})

/** The line item with one thing changed that makes it of no use at the clock's reading. */
function useless(item: LineItem, why: string, clock: Scenario['clock']): LineItem {
  const far = 48 * 3_600_000
  switch (why) {
    case 'not elastic':
      return { ...item, elastic: false }
    case 'INACTIVE':
    case 'OBSOLETE':
      return { ...item, state: why }
    case 'ended':
      return { ...item, startsAt: clock.earliest - far, endsAt: clock.earliest - far / 4 - 1 }
    case 'not started':
      if (clock.latest === null) return { ...item, elastic: false }
      return { ...item, startsAt: clock.latest + far / 4 + 1, endsAt: clock.latest + far }
    case 'not rated':
      return { ...item, rateTableSeries: 'no table has it' }
    default:
      return {
        ...item,
        periods: [
          { index: 0, from: null, until: clock.now },
          { index: 1, from: clock.now + 1, until: null },
        ],
      }
  }
}

describe('rules of access', () => {
  const rewritten = (scenario: Scenario, rewrite: (condition: Condition) => Condition): Scenario => {
    const conditions = scenario.policy.conditions.map((named): NamedCondition => {
      const { id, name, ...condition } = named
      return { id, name, ...rewrite(condition) }
    })
    return { ...scenario, policy: { ...scenario.policy, conditions } }
  }
  const depthOf = (condition: Condition): number => {
    switch (condition.operator) {
      case 'IN':
        return 1
      case 'NOT':
        return 1 + depthOf(condition.condition)
      default:
        return 1 + Math.max(0, ...condition.conditions.map(depthOf))
    }
  }

  test('NOT NOT c is c, as long as both are shallow enough', () => {
    holds(arbitrary.scenario(), (scenario) => {
      const twice = rewritten(scenario, (condition) =>
        depthOf(condition) > 8 ? condition : { operator: 'NOT', condition: { operator: 'NOT', condition } },
      )
      expect(run(twice)).toEqual(run(scenario))
    })
  })

  test('the order within AND and OR is of no matter', () => {
    const reversed = (condition: Condition): Condition => {
      switch (condition.operator) {
        case 'IN':
          return { ...condition, values: condition.values.toReversed() }
        case 'NOT':
          return { ...condition, condition: reversed(condition.condition) }
        default:
          return { ...condition, conditions: condition.conditions.map(reversed).reverse() }
      }
    }
    holds(arbitrary.scenario(), (scenario) => {
      expect(run(rewritten(scenario, reversed))).toEqual(run(scenario))
    })
  })

  test('NOT of AND is OR of NOT, and the other way round, also where a part is undecided', () => {
    const swapped = (condition: Condition): Condition => {
      if (condition.operator !== 'NOT') return condition
      const inner = condition.condition
      if (inner.operator !== 'AND' && inner.operator !== 'OR') return condition
      return {
        operator: inner.operator === 'AND' ? 'OR' : 'AND',
        conditions: inner.conditions.map((each): Condition => ({ operator: 'NOT', condition: each })),
      }
    }
    holds(arbitrary.scenario(), (scenario) => {
      const negated = rewritten(scenario, (condition) =>
        depthOf(condition) > 9 ? condition : { operator: 'NOT', condition },
      )
      expect(run(rewritten(negated, swapped))).toEqual(run(negated))
    })
  })

  test('entries behind the one that decides', () => {
    holds(fc.tuple(arbitrary.scenario(), arbitrary.laterActions), ([scenario, later]) => {
      const { policy, request } = scenario
      const lineItems = policy.lineItems.map((item) => {
        const actions = item.actions.filter(({ conditionId }) => conditionId !== null)
        const ruling = rulingOf(policy, { ...item, actions }, request.requester)
        const undecided = ruling.ruling === 'REFUSED' && ruling.why === 'NO_RULE_MATCHES'
        return actions.length === 0 || undecided ? item : { ...item, actions: [...item.actions, ...later] }
      })
      expect(run({ ...scenario, policy: { ...policy, lineItems } })).toEqual(run(scenario))
    })
  })

  test('the place of the default action in the list', () => {
    holds(fc.tuple(arbitrary.scenario(), fc.nat()), ([scenario, place]) => {
      const { policy } = scenario
      const lineItems = policy.lineItems.map((item) => {
        const others = item.actions.filter(({ conditionId }) => conditionId !== null)
        const defaults = item.actions.filter(({ conditionId }) => conditionId === null)
        return { ...item, actions: others.toSpliced(place % (others.length + 1), 0, ...defaults) }
      })
      expect(run({ ...scenario, policy: { ...policy, lineItems } })).toEqual(run(scenario))
    })
  })

  test('entries that do not match, ahead of the one that decides', () => {
    const never: Condition = { operator: 'IN', property: 'nobody has it', values: ['a'] }
    holds(arbitrary.scenario(), (scenario) => {
      const { policy } = scenario
      const conditions = [...policy.conditions, { id: 'never', name: null, ...never }]
      const entry = { id: 'never', name: null, conditionId: 'never', effect: 'DENY' as const, allocation: null }
      const lineItems = policy.lineItems.map((item) =>
        item.actions.length === 0 ? item : { ...item, actions: [entry, ...item.actions] },
      )
      expect(run({ ...scenario, policy: { ...policy, lineItems, conditions } })).toEqual(run(scenario))
    })
  })
})

describe('explanations', () => {
  test('every rejection detail that a refusal names is there', () => {
    holds(
      arbitrary.scenario(1),
      (scenario) => {
        const { policy, request, clock } = scenario
        const [outcome] = run(scenario).items
        if (outcome?.outcome !== 'REFUSED') return
        const asked = itemAt(request.items, 0)
        expect(outcome.rejectionDetails.length).toBeLessThanOrEqual(REJECTION_DETAILS_MAX)
        const explained = outcome.reason !== 'ITEM_NOT_RATED' && policy.lineItems.length > 0
        if (explained) expect(outcome.rejectionDetails.length).toBeGreaterThan(0)
        for (const rejectionDetail of outcome.rejectionDetails) {
          const item = policy.lineItems.find(({ id }) => id === rejectionDetail.lineItemId)
          if (item === undefined) throw new Error('a rejection detail names a line item of the policy')
          const window = windowState(policy, item, clock)
          const ruling = rulingOf(policy, item, request.requester)
          const refusal = ruling.ruling === 'REFUSED' ? ruling.why : undefined
          const rated = ratedItem(policy, item.rateTableSeries, asked, clock.now)
          const rate = rated === undefined ? undefined : rateFor(policy, item, asked, clock.now)
          const inForce = policy.rateTables.some(
            ({ series, effectiveFrom }) => series === item.rateTableSeries && effectiveFrom <= clock.now,
          )
          const { account, needed, left } = rejectionDetail
          const short = account !== undefined && left !== undefined && needed !== undefined && left < needed
          const isThere = {
            NOT_ELASTIC: !item.elastic,
            NOT_DEPLOYED: item.state !== 'DEPLOYED',
            NOT_STARTED: window === 'BEFORE',
            ENDED: window === 'AFTER',
            CLOCK_UNDECIDED: window === 'UNDECIDED' && policy.undecidedClock === 'refuse',
            SERIES_DOES_NOT_RATE_ITEM: rated === undefined && inForce,
            SERIES_HAS_NO_TABLE: !inForce,
            FORMULA_VARIABLE_MISSING: rate === 'FORMULA_VARIABLE_MISSING',
            FORMULA_DIVIDES_BY_ZERO: rate === 'FORMULA_DIVIDES_BY_ZERO',
            FORMULA_OVERFLOWS: rate === 'FORMULA_OVERFLOWS',
            FORMULA_IS_NEGATIVE: rate === 'FORMULA_IS_NEGATIVE',
            FORMULA_UNDEFINED: rate === 'FORMULA_UNDEFINED',
            NO_PERIOD: !countersRunAt(item, clock.now),
            RULE_DENIES: refusal === 'RULE_DENIES',
            NO_RULE_MATCHES: refusal === 'NO_RULE_MATCHES',
            RULE_ERROR: refusal === 'RULE_ERROR',
            TOO_FEW_TOKENS: short && account.startsWith('line/'),
            ALLOCATION_TOO_SMALL: short && account.startsWith('action/'),
            LIMIT_TOO_SMALL: short && account.startsWith('limit/'),
          }
          expect(isThere[rejectionDetail.why], rejectionDetail.why).toBe(true)
          if (account === undefined) continue
          expect(parseAccount(account)).toMatchObject({ lineItemId: item.id })
          const available = arbitrary.availableOf(scenario.balances)(account).left
          expect(left).toBe(available === 'UNLIMITED' || available > 0n ? available : 0n)
        }
      },
      3 * RUNS,
    )
  })
})

describe('hostile data', () => {
  const keys = fc.constantFrom('department', '__proto__', 'constructor', 'prototype', 'toString', 'valueOf', 'then', '')
  const hostile = fc.tuple(
    arbitrary.scenario(),
    fc.array(fc.tuple(keys, fc.jsonValue({ maxDepth: 4 })), { maxLength: 6 }),
  )

  test('no JSON dictionary makes a decision throw or changes a later one', () => {
    holds(hostile, ([scenario, entries]) => {
      const text = `{${entries.map(([key, value]) => `${JSON.stringify(key)}:${JSON.stringify(value)}`).join(',')}}`
      const dictionary = JSON.parse(text) as Record<string, unknown>
      const request = { ...scenario.request, requester: { ...scenario.request.requester, dictionary } }
      const asked = scenario.policy.conditions.map(({ id, name }, index): NamedCondition => ({
        id,
        name,
        operator: 'IN',
        property: entries[index]?.[0] ?? 'toString',
        values: ['', 'a', '0', 'null'],
      }))
      const hostileScenario = { ...scenario, request, policy: { ...scenario.policy, conditions: asked } }
      const { policy, clock, balances, mode } = hostileScenario
      expect(bare(run(hostileScenario))).toEqual(
        naiveDecide(policy, request, clock, arbitrary.availableOf(balances), mode),
      )
      expect(Object.keys(Object.prototype)).toEqual([])
      expect(JSON.stringify(dictionary)).toBe(JSON.stringify(JSON.parse(text)))
    })
  })

  test('counts and rates of any size are decided', () => {
    const big = fc.record({ digits: fc.bigInt({ min: 0n, max: 10n ** 40n }), scale: fc.integer({ min: 0, max: 40 }) })
    holds(fc.tuple(arbitrary.scenario(1), big, big), ([scenario, rate, size]) => {
      const count = { ...size, digits: size.digits + 1n }
      const items = scenario.request.items.map((item) => ({ ...item, count }))
      const { policy, request, clock, balances, mode } = withRate(
        { ...scenario, request: { ...scenario.request, items } },
        rate,
      )
      expect(bare(run({ policy, request, clock, balances, mode }))).toEqual(
        naiveDecide(policy, request, clock, arbitrary.availableOf(balances), mode),
      )
    })
  })
})
