/**
 * What a device gets with the answer to a merged segment: the pools after it, the device's accounts after it, and the
 * signed part. Never more than a pool has free, never for an account that the rules in force do not have.
 */
import { type AccountId, type ParsedAccount, parseAccount } from '../../../core/account.ts'
import type { Micro } from '../../../core/amount.ts'
import { isIn } from '../../../core/compile.ts'
import { type Want, room, sizeGrant } from '../../../core/grant.ts'
import { type LineItem, type Period, type Policy, TOLERANCE_MS } from '../../../core/policy.ts'
import type { Grant } from '../../../protocol/edge/sync.ts'
import { free, grantOut } from '../pool.ts'
import type { Pool } from '../records.ts'
import type { DeviceAccountRecord } from './records.ts'
import type { RulesInForce } from './rules-in-force.ts'

/** Finds the line item that stands behind an account, if the account can be spent now or in the next period. */
export type Grantable = (account: AccountId) => LineItem | undefined

/** @param now POSIX ms */
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

/**
 * Up to where the grants of an account are no overdraft: the quantity of a line item. Undefined for an account that knows no
 * overdraft: an allocation or a limit.
 */
export function quantityOf(account: AccountId, grantable: Grantable): Micro | undefined {
  return parseAccount(account)?.kind === 'line' ? grantable(account)?.quantity : undefined
}

/** The last instant at which anything of these rules can be spent; null where no line item is deployed. */
export function lastUsableAt(rules: RulesInForce): number | null {
  let last: number | null = null
  for (const { policy } of rules.values()) {
    for (const { state, endsAt } of policy.lineItems) {
      if (state === 'DEPLOYED') last = Math.max(last ?? 0, endsAt + toleranceOf(policy))
    }
  }
  return last
}

export interface Granting {
  readonly pools: ReadonlyMap<AccountId, Pool>
  readonly accounts: readonly DeviceAccountRecord[]
  readonly granted: Grant['accounts']
}

/**
 * Grants as much of each want as is right.
 *
 * @param wants of accounts that are grantable, each once
 * @param pools of these accounts, after the merge
 * @param held what the device holds of them, after the merge
 * @param devicesOn how many live devices draw on the account, this one included
 * @param quantity of a line item's pool, micro-tokens; undefined for an account that knows no overdraft
 * @param withheld accounts of which it gets nothing: it is asked to give back, or the twin has forgotten who holds what
 */
export function grantWants(
  wants: readonly Want[],
  pools: ReadonlyMap<AccountId, Pool>,
  held: (account: AccountId) => DeviceAccountRecord,
  devicesOn: (account: AccountId) => number,
  quantity: (account: AccountId) => Micro | undefined,
  withheld: (account: AccountId) => boolean,
): Granting {
  const after = new Map<AccountId, Pool>()
  const accounts: DeviceAccountRecord[] = []
  const granted: Grant['accounts'] = []
  for (const want of wants) {
    const { account } = want
    const pool = pools.get(account)
    if (pool === undefined) throw new Error('invariant: the pool of a want was opened')
    const record = held(account)
    if (pool.capTarget === null) {
      if (!record.unlimited) accounts.push({ ...record, unlimited: true })
      granted.push({ account, granted: record.granted, exhausted: false, unlimited: true })
      continue
    }
    const withhold = withheld(account)
    const size = withhold ? 0n : sizeGrant(want, room(record), free(pool), devicesOn(account))
    const drawn = grantOut(pool, size)
    const topped = { ...record, granted: record.granted + size }
    if (size > 0n) {
      after.set(account, drawn)
      accounts.push(topped)
    }
    const overdraft = overdraftIn(room(topped), drawn, quantity(account))
    granted.push({
      account,
      granted: topped.granted,
      exhausted: !withhold && free(drawn) === 0n,
      unlimited: false,
      ...(overdraft > 0n ? { overdraft } : {}),
    })
  }
  return { pools: after, accounts, granted }
}

/**
 * How much of what a device holds unspent may be overdraft, at most: whose tokens are the last ones of a pool shows only when they
 * are spent, so what is out beyond the quantity is said to every device that holds as much.
 */
function overdraftIn(held: Micro, { charged, grantedOut }: Pool, quantity: Micro | undefined): Micro {
  if (quantity === undefined || held <= 0n) return 0n
  const beyond = charged + grantedOut - quantity
  if (beyond <= 0n) return 0n
  return beyond < held ? beyond : held
}
