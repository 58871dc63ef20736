/**
 * A twin that was restored from a backup has forgotten grants. It grants nothing more of an account until every incarnation
 * that can hold rights in it has synced since, or is closed or settled; an administrator may end it earlier, at the risk that
 * what was forgotten is sold once more.
 */
import type { LearningStateWire } from '../../../protocol/edge/administration.ts'
import { CodedError } from '../../../protocol/errors.ts'
import { passForgottenRevisions } from '../raise-policy.ts'
import type { Reader, Store } from '../store.ts'
import { INSTANCES_PER_ROUND, LEARNING_SHOWN_MAX, USAGE_FORGOTTEN_MAX } from './limits.ts'

/** The store comes from a backup, with all its instances: what it has forgotten must not be mistaken for what follows. */
export async function beginLearning(store: Pick<Store, 'read' | 'transaction'>, now: number): Promise<void> {
  await store.transaction(async (tx) => {
    await tx.edge.learning.restored(now)
    // It rises with time as well, so that the same backup can be restored again.
    const [above, atTime] = [(await tx.usage.settled()) + USAGE_FORGOTTEN_MAX, BigInt(now) * 1_000n]
    await tx.usage.passForgotten(atTime > above ? atTime : above)
  })
  for (let offset = 0; ; offset += INSTANCES_PER_ROUND) {
    const instances = await store.read((reader) => reader.instances.list(offset, INSTANCES_PER_ROUND))
    await store.transaction(async (tx) => {
      // By id, as every transaction that locks the rules of several instances.
      for (const id of instances.map((instance) => instance.id).sort()) {
        await passForgottenRevisions(tx, id, now)
        await tx.edge.learning.begin(id, await learnsFrom(tx, now))
      }
    })
    if (instances.length < INSTANCES_PER_ROUND) return
  }
}

/**
 * From when on devices have to be heard of: later than all that the backup knows of them, also on a host whose clock is
 * behind the one on which the backup was made. Nobody counts as heard of before the clock has come so far.
 */
export async function learnsFrom(reader: Reader, now: number): Promise<number> {
  return Math.max(now, ((await reader.edge.devices.newestSync()) ?? -1) + 1)
}

/** Ends it where everybody has been heard of. Always false: there is nothing to go on with at once. */
export async function endLearning(store: Pick<Store, 'read' | 'transaction'>): Promise<false> {
  for (const { instanceId, since } of await store.read((reader) => reader.edge.learning.all())) {
    await store.transaction(async (tx) => {
      const waiting = await tx.edge.learning.waitingFor(instanceId, since, 1)
      if (waiting.length === 0) await tx.edge.learning.end(instanceId)
    })
  }
  return false
}

/** @throws CodedError NOT_FOUND for an instance that there is not */
export async function showLearning(
  { store }: { readonly store: Pick<Store, 'read'> },
  instanceId: string,
): Promise<LearningStateWire> {
  return store.read((reader) => stateOf(reader, instanceId))
}

/** An administrator knows better, or takes the risk. @throws CodedError NOT_FOUND */
export async function overrideLearning(
  { store }: { readonly store: Pick<Store, 'transaction'> },
  instanceId: string,
): Promise<LearningStateWire> {
  return store.transaction(async (tx) => {
    await tx.edge.learning.end(instanceId)
    return stateOf(tx, instanceId)
  })
}

async function stateOf(reader: Reader, instanceId: string): Promise<LearningStateWire> {
  if ((await reader.instances.get(instanceId)) === undefined) {
    throw new CodedError('NOT_FOUND', `There is no instance ${instanceId}.`)
  }
  const since = await reader.edge.learning.since(instanceId)
  if (since === undefined) return { since: null, waitingFor: [] }
  return { since, waitingFor: [...(await reader.edge.learning.waitingFor(instanceId, since, LEARNING_SHOWN_MAX))] }
}
