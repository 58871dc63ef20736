/**
 * Deletes an OBSOLETE line item. Its accounts stay: sessions may be refunded, and devices may report usage. Source:
 * documentation on deletion.
 */
import { recordChange } from '../storage/audit.ts'
import { CodedError } from '../../protocol/errors.ts'
import { changeRules } from '../policy/bump-policy-revision.ts'
import { closeAccounts } from '../policy/retarget-accounts.ts'
import { requireLineItem } from '../storage/require-record.ts'
import type { Store } from '../storage/store.ts'

/** @throws CodedError NOT_FOUND, CONFLICT */
export async function deleteLineItem(store: Store, instanceId: string, id: string, now: number): Promise<void> {
  await changeRules(store, instanceId, now, async (tx) => {
    const record = await requireLineItem(tx, instanceId, id)
    if (record.state !== 'OBSOLETE') {
      throw new CodedError(
        'CONFLICT',
        `A line item can be deleted when it is OBSOLETE; this one is ${record.state}. Set this state first; it is final.`,
      )
    }
    await tx.actions.replace(instanceId, id, [])
    const limit = await tx.consumptionLimits.get(instanceId, id)
    if (limit !== undefined) await tx.consumptionLimits.save({ ...limit, limit: null })
    const offline = (await tx.edge.offlinePolicies.list(instanceId)).find(({ lineItemId }) => lineItemId === id)
    // Keep the highest cap: devices may still report overspend.
    if (offline !== undefined) await tx.edge.offlinePolicies.save({ ...offline, overspendCap: 0n })
    await tx.edge.cloudReserves.save({ instanceId, lineItemId: id, tokens: 0n })
    await tx.lineItems.update({ ...record, deleted: now, modified: now })
    await closeAccounts(tx, record, now)
    await recordChange(tx, now, { action: 'DELETE_LINE_ITEM', instanceId, lineItemId: id })
  })
}
