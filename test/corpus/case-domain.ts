/**
 * Converts a corpus case to the types of the engine (policy, request, clock and balances), and a decision to the form of
 * the case. Ids are made from the names, so that a case is decided the same in every replay.
 */
import {
  type AccountId,
  actionAccount,
  limitAccount,
  lineAccount,
  parseAccount,
} from '../../src/core/accounts/account.ts'
import { type Micro, decimal, formatDecimal, formatMicro, toMicro, wholeTokens } from '../../src/core/pricing/amount.ts'
import type { Variables } from '../../src/core/pricing/formula-rate.ts'
import type {
  AccessRequest,
  ClockReading,
  Decision,
  ItemOutcome,
  AvailableBalance,
  AvailableOf,
} from '../../src/core/rules/decision.ts'
import type {
  Action,
  Condition,
  ConsumptionLimit,
  LineItem,
  NamedCondition,
  Policy,
} from '../../src/core/rules/policy.ts'
import type { AccountName, ConditionFact, CorpusCase, LineItemFact } from './case-format.ts'

const CORPUS_INSTANCE = '64d2028c-ae87-4069-a624-66089d957ef9'

/** A decision in the form of a case, comparable with `want`. */
export type Answer = CorpusCase['want']

export function policyOfCase({ facts }: CorpusCase): Policy {
  return {
    instanceId: CORPUS_INSTANCE,
    revision: 1,
    timezoneTolerant: facts.timezoneTolerant,
    undecidedClock: facts.undecidedClock,
    lineItems: facts.lineItems.map((item, index) => lineItemOf(item, index, facts.conditions)),
    conditions: facts.conditions.map((condition, index): NamedCondition => ({
      id: conditionId(index),
      name: condition.name,
      ...conditionOf(condition),
    })),
    rateTables: facts.rateTables.map((table) => ({
      series: table.series,
      version: table.version,
      effectiveFrom: table.effectiveFrom,
      items: table.items.map(({ name, version, ...price }) => ({
        name,
        version,
        ...('rate' in price ? { rate: decimal(price.rate) } : price),
      })),
    })),
  }
}

export function requestOfCase({ request }: CorpusCase): AccessRequest {
  return {
    requester: {
      type: request.requester.type,
      value: request.requester.value,
      dictionary: request.requester.dictionary ?? {},
    },
    items: request.items.map((item) => ({
      name: item.item,
      version: item.version ?? '',
      count: decimal(item.count),
      ...(item.variables === undefined ? {} : { variables: variablesOf(item.variables) }),
    })),
  }
}

function variablesOf(texts: Readonly<Record<string, string>>): Variables {
  return new Map(Object.entries(texts).map(([name, text]) => [name.toLowerCase(), decimal(text)]))
}

export function clockOfCase({ clock }: CorpusCase): ClockReading {
  return {
    now: clock.now,
    earliest: clock.earliest ?? clock.now,
    latest: clock.latest === undefined ? clock.now : clock.latest,
  }
}

/** The balance of each account: its cap minus the use, or the grant of a device if the case has one. */
export function availableOfCase(corpusCase: CorpusCase): AvailableOf {
  const balances = new Map<AccountId, AvailableBalance>()
  const usedByRequester = new Map<AccountId, Micro>()
  const capOfLimit = new Map<string, Micro>()
  const pool = (left: AvailableBalance['left']): AvailableBalance => ({ left, shortage: 'POOL' })
  for (const item of corpusCase.facts.lineItems) {
    const cap = item.overdraft === 'Unlimited' ? 'UNLIMITED' : wholeTokens(item.quantity + item.overdraft)
    for (const { index, used } of item.reset?.periods ?? [{ index: 0, used: item.used ?? '0' }]) {
      const left = cap === 'UNLIMITED' ? cap : cap - micro(used)
      balances.set(accountOf(corpusCase, { line: item.id, period: index }), pool(left))
    }
    for (const action of item.actions) {
      if (action.allocation === undefined) continue
      const left = micro(action.allocation) - micro(action.used)
      balances.set(accountOf(corpusCase, { action: `${item.id}: ${action.name}` }), pool(left))
    }
    if (item.consumptionLimit === undefined) continue
    capOfLimit.set(item.id, micro(item.consumptionLimit.limit))
    for (const { requester, period, used } of item.consumptionLimit.used) {
      usedByRequester.set(accountOf(corpusCase, { limit: item.id, requester, period }), micro(used))
    }
  }
  for (const { left, shortage, ...name } of corpusCase.facts.grants) {
    balances.set(accountOf(corpusCase, name), { left: micro(left), shortage })
  }
  return (account) => {
    const balance = balances.get(account)
    if (balance !== undefined) return balance
    const parsed = parseAccount(account)
    const cap = parsed?.kind === 'limit' ? capOfLimit.get(parsed.lineItemId) : undefined
    if (cap === undefined) throw new Error(`the case has no account ${account}`)
    return pool(cap - (usedByRequester.get(account) ?? 0n))
  }
}

