import type { Store } from '../storage/store.ts'

/**
 * @param makeKey returns the public key; called only when there is no administration key
 * @returns the id of the new key; undefined when there was one before
 */
export async function registerFirstKey(
  store: Store,
  makeKey: () => Promise<{ readonly id: string; readonly pem: string }>,
  now: number,
): Promise<string | undefined> {
  if ((await store.read((reader) => reader.keys.countAdministration())) > 0) return undefined
  const { id, pem } = await makeKey()
  return store.transaction(async (tx) => {
    await tx.keys.lock()
    if ((await tx.keys.countAdministration()) > 0) return undefined
    await tx.keys.save({
      type: 'administration-key',
      id,
      pem,
      activeFrom: now,
      previousPem: null,
      retiresAt: null,
      created: now,
      modified: now,
    })
    return id
  })
}
