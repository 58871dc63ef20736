/** A run succeeds if both ledgers and the responses agree for every account, to the micro-token. */
import { type AccountId, parseAccount } from '../core/accounts/account.ts'
import type { Micro } from '../core/pricing/amount.ts'
import type { ItemStatus } from '../protocol/service/status.ts'
import { SESSION_LINE_ITEM } from './site.ts'
import type { AnsweredRequest } from './play.ts'

export interface Phase {
  readonly name: string
  readonly network: 'online' | 'cut off'
  readonly answered: readonly AnsweredRequest[]
  readonly ms: number
}

/** Charges less refunds, by account. */
export type Ledger = ReadonlyMap<AccountId, Micro>

export interface Ledgers {
  readonly device: Ledger
  readonly cloud: Ledger
  /** `used` of line items and actions in the service API. */
  readonly service: Ledger
  readonly exported: Ledger
  readonly names: ReadonlyMap<AccountId, string>
}

export interface Comparison {
  readonly account: AccountId
  readonly lineItemId: string
  /** Part of the line item's charges that this account covers; null: all of them. */
  readonly part: string | null
  /** Null where applications get no amounts: allocations, and automatic charges of sessions. */
  readonly answered: Micro | null
  readonly device: Micro
  readonly cloud: Micro
  /** Null where the service API gives no amount: consumption limits. */
  readonly service: Micro | null
  /** Null where usage records give no amount: allocations and consumption limits. */
  readonly exported: Micro | null
  readonly difference: Micro
}

export type DisturbanceKind =
  'agent killed' | 'twin killed' | 'both killed' | 'clock set' | 'network slow' | 'answers lost' | 'network cut'

export interface DemoResult {
  readonly phases: readonly Phase[]
  readonly comparisons: readonly Comparison[]
  readonly wrong: readonly AnsweredRequest[]
  /** Devices that the cloud reports as copied, restored or wrong; the only device is honest. */
  readonly alarms: number
  readonly kills: number
  readonly disturbances: ReadonlyMap<DisturbanceKind, number>
  readonly drainMs: number
  readonly totalMs: number
  readonly directory: string | null
}

export function succeeded({
  comparisons,
  wrong,
  alarms,
}: Pick<DemoResult, 'comparisons' | 'wrong' | 'alarms'>): boolean {
  const isEqual = comparisons.length > 0 && comparisons.every(({ difference }) => difference === 0n)
  return isEqual && wrong.length === 0 && alarms === 0
}

/** @throws Error for an unexpected account, or charges without an account */
export function compare(answered: readonly AnsweredRequest[], ledgers: Ledgers): readonly Comparison[] {
  const { device, cloud, service, exported } = ledgers
  const sums = answeredSums(answered)
  const accounts = [...new Set([...device.keys(), ...cloud.keys(), ...service.keys(), ...exported.keys()])]
  const compared = accounts.map((account): Comparison => {
    const { lineItemId, part, key } = readingOf(account, ledgers.names)
    const sides = {
      answered: key === null ? null : (sums.get(key) ?? 0n),
      device: device.get(account) ?? 0n,
      cloud: cloud.get(account) ?? 0n,
      service: service.get(account) ?? (key !== null && part !== null ? null : 0n),
      exported: part === null ? (exported.get(account) ?? 0n) : null,
    }
    const amounts = Object.values(sides).filter((amount) => amount !== null)
    return { account, lineItemId, part, ...sides, difference: greatest(amounts) - least(amounts) }
  })
  const known = new Set(compared.map(({ lineItemId }) => lineItemId))
  const charges = answered.flatMap(({ items }) => items.flatMap((item) => item.charges))
  const unaccounted = [...new Set(charges.map(({ lineItemId }) => lineItemId))].filter((id) => !known.has(id))
  if (unaccounted.length > 0) throw new Error(`no ledger has an account of ${unaccounted.join(', ')}`)
  return compared.sort((a, b) => a.lineItemId.localeCompare(b.lineItemId) || (a.part ?? '').localeCompare(b.part ?? ''))
}

interface Reading {
  readonly lineItemId: string
  readonly part: string | null
  /** Key of the applications' sum; null where applications get no amounts. */
  readonly key: string | null
}

function readingOf(account: AccountId, names: Ledgers['names']): Reading {
  const parsed = parseAccount(account)
  switch (parsed?.kind) {
    case 'line': {
      const { lineItemId } = parsed
      // Automatic charges and refunds of a session are not reported to its application.
      return { lineItemId, part: null, key: lineItemId === SESSION_LINE_ITEM ? null : keyOf(lineItemId) }
    }
    case 'action':
      return { lineItemId: parsed.lineItemId, part: names.get(account) ?? parsed.actionId, key: null }
    case 'limit': {
      const { value } = parsed.requester
      return { lineItemId: parsed.lineItemId, part: value, key: keyOf(parsed.lineItemId, value) }
    }
    case undefined:
      throw new Error(`no account has the id ${account}`)
  }
}

const keyOf = (...parts: readonly string[]): string => JSON.stringify(parts)

function answeredSums(answered: readonly AnsweredRequest[]): ReadonlyMap<string, Micro> {
  const sums = new Map<string, Micro>()
  for (const { request, items } of answered) {
    for (const { lineItemId, micro } of items.flatMap(({ charges }) => charges)) {
      for (const key of [keyOf(lineItemId), keyOf(lineItemId, request.requester)]) {
        sums.set(key, (sums.get(key) ?? 0n) + micro)
      }
    }
  }
  return sums
}

export function wrongRefusals(answered: readonly AnsweredRequest[]): readonly AnsweredRequest[] {
  return answered.filter(({ items }) => items.some(({ must, outcome }) => must !== undefined && must !== outcome))
}

export function countOutcomes(answered: readonly AnsweredRequest[]): ReadonlyMap<ItemStatus, number> {
  const counts = new Map<ItemStatus, number>()
  for (const { outcome } of answered.flatMap(({ items }) => items)) counts.set(outcome, (counts.get(outcome) ?? 0) + 1)
  return counts
}

const greatest = (amounts: readonly Micro[]): Micro => amounts.reduce((a, b) => (a > b ? a : b))
const least = (amounts: readonly Micro[]): Micro => amounts.reduce((a, b) => (a < b ? a : b))
