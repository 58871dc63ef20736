/** The first instance of a customer account becomes its default instance. */
import { recordChange } from '../storage/audit.ts'
import { ENGINE } from '../../core/engine.ts'
import type { Instance } from '../storage/records.ts'
import type { Store, Transaction } from '../storage/store.ts'

export async function createInstance(
  store: Store,
  order: { readonly id: string; readonly shortName: string; readonly accountId: string },
  now: number,
): Promise<Instance> {
  return store.transaction(async (tx) => {
    const defaultInstance = (await tx.instances.defaultOf(order.accountId)) === undefined
    const instance: Instance = { ...order, defaultInstance, created: now, modified: now }
    await insertInstance(tx, instance, now)
    const { id: instanceId, shortName, accountId } = order
    await recordChange(tx, now, { action: 'CREATE_INSTANCE', instanceId, detail: { shortName, accountId } })
    return instance
  })
}

/** With its first policy revision. */
export async function insertInstance(tx: Transaction, instance: Instance, now: number): Promise<void> {
  const { id: instanceId } = instance
  await tx.instances.insert(instance)
  await tx.policyRevisions.insert({
    instanceId,
    revision: 1,
    bumpedAt: now,
    listedAt: now,
    calendarDue: null,
    engine: ENGINE.version,
  })
  await tx.outbox.append([{ kind: 'policy', instanceId, revision: 1 }], now)
}