export function answerOf(corpusCase: CorpusCase, decision: Decision): Answer {
  return {
    items: decision.items.map((outcome) => answeredItem(corpusCase, outcome)),
    postings: decision.postings.map(({ account, amount }) => ({
      ...accountName(corpusCase, account),
      amount: formatMicro(amount),
    })),
    warnings: [...decision.warnings],
  }
}

function answeredItem({ facts }: CorpusCase, outcome: ItemOutcome): Answer['items'][number] {
  if (outcome.outcome === 'REFUSED') return { status: outcome.reason }
  if (outcome.outcome === 'NOT_CHARGED') return { status: 'NOT_CHARGED' }
  return {
    status: 'GRANTED',
    total: formatMicro(outcome.total),
    parts: outcome.shares.map(({ lineItemId, rate, actionId: id, charged }) => {
      const item = facts.lineItems.findIndex((fact) => fact.id === lineItemId)
      const action = facts.lineItems[item]?.actions.find((_, index) => actionId(item, index) === id)
      return {
        lineItem: lineItemId,
        rate: formatDecimal(rate),
        ...(id === null ? {} : { action: action?.name ?? `unknown action ${id}` }),
        charged: formatMicro(charged),
      }
    }),
  }
}

/** The engine's id of an account that the case names by its own words. */
export function accountOf({ facts }: CorpusCase, name: AccountName): AccountId {
  if (name.line !== undefined) return lineAccount(CORPUS_INSTANCE, name.line, name.period ?? 0)
  if (name.limit !== undefined && name.requester !== undefined) {
    return limitAccount(CORPUS_INSTANCE, name.limit, name.requester, name.period ?? 0)
  }
  for (const [item, fact] of facts.lineItems.entries()) {
    const index = fact.actions.findIndex((action) => `${fact.id}: ${action.name}` === name.action)
    if (index >= 0) return actionAccount(CORPUS_INSTANCE, fact.id, actionId(item, index))
  }
  throw new Error(`the case has no account ${JSON.stringify(name)}`)
}

/** The words for an account; an account that the facts do not explain is named by its bare id. */
function accountName(corpusCase: CorpusCase, account: AccountId): AccountName {
  const { facts, request } = corpusCase
  const { type, value } = request.requester
  for (const item of facts.lineItems) {
    for (const { index } of item.reset?.periods ?? [{ index: 0 }]) {
      const name = { line: item.id, period: index }
      if (accountOf(corpusCase, name) === account) return name
    }
    for (const action of item.actions) {
      const name = { action: `${item.id}: ${action.name}` }
      if (accountOf(corpusCase, name) === account) return name
    }
    for (const { index } of item.consumptionLimit?.periods ?? []) {
      const name = { limit: item.id, requester: { type, value }, period: index }
      if (accountOf(corpusCase, name) === account) return name
    }
  }
  return { line: account }
}

function lineItemOf(item: LineItemFact, index: number, conditions: CorpusCase['facts']['conditions']): LineItem {
  return {
    id: item.id,
    state: item.state,
    elastic: item.elastic,
    rateTableSeries: item.rateTableSeries,
    startsAt: item.start,
    endsAt: item.end,
    quantity: wholeTokens(item.quantity),
    overdraft: item.overdraft === 'Unlimited' ? 'UNLIMITED' : wholeTokens(item.overdraft),
    periods: item.reset?.periods.map(({ index: period, from, until }) => ({ index: period, from, until })) ?? [
      { index: 0, from: null, until: null },
    ],
    actions: item.actions.map((action, position): Action => ({
      id: actionId(index, position),
      name: action.name,
      conditionId:
        action.condition === undefined
          ? null
          : conditionId(conditions.findIndex((condition) => condition.name === action.condition)),
      effect: action.action,
      allocation: action.allocation === undefined ? null : micro(action.allocation),
    })),
    consumptionLimit: item.consumptionLimit === undefined ? null : limitOf(item.consumptionLimit),
  }
}

function limitOf({ limit, periods }: NonNullable<LineItemFact['consumptionLimit']>): ConsumptionLimit {
  return { limit: micro(limit), periods }
}

function conditionOf(fact: ConditionFact): Condition {
  switch (fact.operator) {
    case 'AND':
    case 'OR':
      return { operator: fact.operator, conditions: fact.conditions.map(conditionOf) }
    case 'NOT':
      return { operator: 'NOT', condition: conditionOf(fact.condition) }
    case 'IN':
      return { operator: 'IN', property: fact.property, values: fact.values }
  }
}

/** Index -1, a name that no condition has, gives an id that no condition has. */
function conditionId(index: number): string {
  return `c0000000-0000-4000-8000-${String(index + 1).padStart(12, '0')}`
}

function actionId(item: number, index: number): string {
  return `a0000000-0000-4000-8000-${String(item * 1000 + index).padStart(12, '0')}`
}

function micro(text: string): Micro {
  return toMicro(decimal(text))
}
