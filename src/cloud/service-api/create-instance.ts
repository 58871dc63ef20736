/** The first instance of a customer account becomes its default instance. */
import { recordChange } from '../storage/audit.ts'
import { ENGINE } from '../../core/engine.ts'
import type { Instance } from '../storage/records.ts'
import type { Store, Transaction } from '../storage/store.ts'
import { type IdempotencyClaim, requireSame } from './idempotency-key.ts'

interface NewInstance {
  readonly id: string
  readonly shortName: string
  readonly accountId: string
}

/**
 * @param once a later request with it gets the instance of the first one
 * @throws CodedError IDEMPOTENCY_CONFLICT
 */
export async function createInstance(
  store: Store,
  fresh: NewInstance,
  now: number,
  once: IdempotencyClaim | null = null,
): Promise<Instance> {
  return store.transaction(async (tx) => {
    if (once !== null) {
      const isFirst = await tx.idempotency.add({ ...once, answer: fresh.id })
      if (!isFirst) return instanceOf(tx, once)
    }
    const defaultInstance = (await tx.instances.defaultOf(fresh.accountId)) === undefined
    const instance: Instance = { ...fresh, defaultInstance, created: now, modified: now }
    await insertInstance(tx, instance, now)
    const { id: instanceId, shortName, accountId } = fresh
    await recordChange(tx, now, { action: 'CREATE_INSTANCE', instanceId, detail: { shortName, accountId } })
    return instance
  })
}

/** That an earlier request has created. */
async function instanceOf(tx: Transaction, once: IdempotencyClaim): Promise<Instance> {
  const stored = (await tx.idempotency.find([once.scope])).get(once.scope)
  if (stored === undefined) throw new Error('invariant: what prevents a second answer can be read')
  requireSame(stored, once)
  const instance = await tx.instances.get(stored.answer)
  if (instance === undefined) throw new Error('invariant: instances are never deleted')
  return instance
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
