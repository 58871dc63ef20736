import type { Store } from '../storage/store.ts'
import { lockRules } from './bump-policy-revision.ts'

/**
 * The store for changes by a caller who has read the rules of an instance: they would overwrite what was changed since.
 * @param requireRead throws if the caller has not read this revision
 */
export function ofRevision(store: Store, instanceId: string, requireRead: (revision: number) => void): Store {
  return {
    ...store,
    transaction: (work) =>
      store.transaction(async (tx) => {
        const { revision } = await lockRules(tx, instanceId)
        requireRead(revision)
        return work(tx)
      }),
  }
}
