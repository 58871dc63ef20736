/** Conditions of the site, by name. */
import type { Condition } from '../src/core/rules/policy.ts'

const isIn = (property: string, ...values: readonly string[]): Condition => ({ operator: 'IN', property, values })
const not = (condition: Condition): Condition => ({ operator: 'NOT', condition })
const all = (...conditions: readonly Condition[]): Condition => ({ operator: 'AND', conditions })
const any = (...conditions: readonly Condition[]): Condition => ({ operator: 'OR', conditions })

const gold = isIn('tier', 'gold')
const onTrial = isIn('trial', 'true')

const NESTED = {
  senior: any(gold, all(isIn('level', '3', '4.5'), not(onTrial))),
  printing: all(isIn('team', 'print', 'press'), not(any(gold, onTrial))),
  deep: not(not(not(not(any(all(isIn('team', 'scan')), not(not(isIn('tier', 'silver')))))))),
  anyone: any(gold, not(gold)),
} satisfies Record<string, Condition>

export const CONDITIONS = { gold, others: not(gold), ...NESTED }

export type ConditionName = keyof typeof CONDITIONS

/** Made only where a plan uses them. */
export const NESTED_NAMES = Object.keys(NESTED) as readonly (keyof typeof NESTED)[]
