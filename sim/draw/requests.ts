/** What makes decisions different from each other: several items, properties of the requester, and actions on them. */
import { CONDITIONS, type ConditionName } from '../conditions.ts'
import { type ActionPlan, ITEMS, type PlannedRequest } from '../plan.ts'
import type { Random } from '../world/random.ts'

export function drawMore(random: Random): NonNullable<PlannedRequest['more']> {
  return Array.from({ length: random.whole(1, 3) }, () => {
    const count = random.chance(0.2) ? random.pick([0.5, 1.25, 0.333333]) : random.whole(1, 4)
    if (random.chance(0.1)) return { item: 'Fax', count }
    return { item: random.pick(ITEMS), count, ...(random.chance(0.05) ? { version: '2.0' } : {}) }
  })
}

/** Each property is left out by chance. */
const VALUES: Readonly<Record<string, readonly unknown[]>> = {
  tier: ['gold', 'gold', 'silver', ['silver', 'gold'], [], null],
  team: ['print', ['press', 'scan'], 'scan', ''],
  level: [3, 4.5, '3', true],
  trial: [true, false, 'true', { until: 2030 }],
}

export function drawDictionary(random: Random): NonNullable<PlannedRequest['dictionary']> {
  const drawn = Object.entries(VALUES).map(([name, values]) => [name, random.pick(values)] as const)
  return Object.fromEntries(drawn.filter(() => random.chance(0.6)))
}

const NAMES = Object.keys(CONDITIONS) as readonly ConditionName[]

export function drawActions(random: Random): readonly ActionPlan[] {
  const actions = Array.from({ length: random.whole(1, 4) }, (): ActionPlan => {
    const condition = random.pick(NAMES)
    if (random.chance(0.25)) return { effect: 'DENY', condition, allocation: null }
    return { effect: 'ALLOW', condition, allocation: random.spread(3, 200) }
  })
  if (random.chance(0.2)) return actions
  const allocation = random.chance(0.2) ? random.spread(3, 200) : null
  return [...actions, { effect: 'ALLOW', condition: null, allocation }]
}
