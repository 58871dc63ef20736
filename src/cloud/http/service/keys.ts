/** Authorization key operations. Source: interface, Authentication; documentation on key management. */
import type { ErrorCode } from '../../../protocol/errors.ts'
import { actingAs } from '../../storage/audit.ts'
import { z } from 'zod'
import { PAGE_SIZE_DEFAULT } from '../../../protocol/service/instances.ts'
import {
  KEY_DELETED,
  type PublicKeyWire,
  keyDeleted,
  keyId,
  keysBodies,
  keysQuery,
  publicKeyPage,
  publicKeys,
} from '../../../protocol/service/keys.ts'
import { type KeyDeps, deleteKey, saveKeys } from '../../service-api/change-keys.ts'
import type { KeyRecord, KeyType } from '../../storage/records.ts'
import type { Store } from '../../storage/store.ts'
import { type Operation, serviceOperation, ADMINISTRATORS } from '../operation.ts'
import { pageOf } from './page.ts'

const place = {
  areas: ['api', 'floating/api'],
  principals: ADMINISTRATORS,
  cells: 'CONTROL',
  tag: 'Authorization keys',
} as const

interface Kind {
  readonly type: KeyType
  readonly path: string
  /** Operation ids. */
  readonly ids: { readonly save: string; readonly remove: string }
}

const KINDS: readonly Kind[] = [
  {
    type: 'administration-key',
    path: '/administration-keys',
    ids: { save: 'producer-admin-key-upload', remove: 'delete-producer-admin-key' },
  },
  {
    type: 'client-key',
    path: '/client-keys',
    ids: { save: 'client-key-upload', remove: 'delete-client-key' },
  },
]

/** Deleting or limiting a client key locks no administrator out. */
const changeErrors = (type: KeyType): readonly ErrorCode[] =>
  type === 'administration-key' ? ['LAST_ADMINISTRATION_KEY'] : []

export interface KeyOperationDeps extends Pick<KeyDeps, 'isElsewhere'> {
  readonly store: Store
  /** After which a saved key begins, and a deleted one ends, to verify. */
  readonly keyDelayMs: number
}

export function keyOperations({ store, keyDelayMs: delayMs, isElsewhere }: KeyOperationDeps): readonly Operation[] {
  return [
    ...KINDS.flatMap(({ type, path, ids }) => [
      serviceOperation({
        ...place,
        id: ids.save,
        summary: `Add or replace ${type}s`,
        answers: { 200: { description: 'The keys as saved.', body: publicKeys } },
        errors: changeErrors(type),
        role: 'keys',
        method: 'PUT',
        path,
        body: keysBodies[type],
        handle: async ({ body, principal, now }) => ({
          status: 200,
          body: (await saveKeys({ store: actingAs(store, principal), delayMs, isElsewhere }, type, body, now)).map(
            keyToWire,
          ),
        }),
      }),
      serviceOperation({
        ...place,
        id: ids.remove,
        summary: `Delete a ${type}`,
        answers: { 200: { description: 'It is deleted.', body: keyDeleted } },
        errors: ['NOT_FOUND', ...changeErrors(type)],
        role: 'keys',
        method: 'DELETE',
        path: `${path}/:keyId`,
        params: z.object({ keyId }),
        handle: async ({ params, principal, now }) => {
          await deleteKey({ store: actingAs(store, principal), delayMs }, type, params.keyId, now)
          return { status: 200, body: KEY_DELETED }
        },
      }),
    ]),
    serviceOperation({
      ...place,
      id: 'get-public-keys',
      summary: 'List the public keys',
      answers: { 200: { description: 'One page.', body: publicKeyPage } },
      method: 'GET',
      path: '/public-keys',
      query: keysQuery,
      handle: async ({ query: { next: from = 0, size = PAGE_SIZE_DEFAULT } }) => {
        const page = await store.read((reader) =>
          pageOf(from, size, (offset, limit) => reader.keys.list(offset, limit)),
        )
        return { status: 200, body: { keys: page.shown.map(keyToWire), next: page.next } }
      },
    }),
  ]
}

function keyToWire({ id, name, roles, instances, type, pem, created, modified }: KeyRecord): PublicKeyWire {
  const limits = {
    ...(name === null ? {} : { name }),
    ...(roles === null ? {} : { roles: [...roles] }),
    ...(instances === null ? {} : { instances: [...instances] }),
  }
  return { id, ...limits, type, publicKey: pem, created, modified }
}
