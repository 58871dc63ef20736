/** Without contact and tokens, devices refuse, or overspend up to a cap. Source: docs/decisions/offline-policy.md. */
import { recordChange } from '../storage/audit.ts'
import { type Micro, MICRO_MAX, formatMicro } from '../../core/pricing/amount.ts'
import type { OfflinePolicyStateWire } from '../../protocol/edge/administration.ts'
import { CodedError } from '../../protocol/errors.ts'
import { changeRules } from './bump-policy-revision.ts'
import { requireLineItem } from '../storage/require-record.ts'
import type { Reader, Store } from '../storage/store.ts'

/** @throws CodedError NOT_FOUND */
export async function showOfflinePolicy(
  { store }: { readonly store: Pick<Store, 'read'> },
  instanceId: string,
  lineItemId: string,
): Promise<OfflinePolicyStateWire> {
  return store.read(async (reader) => {
    await requireLineItem(reader, instanceId, lineItemId)
    return stateOf(reader, instanceId, lineItemId)
  })
}

/** @param overspendCap micro-tokens; 0n: refuse. @throws CodedError NOT_FOUND, BAD_REQUEST */
export async function setOfflinePolicy(
  { store, now }: { readonly store: Store; readonly now: () => number },
  instanceId: string,
  lineItemId: string,
  overspendCap: Micro,
): Promise<OfflinePolicyStateWire> {
  const at = now()
  return changeRules(store, instanceId, at, async (tx) => {
    await requireLineItem(tx, instanceId, lineItemId)
    const before = (await tx.edge.offlinePolicies.list(instanceId)).find((each) => each.lineItemId === lineItemId)
    const highest = before?.overspendCapMax ?? 0n
    const overspendCapMax = overspendCap > highest ? overspendCap : highest
    await tx.edge.offlinePolicies.save({ instanceId, lineItemId, overspendCap, overspendCapMax })
    const detail = { overspendCap: formatMicro(overspendCap) }
    await recordChange(tx, at, { action: 'SET_OFFLINE_POLICY', instanceId, lineItemId, detail })
    const state = await stateOf(tx, instanceId, lineItemId)
    if (BigInt(state.exposure) > MICRO_MAX)
      throw new CodedError('BAD_REQUEST', 'body.overspendCap: all devices together exceed any pool')
    return state
  })
}

async function stateOf(reader: Reader, instanceId: string, lineItemId: string): Promise<OfflinePolicyStateWire> {
  const record = (await reader.edge.offlinePolicies.list(instanceId)).find((each) => each.lineItemId === lineItemId)
  const overspendCap = record?.overspendCap ?? 0n
  const devices = await reader.edge.devices.countTrusted(instanceId)
  return {
    instanceId,
    lineItemId,
    policy: overspendCap > 0n ? 'essential' : 'refuse',
    overspendCap: String(overspendCap),
    devices,
    exposure: String(overspendCap * BigInt(devices)),
  }
}
