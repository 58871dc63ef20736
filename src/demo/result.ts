/**
 * What a run of the demo showed, and whether it may call itself a success: the ledgers of device and cloud, and what the
 * applications were told, must be equal for every line item and every allocation, to the micro-token.
 */
import type { AccountId } from '../core/account.ts'
import { parseAccount } from '../core/account.ts'
import type { Micro } from '../core/amount.ts'
import type { ItemStatus } from '../protocol/service/status.ts'
import type { Told } from './play.ts'

export interface Phase {
  readonly name: string
  readonly network: 'online' | 'cut off'
  readonly told: readonly Told[]
  readonly ms: number
}

/** What one side has charged, less refunds, by account. */
export type Ledger = ReadonlyMap<AccountId, Micro>

export interface Ledgers {
  /** From the agent, over its socket. */
  readonly device: Ledger
  /** From the twin's own books of its devices. */
  readonly cloud: Ledger
  /** From the service API: `used` of line items and actions. */
  readonly service: Ledger
  /** What the administrator called them, where he did. */
  readonly names: ReadonlyMap<AccountId, string>
}

export interface Comparison {
  readonly account: AccountId
  readonly name: string
  /** Null where the applications are not told: allocations. */
  readonly told: Micro | null
  readonly device: Micro
  readonly cloud: Micro
  readonly service: Micro
  /** Largest distance between any two of them. */
  readonly difference: Micro
}

export interface DemoResult {
  readonly phases: readonly Phase[]
  readonly comparisons: readonly Comparison[]
  /** Requests with an item that was not refused as it had to be. */
  readonly wrong: readonly Told[]
  readonly kills: number
  readonly drainMs: number
  readonly totalMs: number
  /** Where databases and logs are kept; null when they are not. */
  readonly directory: string | null
}

export function succeeded({ comparisons, wrong }: Pick<DemoResult, 'comparisons' | 'wrong'>): boolean {
  return comparisons.length > 0 && comparisons.every(({ difference }) => difference === 0n) && wrong.length === 0
}

/** Every account that any side knows, line items first. */
export function compare(told: readonly Told[], ledgers: Ledgers): readonly Comparison[] {
  const { device, cloud, service, names } = ledgers
  const byLineItem = toldByLineItem(told)
  const accounts = [...new Set([...device.keys(), ...cloud.keys(), ...service.keys()])]
  const compared = accounts.map((account): Comparison => {
    const parsed = parseAccount(account)
    const said = parsed?.kind === 'line' ? (byLineItem.get(parsed.lineItemId) ?? 0n) : null
    const sides = {
      device: device.get(account) ?? 0n,
      cloud: cloud.get(account) ?? 0n,
      service: service.get(account) ?? 0n,
    }
    const all = [...Object.values(sides), ...(said === null ? [] : [said])]
    const name = names.get(account) ?? account
    return { account, name, told: said, ...sides, difference: greatest(all) - least(all) }
  })
  const unaccounted = [...byLineItem.keys()].filter((id) => !compared.some(({ account }) => isLineItem(account, id)))
  if (unaccounted.length > 0) throw new Error(`no ledger has an account of ${unaccounted.join(', ')}`)
  return compared.sort(
    (a, b) => Number(b.told !== null) - Number(a.told !== null) || a.account.localeCompare(b.account),
  )
}

function toldByLineItem(told: readonly Told[]): Map<string, Micro> {
  const sums = new Map<string, Micro>()
  for (const { lineItemId, micro } of told.flatMap(({ items }) => items.flatMap(({ charges }) => charges))) {
    sums.set(lineItemId, (sums.get(lineItemId) ?? 0n) + micro)
  }
  return sums
}

function isLineItem(account: AccountId, lineItemId: string): boolean {
  const parsed = parseAccount(account)
  return parsed?.kind === 'line' && parsed.lineItemId === lineItemId
}

export function wrongRefusals(told: readonly Told[]): readonly Told[] {
  return told.filter(({ items }) => items.some(({ must, outcome }) => must !== undefined && must !== outcome))
}

/** Requested items by what was decided about them. */
export function countOutcomes(told: readonly Told[]): ReadonlyMap<ItemStatus, number> {
  const counts = new Map<ItemStatus, number>()
  for (const { outcome } of told.flatMap(({ items }) => items)) counts.set(outcome, (counts.get(outcome) ?? 0) + 1)
  return counts
}

const greatest = (amounts: readonly Micro[]): Micro => amounts.reduce((a, b) => (a > b ? a : b))
const least = (amounts: readonly Micro[]): Micro => amounts.reduce((a, b) => (a < b ? a : b))
