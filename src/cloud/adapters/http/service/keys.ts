/** Authorization key operations. Source: contract, Authentication; facts on key management. */
import { z } from 'zod'
import { PAGE_SIZE_DEFAULT } from '../../../../protocol/service/instances.ts'
import { type PublicKeyWire, keyId, keysBody, keysQuery } from '../../../../protocol/service/keys.ts'
import { deleteKey, saveKeys } from '../../../app/change-keys.ts'
import type { KeyRecord, KeyType } from '../../../app/records.ts'
import type { Store } from '../../../app/store.ts'
import { type Route, route } from '../routes.ts'
import { pageOf } from './page.ts'

const areas = ['api', 'floating/api'] as const
const access = 'ADMINISTRATION'

const KINDS: readonly { readonly type: KeyType; readonly path: string }[] = [
  { type: 'administration-key', path: '/administration-keys' },
  { type: 'client-key', path: '/client-keys' },
]

/** @param delayMs after which a saved key begins, and a deleted one ends, to verify */
export function keyRoutes(store: Store, delayMs: number): readonly Route[] {
  return [
    ...KINDS.flatMap(({ type, path }) => [
      route({
        method: 'PUT',
        path,
        areas,
        access,
        body: keysBody,
        handle: async ({ body, now }) => ({
          status: 200,
          body: (await saveKeys(store, type, body, delayMs, now)).map(keyToWire),
        }),
      }),
      route({
        method: 'DELETE',
        path: `${path}/:keyId`,
        areas,
        access,
        params: z.object({ keyId }),
        handle: async ({ params, now }) => {
          await deleteKey(store, type, params.keyId, delayMs, now)
          return { status: 200, body: { message: 'Key deleted' } }
        },
      }),
    ]),
    route({
      method: 'GET',
      path: '/public-keys',
      areas,
      access,
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

function keyToWire({ id, type, pem, created, modified }: KeyRecord): PublicKeyWire {
  return { id, type, publicKey: pem, created, modified }
}
