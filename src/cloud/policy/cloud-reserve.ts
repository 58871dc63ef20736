/** Tokens of a line item that devices never get; see docs/decisions/fair-sharing.md. */
import { recordChange } from '../storage/audit.ts'
import { lineAccount } from '../../core/accounts/account.ts'
import { type Micro, formatMicro } from '../../core/pricing/amount.ts'
import { periodAt } from '../../core/rules/compile.ts'
import type { CloudReserveStateWire } from '../../protocol/edge/administration.ts'
import { type Policies, reserveOf } from './load-policy.ts'
import { free } from '../accounts/pool.ts'
import { changeRules } from './bump-policy-revision.ts'
import { requireLineItem } from '../storage/require-record.ts'
import type { CloudReserve } from '../storage/device-records.ts'
import type { Reader, Store } from '../storage/store.ts'

export interface CloudReserves {
  readonly store: Store
  readonly policies: Pick<Policies, 'of'>
  readonly now: () => number
}

/** @throws CodedError NOT_FOUND */
export async function showCloudReserve(
  { store, policies, now }: CloudReserves,
  instanceId: string,
  lineItemId: string,
): Promise<CloudReserveStateWire> {
  return store.read(async (reader) => {
    await requireLineItem(reader, instanceId, lineItemId)
    const reserves = await reader.edge.cloudReserves.list(instanceId)
    const tokens = reserves.find((each) => each.lineItemId === lineItemId)?.tokens ?? 0n
    const onDevices = await reservedByDevices(reader, policies, { instanceId, lineItemId }, now())
    return { instanceId, lineItemId, tokens: String(tokens), onDevices: String(onDevices) }
  })
}

export async function setCloudReserve(
  parts: CloudReserves,
  { instanceId, lineItemId, tokens }: CloudReserve,
): Promise<CloudReserveStateWire> {
  const at = parts.now()
  await changeRules(parts.store, instanceId, at, async (tx) => {
    await requireLineItem(tx, instanceId, lineItemId)
    await tx.edge.cloudReserves.save({ instanceId, lineItemId, tokens })
    const detail = { tokens: formatMicro(tokens) }
    await recordChange(tx, at, { action: 'SET_CLOUD_RESERVE', instanceId, lineItemId, detail })
  })
  return showCloudReserve(parts, instanceId, lineItemId)
}

/** The part of the reserve that the cloud has not charged and that is not free: devices have it. */
async function reservedByDevices(
  reader: Reader,
  policies: Pick<Policies, 'of'>,
  { instanceId, lineItemId }: Pick<CloudReserve, 'instanceId' | 'lineItemId'>,
  now: number,
): Promise<Micro> {
  const loaded = await policies.of(reader, instanceId)
  const lineItem = loaded?.lineItems.get(lineItemId)
  const period = lineItem === undefined ? undefined : periodAt(lineItem.periods, now)
  if (loaded === undefined || period === undefined) return 0n
  const account = lineAccount(instanceId, lineItemId, period.index)
  const pool = (await reader.accounts.get([account])).get(account)
  if (pool?.capTarget === undefined || pool.capTarget === null) return 0n
  const missing = reserveOf(account, loaded) - pool.charged - free(pool)
  return missing > 0n ? missing : 0n
}
