/**
 * A small site with a complete decision path: a request is matched against a condition, rated by version, and charged
 * to a line item and an allocation.
 */
import { parseDecimal, wholeTokens } from '../src/core/pricing/amount.ts'
import type { Action, LineItem, Policy } from '../src/core/rules/policy.ts'
import { actionAccount, lineAccount } from '../src/core/accounts/account.ts'

const HOUR_MS = 60 * 60 * 1000
const REQUESTERS = 64

export const FUNDS = wholeTokens(1_000_000_000)

const INSTANCE = 'b2b1d7e4-6f0c-4e7e-9a51-2f5d0c8c1a01'
const LINE_ITEM = '7d9f4c1e-0b1a-4f5c-8a53-0c6a3e5b2c11'
const ACTION = '1f0e6b9a-44d2-4c37-9f0b-5f2b1e9d7a21'
const CONDITION = '9c3a5d7e-2b4f-4d11-8e6a-7a1c0b9d8f31'

export const REQUEST_PATH = `/dynamicmonetization/elastic/api/v1.1/instances/${INSTANCE}/access-request`

/** In the sequence of the checks. */
export const ACCOUNTS = [lineAccount(INSTANCE, LINE_ITEM, 0), actionAccount(INSTANCE, LINE_ITEM, ACTION)]

const DENY_ALL: Action = {
  id: '1f0e6b9a-44d2-4c37-9f0b-5f2b1e9d7a22',
  name: 'everybody else',
  conditionId: null,
  effect: 'DENY',
  allocation: null,
}

/** In each body, for the load generator to replace. */
export const SERIAL = '0000000000'

export const REQUEST_BODIES = bodiesOf('operator')
export const GRANT_MARK = '"totalTokensCharged":1.5'

/** An action denies them, so nothing is charged. */
export const DENIED_BODIES = bodiesOf('visitor')
export const DENIAL_MARK = '"totalTokensCharged":0,'

function bodiesOf(role: string): readonly string[] {
  return Array.from({ length: REQUESTERS }, (_, index) =>
    JSON.stringify({
      requester: {
        type: 'application',
        value: `press-${String(index).padStart(2, '0')}`,
        dictionary: { site: 'plant-3', role },
      },
      requestedItems: [{ item: 'vision-inspection', version: '2.1', count: 1, metaData: { job: SERIAL } }],
    }),
  )
}

/**
 * @param now POSIX ms
 * @param others number of line items that do not apply
 */
export function workloadPolicy(now: number, others: number): Policy {
  const shared: Omit<LineItem, 'id' | 'endsAt' | 'actions'> = {
    state: 'DEPLOYED',
    elastic: true,
    rateTableSeries: 'standard',
    startsAt: now - 24 * HOUR_MS,
    quantity: FUNDS,
    overdraft: 0n,
    periods: [{ index: 0, from: null, until: null }],
    consumptionLimit: null,
  }
  const rate = parseDecimal('1.5')
  if (rate === undefined) throw new Error('invariant: a decimal')
  const ended = (index: number): LineItem => ({
    ...shared,
    id: `00000000-0000-4000-8000-${String(index).padStart(12, '0')}`,
    startsAt: now - 48 * HOUR_MS,
    endsAt: now - 1 - index,
    actions: [],
  })
  return {
    instanceId: INSTANCE,
    revision: 1,
    timezoneTolerant: false,
    undecidedClock: 'allow',
    lineItems: [
      ...Array.from({ length: others }, (_, index) => ended(index)),
      {
        ...shared,
        id: LINE_ITEM,
        endsAt: now + 240 * HOUR_MS,
        actions: [
          { id: ACTION, name: 'operators', conditionId: CONDITION, effect: 'ALLOW', allocation: FUNDS },
          DENY_ALL,
        ],
      },
      { ...shared, id: '7d9f4c1e-0b1a-4f5c-8a53-0c6a3e5b2c12', endsAt: now + 480 * HOUR_MS, actions: [DENY_ALL] },
    ],
    conditions: [
      {
        id: CONDITION,
        name: 'operators of plant 3',
        operator: 'AND',
        conditions: [
          { operator: 'IN', property: 'role', values: ['operator', 'engineer'] },
          { operator: 'NOT', condition: { operator: 'IN', property: 'site', values: ['plant-1', 'plant-2'] } },
        ],
      },
    ],
    rateTables: [
      {
        series: 'standard',
        version: '1',
        effectiveFrom: now - 24 * HOUR_MS,
        items: [
          { name: 'vision-inspection', version: '2.1', rate },
          { name: 'vision-inspection', version: '2.0', rate },
          { name: 'robot-hour', version: '', rate },
        ],
      },
    ],
  }
}
