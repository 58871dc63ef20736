/**
 * What a run of the demo showed, and whether it may call itself a success: the ledgers of device and cloud, and what the
 * applications were told, must be equal for every line item, allocation and consumption limit, to the micro-token.
 */
import { type AccountId, parseAccount } from '../core/account.ts'
import type { Micro } from '../core/amount.ts'
import type { ItemStatus } from '../protocol/service/status.ts'
import { SESSION_LINE_ITEM } from './site.ts'
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
  /** From the export of usage records: the sums of charges less refunds, by line item. */
  readonly exported: Ledger
  /** What the administrator called them, where he did. */
  readonly names: ReadonlyMap<AccountId, string>
}

export interface Comparison {
  readonly account: AccountId
  readonly lineItemId: string
  /** Which part of what was charged to the line item this is, where it is not all of it. */
  readonly part: string | null
  /** Null where the applications are not told: allocations, and what a session is charged by itself. */
  readonly told: Micro | null
  readonly device: Micro
  readonly cloud: Micro
  /** Null where the service API does not say: consumption limits. */
  readonly service: Micro | null
  /** Null where usage records do not say: allocations and consumption limits. */
  readonly exported: Micro | null
  /** Largest distance between any two of them. */
  readonly difference: Micro
}

export type DisturbanceKind =
  'agent killed' | 'twin killed' | 'both killed' | 'clock set' | 'network slow' | 'answers lost' | 'network cut'

export interface DemoResult {
  readonly phases: readonly Phase[]
  readonly comparisons: readonly Comparison[]
  /** Requests with an item that was not refused as it had to be. */
  readonly wrong: readonly Told[]
  /** Devices that the twin takes for copied, restored or wrong; there is one, and it is honest. */
  readonly alarms: number
  /** Of the agent. */
  readonly kills: number
  /** How often what went wrong, with `--chaos`. */
  readonly disturbances: ReadonlyMap<DisturbanceKind, number>
  readonly drainMs: number
  readonly totalMs: number
  /** Where databases and logs are kept; null when they are not. */
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

/**
 * Every account that any side knows, each line item followed by its parts.
 *
 * @throws Error for an account that nobody could have made, and for charges that no ledger has an account of
 */
export function compare(told: readonly Told[], ledgers: Ledgers): readonly Comparison[] {
  const { device, cloud, service, exported } = ledgers
  const sums = toldSums(told)
  const accounts = [...new Set([...device.keys(), ...cloud.keys(), ...service.keys(), ...exported.keys()])]
  const compared = accounts.map((account): Comparison => {
    const { lineItemId, part, key } = readingOf(account, ledgers.names)
    const sides = {
      told: key === null ? null : (sums.get(key) ?? 0n),
      device: device.get(account) ?? 0n,
      cloud: cloud.get(account) ?? 0n,
      service: service.get(account) ?? (key !== null && part !== null ? null : 0n),
      exported: part === null ? (exported.get(account) ?? 0n) : null,
    }
    const amounts = Object.values(sides).filter((amount) => amount !== null)
    return { account, lineItemId, part, ...sides, difference: greatest(amounts) - least(amounts) }
  })
  const known = new Set(compared.map(({ lineItemId }) => lineItemId))
  const unaccounted = [...chargedLineItems(told)].filter((id) => !known.has(id))
  if (unaccounted.length > 0) throw new Error(`no ledger has an account of ${unaccounted.join(', ')}`)
  return compared.sort((a, b) => a.lineItemId.localeCompare(b.lineItemId) || (a.part ?? '').localeCompare(b.part ?? ''))
}

interface Reading {
  readonly lineItemId: string
  readonly part: string | null
  /** Under which the sum of what the applications were told stands; null where they are not told. */
  readonly key: string | null
}

function readingOf(account: AccountId, names: Ledgers['names']): Reading {
  const parsed = parseAccount(account)
  switch (parsed?.kind) {
    case 'line': {
      const { lineItemId } = parsed
      // What a session is charged by itself, and what it gets back, is told to nobody.
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

/** What the applications were told, by line item, and by line item and requester. */
function toldSums(told: readonly Told[]): ReadonlyMap<string, Micro> {
  const sums = new Map<string, Micro>()
  for (const { request, items } of told) {
    for (const { lineItemId, micro } of items.flatMap(({ charges }) => charges)) {
      for (const key of [keyOf(lineItemId), keyOf(lineItemId, request.requester)]) {
        sums.set(key, (sums.get(key) ?? 0n) + micro)
      }
    }
  }
  return sums
}

function chargedLineItems(told: readonly Told[]): ReadonlySet<string> {
  return new Set(told.flatMap(({ items }) => items.flatMap(({ charges }) => charges.map((one) => one.lineItemId))))
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
