import type { RunResult } from './run.ts'

export interface Totals {
  seeds: number
  steps: number
  deviceHours: number
  decisions: number
  syncs: number
  faults: Record<string, number>
  outcomes: Record<string, number>
  looks: Record<string, number>
}

export function noTotals(): Totals {
  return { seeds: 0, steps: 0, deviceHours: 0, decisions: 0, syncs: 0, faults: {}, outcomes: {}, looks: {} }
}

export function add(totals: Totals, result: Omit<RunResult, 'trace'>): void {
  totals.seeds += 1
  totals.steps += result.steps
  totals.deviceHours += result.deviceHours
  totals.decisions += result.decisions
  totals.syncs += result.syncs
  addUp(totals.faults, result.faults)
  addUp(totals.outcomes, result.outcomes)
  addUp(totals.looks, result.looks)
}

function addUp(sums: Record<string, number>, counts: Readonly<Record<string, number>>): void {
  for (const [name, count] of Object.entries(counts)) sums[name] = (sums[name] ?? 0) + count
}

/** @param seconds elapsed */
export function summaryOf(totals: Totals, seconds: number): string {
  const number = (value: number): string => Math.round(value).toLocaleString('en')
  const list = (counts: Readonly<Record<string, number>>): string =>
    Object.entries(counts)
      .sort(([, a], [, b]) => b - a)
      .map(([name, count]) => `  ${number(count).padStart(12)}  ${name}`)
      .join('\n')
  return [
    `${number(totals.seeds)} seeds in ${number(seconds)} s (${(totals.seeds / seconds).toFixed(2)} per second)`,
    `${number(totals.steps)} steps, ${number(totals.deviceHours)} simulated device-hours`,
    `${number(totals.decisions)} decisions recorded, ${number(totals.syncs)} segments acknowledged`,
    'Faults and changes',
    list(totals.faults),
    'Responses to applications',
    list(totals.outcomes),
    'Checks of promises',
    list(totals.looks),
  ].join('\n')
}
