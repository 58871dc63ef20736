import { describe, expect, test } from 'vitest'
import { actionAccount, lineAccount, parseAccount } from '../../src/core/accounts/account.ts'
import { decimal, type Micro, wholeTokens } from '../../src/core/pricing/amount.ts'
import { compilePolicy } from '../../src/core/rules/compile.ts'
import { decide } from '../../src/core/rules/decide.ts'
import { exactly } from '../../src/core/rules/decision.ts'
import type { NamedCondition, Policy } from '../../src/core/rules/policy.ts'
import { requestsOfDay } from '../../src/demo/day.ts'
import { CONDITIONS, LINE_ITEMS, RATE_TABLES, REQUESTERS } from '../../src/demo/site.ts'

const DAY_MS = 86_400_000
const now = 100 * 365 * DAY_MS
const instanceId = '64d2028c-ae87-4069-a624-66089d957ef9'

/** The site as the engine sees it. */
function policy(): Policy {
  return {
    instanceId,
    revision: 1,
    timezoneTolerant: false,
    undecidedClock: 'allow',
    conditions: Object.entries(CONDITIONS).map(([name, condition]): NamedCondition => ({
      id: name,
      name,
      ...condition,
    })),
    rateTables: RATE_TABLES.map((table) => ({
      ...table,
      effectiveFrom: now + table.effectiveIn * DAY_MS,
      items: table.items.map((item) => ({ ...item, rate: decimal(item.rate) })),
    })),
    lineItems: LINE_ITEMS.map((item) => ({
      id: item.activationId,
      state: 'DEPLOYED',
      elastic: true,
      rateTableSeries: item.series,
      startsAt: now + item.startsIn * DAY_MS,
      endsAt: now + item.endsIn * DAY_MS,
      quantity: wholeTokens(item.quantity),
      overdraft: wholeTokens(item.overdraft ?? 0),
      periods: [{ index: 0, from: null, until: null }],
      actions: item.rules.map((rule) => ({
        id: rule.name,
        name: rule.name,
        conditionId: rule.condition ?? null,
        effect: rule.action,
        allocation: rule.allocation === undefined ? null : wholeTokens(rule.allocation),
      })),
      consumptionLimit:
        item.monthlyLimit === undefined
          ? null
          : { limit: wholeTokens(item.monthlyLimit), periods: [{ index: 0, from: null, until: null }] },
    })),
  }
}

test('the day has at least 2,000 requests, in order, and every requester requests something', () => {
  const day = requestsOfDay()
  expect(day.length).toBeGreaterThanOrEqual(2_000)
  expect(day.map(({ at }) => at)).toEqual(day.map(({ at }) => at).sort())
  expect(new Set(day.map(({ requester }) => requester))).toEqual(new Set(Object.keys(REQUESTERS)))
})

describe('with the whole pool at hand', () => {
  const available = new Map<string, Micro>()
  for (const item of LINE_ITEMS) {
    available.set(lineAccount(instanceId, item.activationId, 0), wholeTokens(item.quantity + (item.overdraft ?? 0)))
    for (const { name, allocation } of item.rules) {
      if (allocation !== undefined)
        available.set(actionAccount(instanceId, item.activationId, name), wholeTokens(allocation))
    }
  }
  const limits = new Map(LINE_ITEMS.map((item) => [item.activationId, item.monthlyLimit]))
  const leftOf = (account: string): Micro => {
    const parsed = parseAccount(account)
    const limit = parsed?.kind === 'limit' ? limits.get(parsed.lineItemId) : undefined
    return available.get(account) ?? wholeTokens(limit!)
  }
  const compiled = compilePolicy(policy())
  const outcomes = requestsOfDay().flatMap((request, index) => {
    const requester = REQUESTERS[request.requester]!
    const decision = decide(
      compiled.at(exactly(now)),
      {
        requester: { ...requester, value: request.requester },
        items: request.items.map(({ item, version, count }) => ({ name: item, version, count: decimal(count) })),
      },
      (account) => ({ left: leftOf(account), shortage: 'POOL' }),
      'BEST_EFFORT',
    )
    for (const { account, amount } of decision.postings) available.set(account, leftOf(account) - amount)
    return decision.items.map((outcome, at) => ({ index, must: request.items[at]!.must, outcome }))
  })

  test('the engine refuses every item that must be refused for just that reason, and others for none of these', () => {
    const certain = ['ITEM_NOT_RATED', 'NO_USABLE_LINE_ITEM', 'DENIED_BY_RULE']
    for (const { must, outcome } of outcomes) {
      const reason = outcome.outcome === 'REFUSED' ? outcome.reason : undefined
      if (must !== undefined || certain.includes(reason ?? '')) expect(reason).toBe(must)
    }
    expect(new Set(outcomes.map(({ must }) => must))).toEqual(new Set([undefined, ...certain]))
  })

  test('tokens of one line item, one allocation and one limit run out, but not in the morning', () => {
    const first = (reason: string) =>
      outcomes.findIndex(({ outcome }) => outcome.outcome === 'REFUSED' && outcome.reason === reason) / outcomes.length
    for (const reason of ['INSUFFICIENT_TOKENS', 'ALLOCATION_EXHAUSTED', 'CONSUMPTION_LIMIT_REACHED']) {
      expect(first(reason)).toBeGreaterThan(0.4)
      expect(first(reason)).toBeLessThan(0.9)
    }
  })

  test('one request is paid by two line items', () => {
    const split = outcomes.filter(({ outcome }) => outcome.outcome === 'GRANTED' && outcome.shares.length === 2)
    expect(split.length).toBeGreaterThan(0)
  })
})
