/** Line items and actions with their usage: cloud charges plus billed usage of devices. */
import { actionAccount } from '../../core/accounts/account.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import type { Action } from '../../core/rules/policy.ts'
import { currentAccount } from '../accounts/calendar.ts'
import { used } from '../accounts/pool.ts'
import type { LineItemActions, LineItemRecord } from '../storage/records.ts'
import type { Reader } from '../storage/store.ts'
import { requireInstance, requireLineItem } from '../storage/require-record.ts'

export interface LineItemPlace {
  readonly instanceId: string
  readonly lineItemId: string
}

export interface LineItemUse {
  readonly record: LineItemRecord
  readonly used: Micro
}

export interface ActionUse {
  readonly action: Action
  /** Null without an allocation. */
  readonly used: Micro | null
}

/** @throws CodedError NOT_FOUND for an unknown instance */
export async function listLineItems(reader: Reader, instanceId: string, now: number): Promise<readonly LineItemUse[]> {
  await requireInstance(reader, instanceId)
  const records = await reader.lineItems.list(instanceId)
  const pools = await reader.accounts.get(records.map((record) => currentAccount(record, now)))
  return records.map((record) => ({ record, used: used(pools.get(currentAccount(record, now))) }))
}

/** @throws CodedError NOT_FOUND */
export async function showLineItem(reader: Reader, instanceId: string, id: string, now: number): Promise<LineItemUse> {
  return lineItemUse(reader, await requireLineItem(reader, instanceId, id), now)
}

export async function lineItemUse(reader: Reader, record: LineItemRecord, now: number): Promise<LineItemUse> {
  const account = currentAccount(record, now)
  return { record, used: used((await reader.accounts.get([account])).get(account)) }
}

export async function actionUses(
  reader: Reader,
  instanceId: string,
  lineItems: readonly LineItemActions[],
): Promise<readonly { readonly lineItemId: string; readonly actions: readonly ActionUse[] }[]> {
  const accounts = lineItems.flatMap(({ lineItemId, actions }) =>
    actions.filter(({ allocation }) => allocation !== null).map(({ id }) => actionAccount(instanceId, lineItemId, id)),
  )
  const pools = await reader.accounts.get(accounts)
  return lineItems.map(({ lineItemId, actions }) => ({
    lineItemId,
    actions: actions.map((action): ActionUse => {
      if (action.allocation === null) return { action, used: null }
      return { action, used: used(pools.get(actionAccount(instanceId, lineItemId, action.id))) }
    }),
  }))
}
