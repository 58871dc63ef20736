/** Sizes the grant in the response to a merged segment: never more than a pool has free. */
import { type AccountId, type ParsedAccount, parseAccount } from '../../../core/accounts/account.ts'
import { MICRO_MAX, type Micro } from '../../../core/pricing/amount.ts'
import { isIn } from '../../../core/rules/compile.ts'
import { type GrantSizes, sizeGrants } from '../../../core/accounts/fair-share.ts'
import { type TopUps, available } from '../../../core/accounts/grant.ts'
import { type LineItem, type Period, type Policy, TOLERANCE_MS } from '../../../core/rules/policy.ts'
import type { Grant } from '../../../protocol/edge/sync.ts'
import { freeForDevices, grantOut, recoverable } from '../../accounts/pool.ts'
import type { Pool } from '../../storage/records.ts'
import type { DeviceAccountRecord } from '../../storage/device-records.ts'
import type { RulesInForce } from '../../policy/rules-in-force.ts'

/** The account's line item, if the account can be spent in this period or the next. */
export type Grantable = (account: AccountId) => LineItem | undefined

export function grantableAt(rules: RulesInForce, now: number): Grantable {
  return (account) => {
    const parsed = parseAccount(account)
    const loaded = parsed && rules.get(parsed.instanceId)
    const lineItem = parsed && loaded?.lineItems.get(parsed.lineItemId)
    if (lineItem?.state !== 'DEPLOYED' || !lineItem.elastic) return undefined
    if (now > lineItem.endsAt + toleranceOf(loaded?.policy)) return undefined
    return hasAccount(lineItem, parsed, now) ? lineItem : undefined
  }
}

function hasAccount(lineItem: LineItem, account: ParsedAccount | undefined, now: number): boolean {
  switch (account?.kind) {
    case 'line':
      return currentOrNext(lineItem.periods, account.period, now)
    case 'action': {
      const action = lineItem.actions.find(({ id }) => id === account.actionId)
      return action !== undefined && action.allocation !== null
    }
    case 'limit': {
      const limit = lineItem.consumptionLimit
      return limit !== null && currentOrNext(limit.periods, account.period, now)
    }
    case undefined:
      return false
  }
}

function toleranceOf(policy: Policy | undefined): number {
  return policy?.timezoneTolerant === true ? TOLERANCE_MS : 0
}

function currentOrNext(periods: readonly Period[], index: number, now: number): boolean {
  const current = periods.findIndex((period) => isIn(period, now))
  return current !== -1 && periods.slice(current, current + 2).some((period) => period.index === index)
}

/** The part of an account that is not overdraft: the line item's quantity. Undefined for allocations and limits. */
export function quantityOf(account: AccountId, grantable: Grantable): Micro | undefined {
  return parseAccount(account)?.kind === 'line' ? grantable(account)?.quantity : undefined
}

export function lastUsableAt(rules: RulesInForce): number | null {
  let last: number | null = null
  for (const { policy } of rules.values()) {
    for (const { state, endsAt } of policy.lineItems) {
      if (state === 'DEPLOYED') last = Math.max(last ?? 0, endsAt + toleranceOf(policy))
    }
  }
  return last
}

export interface RequestedAccount {
  readonly account: AccountId
  readonly pool: Pool
  readonly record: DeviceAccountRecord
  readonly reserved: Micro
  readonly wanted: Micro
  readonly share: Micro
  readonly spare: Micro
  /** Nothing is granted yet: the device must return its tokens first, and may request again with them. */
  readonly mustReturn: boolean
  /** Nothing is granted: sales of a restored cloud are unknown. */
  readonly isUnproven: boolean
}

export interface Granting extends GrantSizes {
  readonly pools: ReadonlyMap<AccountId, Pool>
  readonly accounts: readonly DeviceAccountRecord[]
  readonly wire: Grant['accounts']
}

export function fairShare(pool: Pool, reserved: Micro, devices: number): Micro {
  const unspent = freeForDevices(pool, reserved) + recoverable(pool)
  return unspent > 0n ? unspent / BigInt(Math.max(1, devices)) : 0n
}

/** @param quantity of a line item's pool; undefined for an account without overdraft */
export function grantRequested(
  requested: ReadonlyMap<AccountId, RequestedAccount>,
  { needs, topUpRequests }: TopUps,
  quantity: (account: AccountId) => Micro | undefined,
): Granting {
  const sizes = sizeGrants(needs, topUpRequests, (account) => {
    const found = requested.get(account)
    if (found === undefined || found.mustReturn || found.isUnproven) return undefined
    const { pool, record, reserved, share, spare } = found
    if (pool.capTarget === null) return 'UNLIMITED'
    const free = freeForDevices(pool, reserved)
    // The granted counter never shrinks.
    const countable = MICRO_MAX - record.granted
    return { available: available(record), free: free < countable ? free : countable, spare, share }
  })
  const pools = new Map<AccountId, Pool>()
  const accounts: DeviceAccountRecord[] = []
  const wire: Grant['accounts'] = []
  for (const { account, pool, record, reserved, mustReturn, isUnproven } of requested.values()) {
    if (pool.capTarget === null) {
      if (!record.unlimited) accounts.push({ ...record, unlimited: true, metered: true, wasMetered: true })
      wire.push({ account, granted: record.granted, exhausted: false, available: MICRO_MAX, unlimited: true })
      continue
    }
    const size = sizes.granted.get(account) ?? 0n
    const drawn = grantOut(pool, size)
    const topped = { ...record, granted: record.granted + size, unlimited: false }
    if (size > 0n) pools.set(account, drawn)
    if (size > 0n || record.unlimited) accounts.push(topped)
    const overdraft = overdraftIn(available(topped), drawn, quantity(account))
    const left = freeForDevices(drawn, reserved)
    wire.push({
      account,
      granted: topped.granted,
      exhausted: !mustReturn && !isUnproven && left === 0n && drawn.withheld === 0n,
      available: isUnproven ? 0n : left,
      unlimited: false,
      ...(overdraft > 0n ? { overdraft } : {}),
    })
  }
  return { ...sizes, pools, accounts, wire }
}

/** Which tokens are a pool's last shows only when they are spent, so each device may have all of the excess. */
function overdraftIn(balance: Micro, { charged, grantedOut }: Pool, quantity: Micro | undefined): Micro {
  if (quantity === undefined || balance <= 0n) return 0n
  const beyond = charged + grantedOut - quantity
  if (beyond <= 0n) return 0n
  return beyond < balance ? beyond : balance
}
