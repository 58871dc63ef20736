// Registered keys that are remembered until keys change.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { Authenticator } from '../../../src/cloud/service-api/authenticate.ts'
import { type SqliteStore, openSqliteStore } from '../../../src/cloud/storage/sqlite/store.ts'
import { newKeyPair } from '../harness.ts'
import { NOW, removeKey, saveKey, tokenBy } from './client-keys.ts'

describe('the key of a token', () => {
  let folder: string
  let store: SqliteStore
  let reads: number
  /** Runs after a read, before its result is used. */
  let afterRead: () => Promise<void>
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'tallygate-keys-'))
    store = openSqliteStore({ path: join(folder, 'twin.db'), check: false, onBroken: () => undefined })
    reads = 0
    afterRead = async () => undefined
  })
  afterEach(async () => {
    await store.close()
    rmSync(folder, { recursive: true, force: true })
  })

  const authenticatorOver = (keysVersion: () => number | null): Authenticator =>
    new Authenticator({
      store: {
        read: async (work) => {
          reads += 1
          const result = await store.read(work)
          await afterRead()
          return result
        },
      },
      defer: setImmediate,
      takeNextKey: async () => undefined,
      signIn: null,
      keysVersion,
    })

  const save = (id: string, pem: string) => saveKey(store, id, pem)
  const remove = (id: string) => removeKey(store, id)
  const refused = { code: 'TOKEN_INVALID' }

  it('is read once, and again after keys have changed', async () => {
    const [first, second] = [newKeyPair(), newKeyPair()]
    await save('a', first.publicPem)
    const authenticator = authenticatorOver(store.keysVersion)
    const token = await tokenBy('a', first.privatePem)
    for (let n = 0; n < 3; n += 1) expect(await authenticator.authenticate(token, NOW)).toMatchObject({ keyId: 'a' })
    await store.transaction((tx) => tx.idempotency.forget(NOW, 1))
    await authenticator.authenticate(token, NOW)
    expect(reads).toBe(1)
    await save('a', second.publicPem)
    await expect(authenticator.authenticate(token, NOW)).rejects.toMatchObject(refused)
    expect(await authenticator.authenticate(await tokenBy('a', second.privatePem), NOW)).toMatchObject({ keyId: 'a' })
    expect(reads).toBe(2)
    await remove('a')
    await expect(authenticator.authenticate(token, NOW)).rejects.toMatchObject(refused)
    await save('a', first.publicPem)
    expect(await authenticator.authenticate(token, NOW)).toMatchObject({ keyId: 'a' })
  })

  it('is read for each request if another process may change it', async () => {
    const { publicPem, privatePem } = newKeyPair()
    await save('a', publicPem)
    const authenticator = authenticatorOver(() => null)
    const token = await tokenBy('a', privatePem)
    for (let n = 0; n < 3; n += 1) await authenticator.authenticate(token, NOW)
    expect(reads).toBe(3)
  })

  it('that is deleted while it is read is refused from then on', async () => {
    const { publicPem, privatePem } = newKeyPair()
    await save('a', publicPem)
    const authenticator = authenticatorOver(store.keysVersion)
    const token = await tokenBy('a', privatePem)
    afterRead = () => remove('a')
    expect(await authenticator.authenticate(token, NOW)).toMatchObject({ keyId: 'a' })
    afterRead = async () => undefined
    await expect(authenticator.authenticate(token, NOW)).rejects.toMatchObject(refused)
  })

  it('is read again only after a change that was committed', async () => {
    const { publicPem, privatePem } = newKeyPair()
    await save('a', publicPem)
    const authenticator = authenticatorOver(store.keysVersion)
    const token = await tokenBy('a', privatePem)
    await authenticator.authenticate(token, NOW)
    const change = store.transaction(async (tx) => {
      await tx.keys.remove('client-key', 'a')
      throw new Error('rolled back')
    })
    await expect(change).rejects.toThrow('rolled back')
    expect(await authenticator.authenticate(token, NOW)).toMatchObject({ keyId: 'a' })
    expect(reads).toBe(1)
  })
})
