/**
 * Authorization keys. One administration key with the role keys must remain. A configured delay applies to added and deleted
 * keys, as in the service. Source: documentation on key management.
 */
import { type KeyToSave, ROLES } from '../../protocol/service/keys.ts'
import { idsOf, recordChange } from '../storage/audit.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { KeyRecord, KeyType, KeyVersion } from '../storage/records.ts'
import type { Store, Transaction } from '../storage/store.ts'
import { readVerificationKey } from './verification-key.ts'

/** Not the present time: a key that is saved while the clock is ahead must still verify after the clock is corrected. */
const AT_ONCE = 0

export interface KeyDeps {
  readonly store: Store
  /** After which a saved key begins, and a deleted one ends, to verify. */
  readonly delayMs: number
  /** Whether another cell has the instance. */
  readonly isElsewhere?: ((instanceId: string) => Promise<boolean>) | undefined
}

/** @throws CodedError BAD_REQUEST for an unusable key, LAST_ADMINISTRATION_KEY */
export async function saveKeys(
  { store, delayMs, isElsewhere }: KeyDeps,
  type: KeyType,
  keys: readonly KeyToSave[],
  now: number,
): Promise<readonly KeyRecord[]> {
  const elsewhere = new Set<string>()
  for (const id of keys.flatMap(({ instances }) => instances ?? [])) if (await isElsewhere?.(id)) elsewhere.add(id)
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
    for (const [index, given] of keys.entries()) {
      const { id, publicKey } = given
      const stored = await tx.keys.get(type, id)
      const isReplaced = stored?.retiresAt === null
      const key: KeyRecord = {
        type,
        id,
        ...limitsOf(given, isReplaced ? stored : undefined),
        pem: publicKey,
        activeFrom: delayMs === 0 ? AT_ONCE : now + delayMs,
        previous: delayMs === 0 || stored === undefined ? null : keyInForce(stored, now),
        retiresAt: null,
        created: isReplaced ? stored.created : now,
        modified: now,
      }
      await refuseWrongLimits(tx, key, elsewhere, `body[${index}]`)
      await tx.keys.save(key)
      saved.push(key)
    }
    await requireAdministration(tx)
    await recordChange(tx, now, { action: 'SAVE_KEYS', detail: { type, ...idsOf(saved), ...limitsSaved(saved) } })
    return saved
  })
}

/** Limits for the audit, if one key is saved. */
function limitsSaved([key, ...others]: readonly KeyRecord[]): Partial<Limits> {
  return key === undefined || others.length > 0 ? {} : { name: key.name, roles: key.roles, instances: key.instances }
}

type Limits = Omit<KeyVersion, 'pem'>

/** What is not given stays as it was: a replaced key keeps its limits. */
function limitsOf({ name, roles, instances }: KeyToSave, stored: Limits | undefined): Limits {
  const granted = roles === undefined ? (stored?.roles ?? null) : ROLES.filter((role) => roles.includes(role))
  return {
    name: name ?? stored?.name ?? null,
    roles: granted?.length === ROLES.length ? null : granted,
    instances: instances === undefined ? (stored?.instances ?? null) : instances,
  }
}

/** @throws CodedError BAD_REQUEST */
async function refuseWrongLimits(
  tx: Transaction,
  key: KeyRecord,
  elsewhere: ReadonlySet<string>,
  place: string,
): Promise<void> {
  const { type, roles, instances } = key
  if (instances === null) return
  if (type === 'administration-key' && (roles === null || roles.includes('keys'))) {
    const fix = 'name other roles, or no instances'
    throw new CodedError('BAD_REQUEST', `${place}.instances: the role keys cannot be limited to instances; ${fix}`)
  }
  for (const id of instances) {
    if (elsewhere.has(id) || (await tx.instances.get(id)) !== undefined) continue
    throw new CodedError('BAD_REQUEST', `${place}.instances: there is no instance ${id}`)
  }
}

/** @throws CodedError LAST_ADMINISTRATION_KEY */
async function requireAdministration(tx: Transaction): Promise<void> {
  if ((await tx.keys.countAdministration()) > 0) return
  throw new CodedError('LAST_ADMINISTRATION_KEY', 'No administration key with the role keys would be left.')
}

/** @throws CodedError NOT_FOUND, LAST_ADMINISTRATION_KEY */
export async function deleteKey(
  { store, delayMs }: Omit<KeyDeps, 'isElsewhere'>,
  type: KeyType,
  id: string,
  now: number,
): Promise<void> {
  await store.transaction(async (tx) => {
    await tx.keys.lock()
    const key = await tx.keys.get(type, id)
    // A key that was deleted while the clock was ahead ends too late: it can be deleted again.
    if (key === undefined || (key.retiresAt !== null && key.retiresAt <= now + delayMs)) {
      throw new CodedError('NOT_FOUND', `There is no ${type} ${JSON.stringify(id)}.`)
    }
    if (delayMs === 0) await tx.keys.remove(type, id)
    else await tx.keys.save({ ...key, retiresAt: now + delayMs, modified: now })
    await requireAdministration(tx)
    await recordChange(tx, now, { action: 'DELETE_KEY', detail: { type, id, name: key.name } })
  })
}

/** The version valid at this instant: a key and its limits change together. Null: none. */
export function keyInForce(key: KeyRecord, now: number): KeyVersion | null {
  if (key.retiresAt !== null && now >= key.retiresAt) return null
  if (now < key.activeFrom) return key.previous
  const { name, roles, instances, pem } = key
  return { name, roles, instances, pem }
}

/** Shown as the administrator, until the key is saved with a name. */
const FIRST_KEY = 'first key'

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
      name: FIRST_KEY,
      roles: null,
      instances: null,
      pem,
      activeFrom: AT_ONCE,
      previous: null,
      retiresAt: null,
      created: now,
      modified: now,
    })
    await recordChange(tx, now, { action: 'SAVE_KEYS', detail: { type: 'administration-key', ids: [id], count: 1 } })
    return id
  })
}
