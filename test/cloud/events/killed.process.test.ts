// A cloud that is killed between the acknowledgment of an event and the move of its cursor sends the event again.
import { writeFileSync } from 'node:fs'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { makeAccessToken } from '../../../src/client/access-token.ts'
import { WebhookReceiver } from '../../support/webhook-receiver.ts'
import { HOUR, lineItemBody } from '../harness.ts'
import { TwinProcess } from '../twin-process.ts'

test('a killed cloud repeats the events that it does not know to be delivered, with the same ids', async () => {
  await using receiver = await WebhookReceiver.start()
  const folder = await mkdtemp(join(tmpdir(), 'tallygate-killed-'))
  const secretFile = join(folder, 'secret')
  writeFileSync(secretFile, receiver.secret)
  const env = {
    TALLYGATE_CLOUD_EVENTS_WEBHOOKS: JSON.stringify([
      { name: 'billing', url: receiver.url, secret_file: secretFile, types: ['usage'] },
    ]),
  }
  const start = () => TwinProcess.start(['--store-path', join(folder, 'cloud')], env)
  let twin = await start()
  try {
    const privateKey = await readFile(join(folder, 'cloud', 'administration-key.pem'), 'utf8')
    const call = async (method: string, path: string, body: unknown): Promise<unknown> => {
      const token = await makeAccessToken({
        ...{ kind: 'ADMIN', privateKey, instanceIds: [], issuer: 'tests', now: Date.now(), lifetimeMs: HOUR },
      })
      const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' }
      const response = await fetch(`${twin.address}${path}`, { method, headers, body: JSON.stringify(body) })
      if (!response.ok) throw new Error(await response.text())
      return response.json()
    }
    const instances = '/provisioning/api/v1.1/instances'
    const { id } = (await call('POST', instances, { shortName: 'Test', accountId: 'customer' })) as { id: string }
    const items = [{ name: 'Print', rate: 1 }]
    await call('POST', '/provisioning/api/v1.1/rate-tables', { effectiveFrom: 0, version: '1', items })
    const always = { start: 0, end: 253_402_300_799_999 }
    await call('PUT', `${instances}/${id}/line-items`, lineItemBody(always))
    const access = () =>
      call('POST', `/elastic/api/v1.1/instances/${id}/access-request`, {
        requester: { type: 'user', value: 'Lisa' },
        requestedItems: [{ item: 'Print', count: 1 }],
      })
    const killed = Promise.withResolvers<undefined>()
    let isFirst = true
    receiver.respond = async () => {
      if (!isFirst) return 200
      isFirst = false
      await twin.end('SIGKILL')
      killed.resolve(undefined)
      return 200
    }
    // The sink begins with the first event after it has looked once.
    await expect.poll(() => sinks(twin.address, privateKey)).toHaveLength(1)
    for (let n = 0; n < 3; n += 1) await access().catch(() => undefined)
    await killed.promise
    const before = receiver.ids
    twin = await start()
    await expect.poll(() => receiver.deliveries.length).toBeGreaterThan(1)
    const after = receiver.ids.slice(before.length)
    expect(after.slice(0, before.length)).toEqual(before)
    expect(new Set(after).size).toBe(after.length)
  } finally {
    await twin.end('SIGKILL')
    await rm(folder, { recursive: true, force: true })
  }
})

async function sinks(address: string, privateKey: string): Promise<readonly unknown[]> {
  const token = await makeAccessToken({
    ...{ kind: 'ADMIN', privateKey, instanceIds: [], issuer: 'tests', now: Date.now(), lifetimeMs: HOUR },
  })
  const headers = { authorization: `Bearer ${token}` }
  const response = await fetch(`${address}/edge/api/v1/event-sinks`, { headers })
  return ((await response.json()) as { sinks: readonly unknown[] }).sinks
}
