/** Policies with one line item that applies, and any number of line items and items that do not. */
import type { LineItem, Policy, RatedItem } from '../src/core/rules/policy.ts'
import { wholeTokens } from '../src/core/pricing/amount.ts'
import type { AccessRequest, AvailableBalance } from '../src/core/rules/decision.ts'

export const CROWD_NOW = Date.UTC(2026, 5, 1)
const DAY_MS = 86_400_000
const always = [{ index: 0, from: null, until: null }]

const payer: LineItem = {
  id: 'payer',
  state: 'DEPLOYED',
  elastic: true,
  rateTableSeries: '',
  startsAt: CROWD_NOW - 30 * DAY_MS,
  endsAt: CROWD_NOW + 30 * DAY_MS,
  quantity: wholeTokens(1_000_000),
  overdraft: 0n,
  periods: always,
  actions: [],
  consumptionLimit: null,
}

/** Each has its own window, like old line items of a long-running shop. */
const strangers: readonly ((index: number) => Partial<LineItem>)[] = [
  () => ({ state: 'INACTIVE' }),
  () => ({ state: 'OBSOLETE' }),
  () => ({ elastic: false }),
  (index) => ({ endsAt: CROWD_NOW - 1 - index }),
  (index) => ({ startsAt: CROWD_NOW + 5 * DAY_MS + index }),
  () => ({ rateTableSeries: 'rates other items' }),
  () => ({ rateTableSeries: 'has no table' }),
  () => ({ periods: [{ index: 0, from: null, until: CROWD_NOW }] }),
]

/**
 * @param lineItems number of line items that do not apply @param items number of unrequested items, in each of two
 * tables
 */
export function crowdedPolicy(lineItems: number, items: number): Policy {
  const rate = { digits: 3n, scale: 0 }
  const others = Array.from({ length: items }, (_, index): RatedItem => ({ name: `item ${index}`, version: '', rate }))
  const scan: RatedItem = { name: 'scan', version: '1.0', rate }
  const table = { version: '1', effectiveFrom: CROWD_NOW - 30 * DAY_MS }
  return {
    instanceId: 'crowd',
    revision: 1,
    timezoneTolerant: false,
    undecidedClock: 'refuse',
    conditions: [],
    lineItems: [
      ...Array.from({ length: lineItems }, (_, index): LineItem => ({
        ...payer,
        ...strangers[index % strangers.length]?.(index),
        id: `stranger ${index}`,
      })),
      payer,
    ],
    rateTables: [
      { ...table, series: '', items: [...others, scan] },
      { ...table, series: 'rates other items', items: others },
    ],
  }
}

export const crowdRequest: AccessRequest = {
  requester: { type: 'user', value: 'LisaBarry', dictionary: { department: 'sales' } },
  items: [{ name: 'scan', version: '1.0', count: { digits: 1n, scale: 0 } }],
}

const plenty: AvailableBalance = { left: wholeTokens(1_000_000), shortage: 'POOL' }
export const crowdBalances = (): AvailableBalance => plenty
