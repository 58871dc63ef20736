/**
 * What devices do with a line item when their grant is used up and the twin cannot be asked: refuse, or, where it is
 * essential, go on up to a cap for each device. The exposure is what all devices together may then spend beyond what the
 * pool has given them. Source: docs/decisions/offline-policy.md.
 */
import { type Micro, MICRO_MAX } from '../../../core/amount.ts'
import type { OfflinePolicyStateWire } from '../../../protocol/edge/administration.ts'
import { CodedError } from '../../../protocol/errors.ts'
import { changeRules } from '../raise-policy.ts'
import { requireLineItem } from '../show-line-items.ts'
import type { Reader, Store } from '../store.ts'

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

/** @param arrearsCap micro-tokens; 0n: refuse. @throws CodedError NOT_FOUND, BAD_REQUEST */
export async function setOfflinePolicy(
  { store, now }: { readonly store: Store; readonly now: () => number },
  instanceId: string,
  lineItemId: string,
  arrearsCap: Micro,
): Promise<OfflinePolicyStateWire> {
  return store.transaction(async (tx) => {
    await changeRules(tx, instanceId, now(), async () => {
      await requireLineItem(tx, instanceId, lineItemId)
      const before = (await tx.edge.offlinePolicies.list(instanceId)).find((each) => each.lineItemId === lineItemId)
      const highest = before?.arrearsCapMax ?? 0n
      const arrearsCapMax = arrearsCap > highest ? arrearsCap : highest
      await tx.edge.offlinePolicies.save({ instanceId, lineItemId, arrearsCap, arrearsCapMax })
    })
    const state = await stateOf(tx, instanceId, lineItemId)
    if (BigInt(state.exposure) > MICRO_MAX)
      throw new CodedError('BAD_REQUEST', 'body.arrearsCap: all devices together exceed any pool')
    return state
  })
}

/** The highest cap that devices may have in their rules, by line item. */
export async function arrearsCaps(reader: Reader, instanceIds: readonly string[]): Promise<ReadonlyMap<string, Micro>> {
  const caps = new Map<string, Micro>()
  for (const instanceId of instanceIds) {
    for (const { lineItemId, arrearsCapMax } of await reader.edge.offlinePolicies.list(instanceId)) {
      caps.set(`${instanceId}/${lineItemId}`, arrearsCapMax)
    }
  }
  return caps
}

async function stateOf(reader: Reader, instanceId: string, lineItemId: string): Promise<OfflinePolicyStateWire> {
  const record = (await reader.edge.offlinePolicies.list(instanceId)).find((each) => each.lineItemId === lineItemId)
  const arrearsCap = record?.arrearsCap ?? 0n
  const devices = await reader.edge.devices.countTrusted(instanceId)
  return {
    ...{ instanceId, lineItemId },
    policy: arrearsCap > 0n ? 'essential' : 'refuse',
    arrearsCap: String(arrearsCap),
    devices,
    exposure: String(arrearsCap * BigInt(devices)),
  }
}
