// Segments that arrive together.
import { randomUUID } from 'node:crypto'
import { expect, it } from 'vitest'
import { type OwnDevice, ownDeviceOperations } from '../../../../src/cloud/http/edge/device.ts'
import type { Call } from '../../../../src/cloud/http/operation.ts'
import type { SyncDeps } from '../../../../src/cloud/sync/merge-context.ts'
import { SyncBatcher } from '../../../../src/cloud/sync/sync-batcher.ts'
import { TestDevice, newDeviceKeys } from '../../sync/test-device.ts'

it('opens 64 segments at a time, and the next one when one is answered', async () => {
  const keys = await newDeviceKeys()
  const device = new TestDevice(randomUUID(), keys, {} as ConstructorParameters<typeof TestDevice>[2])
  device.state.epoch = 1
  // A final segment has a transaction for itself.
  const { document } = await device.seal([], true)
  const inProgress: PromiseWithResolvers<never>[] = []
  const syncs = {
    store: {
      transaction: () => {
        const transaction = Promise.withResolvers<never>()
        inProgress.push(transaction)
        return transaction.promise
      },
    },
    ...{ keys: { trusted: [] }, now: () => 0, present: () => 0 },
  }
  const deps = { ...syncs, syncBatcher: new SyncBatcher(syncs as unknown as SyncDeps, setImmediate) }
  const sync = ownDeviceOperations(deps as unknown as OwnDevice).find(({ id }) => id === 'sync')
  const stored = { id: device.id, publicKey: keys.jwk, thumbprint: keys.signer.keyId, instanceIds: [] }
  const call = { principal: { device: stored }, body: { segment: document, nonce: randomUUID(), proofs: [] } }
  if (sync === undefined) throw new Error('devices sync')
  const answers = Array.from({ length: 70 }, () =>
    sync.handle(call as unknown as Call<unknown, unknown, unknown>).catch(() => 'answered'),
  )
  await expect.poll(() => inProgress.length).toBe(64)
  inProgress[0]?.reject(new Error('the end'))
  // Which one it is depends on the threads that verify signatures.
  expect(await Promise.race(answers)).toBe('answered')
  await expect.poll(() => inProgress.length).toBe(65)
  for (let next = 1; next < answers.length; next += 1) {
    await expect.poll(() => inProgress.length).toBeGreaterThan(next)
    inProgress[next]?.reject(new Error('the end'))
  }
  expect(await Promise.all(answers)).toEqual(Array(70).fill('answered'))
})
