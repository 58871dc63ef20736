// Registered keys that one node has read and another one changes: the change holds on all nodes when it is confirmed.
import { setImmediate as turn } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { Authenticator } from '../../../src/cloud/service-api/authenticate.ts'
import { type PostgresStore, openPostgresStore } from '../../../src/cloud/storage/postgres/store.ts'
import { PostgresSchema } from '../../support/postgres-schema.ts'
import { postgres } from '../../support/servers.ts'
import { newKeyPair } from '../harness.ts'
import { NOW, removeKey, saveKey, tokenBy } from './client-keys.ts'

describe('the key of a token over PostgreSQL', () => {
  const server = postgres()
  let schema: PostgresSchema
  let changing: PostgresStore
  let reading: PostgresStore
  let reads = 0
  let authenticator: Authenticator

  beforeAll(async () => {
    schema = await PostgresSchema.create(server.url)
    const options = { url: schema.url, onConnectionLost: () => undefined }
    changing = await openPostgresStore(options)
    reading = await openPostgresStore(options)
    authenticator = new Authenticator({
      store: {
        read: (work) => {
          reads += 1
          return reading.read(work)
        },
      },
      defer: setImmediate,
      takeNextKey: async () => undefined,
      signIn: null,
      keysVersion: reading.keysVersion,
    })
  })
  afterAll(async () => {
    await reading.close()
    await changing.close()
    await schema[Symbol.asyncDispose]()
  })

  const save = (id: string, pem: string) => saveKey(changing, id, pem)
  const remove = (id: string) => removeKey(changing, id)

  /** Requests of a client while another node changes its key: the node that reads always has it at hand. */
  async function requestsDuring(change: Promise<unknown>, token: string): Promise<number> {
    const progress = { isOver: false }
    const over = change.finally(() => (progress.isOver = true))
    let requests = 0
    while (!progress.isOver) {
      await authenticator.authenticate(token, NOW).catch(() => undefined)
      requests += 1
      await turn()
    }
    await over
    return requests
  }

  it.for([
    ['is deleted', (id: string) => remove(id)],
    ['is replaced', (id: string) => save(id, newKeyPair().publicPem)],
  ] as const)('that %s on another node is refused when the change is confirmed', async ([, change]) => {
    for (let n = 0; n < 3; n += 1) {
      const { publicPem, privatePem } = newKeyPair()
      await save(`key-${n}`, publicPem)
      const token = await tokenBy(`key-${n}`, privatePem)
      expect(await authenticator.authenticate(token, NOW)).toMatchObject({ keyId: `key-${n}` })
      await requestsDuring(change(`key-${n}`), token)
      await expect(authenticator.authenticate(token, NOW)).rejects.toMatchObject({ code: 'TOKEN_INVALID' })
    }
  })

  it('is read once for many requests, and accepted at once when it is new', async () => {
    const { publicPem, privatePem } = newKeyPair()
    const token = await tokenBy('new', privatePem)
    await expect(authenticator.authenticate(token, NOW)).rejects.toMatchObject({ code: 'TOKEN_INVALID' })
    await save('new', publicPem)
    expect(await authenticator.authenticate(token, NOW)).toMatchObject({ keyId: 'new' })
    const before = reads
    const requests = await requestsDuring(save('other', newKeyPair().publicPem), token)
    expect(requests).toBeGreaterThan(10 * (reads - before))
  })
})
