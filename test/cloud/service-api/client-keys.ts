// Registered keys of clients in a store, and tokens that they sign.
import { makeAccessToken } from '../../../src/client/access-token.ts'
import type { Store } from '../../../src/cloud/storage/store.ts'

export const NOW = Date.UTC(2026, 4, 6)

export function saveKey(store: Pick<Store, 'transaction'>, id: string, pem: string): Promise<void> {
  const version = { name: null, roles: null, instances: null, pem }
  const times = { activeFrom: 0, previous: null, retiresAt: null, created: NOW, modified: NOW }
  return store.transaction((tx) => tx.keys.save({ type: 'client-key', id, ...version, ...times }))
}

export function removeKey(store: Pick<Store, 'transaction'>, id: string): Promise<void> {
  return store.transaction((tx) => tx.keys.remove('client-key', id))
}

/** @returns the value of the header `Authorization` */
export async function tokenBy(keyId: string, privateKey: string): Promise<string> {
  const token = await makeAccessToken({
    ...{ kind: 'CLIENT', keyId, privateKey, instanceIds: ['i'] },
    ...{ issuer: 'tests', now: NOW, lifetimeMs: 60_000 },
  })
  return `Bearer ${token}`
}
