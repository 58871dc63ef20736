/**
 * Authorization keys. The last administration key cannot be deleted. A configured delay applies to added and deleted
 * keys, as in the service. Source: documentation on key management.
 */
import { idsOf, recordChange } from '../storage/audit.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { KeyRecord, KeyType } from '../storage/records.ts'
import type { Store } from '../storage/store.ts'
import { readVerificationKey } from './verification-key.ts'

export interface KeyDeps {
  readonly store: Store
  /** After which a saved key begins, and a deleted one ends, to verify. */
  readonly delayMs: number
}

/** @throws CodedError BAD_REQUEST for an unusable key */
export async function saveKeys(
  { store, delayMs }: KeyDeps,
  type: KeyType,
  keys: readonly { readonly id: string; readonly publicKey: string; readonly name?: string | undefined }[],
  now: number,
): Promise<readonly KeyRecord[]> {
  for (const [index, { publicKey }] of keys.entries()) {
    if (readVerificationKey(publicKey) === undefined) {
      throw new CodedError(
        'BAD_REQUEST',
        `body[${index}].publicKey: must be a PEM public key, RSA of 2048 bits or more or EC P-256`,
      )
    }
  }
  return store.transaction(async (tx) => {
    await tx.keys.lock()
    const saved: KeyRecord[] = []
    for (const { id, publicKey, name } of keys) {
      const stored = await tx.keys.get(type, id)
      const isReplaced = stored?.retiresAt === null
      const key: KeyRecord = {
        type,
        id,
        name: name ?? (isReplaced ? stored.name : null),
        pem: publicKey,
        activeFrom: now + delayMs,
        previousPem: delayMs === 0 || stored === undefined ? null : keyInForce(stored, now),
        retiresAt: null,
        created: isReplaced ? stored.created : now,
        modified: now,
      }
      await tx.keys.save(key)
      saved.push(key)
    }
    await recordChange(tx, now, { action: 'SAVE_KEYS', detail: { type, ...idsOf(saved) } })
    return saved
  })
}

/** @throws CodedError NOT_FOUND, LAST_ADMINISTRATION_KEY */
export async function deleteKey({ store, delayMs }: KeyDeps, type: KeyType, id: string, now: number): Promise<void> {
  await store.transaction(async (tx) => {
    await tx.keys.lock()
    const key = await tx.keys.get(type, id)
    if (key?.retiresAt !== null) {
      throw new CodedError('NOT_FOUND', `There is no ${type} ${JSON.stringify(id)}.`)
    }
    if (type === 'administration-key' && (await tx.keys.countAdministration()) === 1) {
      throw new CodedError('LAST_ADMINISTRATION_KEY', 'The last administration key cannot be deleted.')
    }
    if (delayMs === 0) await tx.keys.remove(type, id)
    else await tx.keys.save({ ...key, retiresAt: now + delayMs, modified: now })
    await recordChange(tx, now, { action: 'DELETE_KEY', detail: { type, id, name: key.name } })
  })
}

/** The PEM valid at this instant; null: none. */
export function keyInForce(key: KeyRecord, now: number): string | null {
  if (key.retiresAt !== null && now >= key.retiresAt) return null
  return now >= key.activeFrom ? key.pem : key.previousPem
}

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
      name: null,
      pem,
      activeFrom: now,
      previousPem: null,
      retiresAt: null,
      created: now,
      modified: now,
    })
    await recordChange(tx, now, { action: 'SAVE_KEYS', detail: { type: 'administration-key', ids: [id], count: 1 } })
    return id
  })
}
