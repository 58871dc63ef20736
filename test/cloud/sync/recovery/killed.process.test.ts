// A cloud that is killed while it sells: it knows what it has sold, begins no recovery, and sells the rest.
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { makeAccessToken } from '../../../../src/client/access-token.ts'
import { pick, text } from '../../harness.ts'
import { TwinProcess } from '../../twin-process.ts'

it('sells a quantity once over any number of kills', { timeout: 120_000 }, async () => {
  const directory = await mkdtemp(join(tmpdir(), 'tallygate-killed-'))
  onTestFinished(() => rm(directory, { recursive: true, force: true }))
  const start = (): Promise<TwinProcess> => TwinProcess.start(['--store-path', directory])
  let twin = await start()
  onTestFinished(() => twin[Symbol.asyncDispose]())
  const token = await makeAccessToken({
    kind: 'ADMIN',
    privateKey: await readFile(join(directory, 'administration-key.pem'), 'utf8'),
    instanceIds: [],
    issuer: 'tests',
    now: Date.now(),
    lifetimeMs: 3_600_000,
  })
  const call = async (method: string, path: string, body?: unknown): Promise<unknown> => {
    const response = await fetch(`${twin.address}${path}`, {
      method,
      headers: { authorization: `Bearer ${token}`, connection: 'close', 'content-type': 'application/json' },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    })
    const said = await response.text()
    return said === '' ? undefined : (JSON.parse(said) as unknown)
  }
  const provisioning = '/provisioning/api/v1.1'
  const made = await call('POST', `${provisioning}/instances`, { shortName: 'killed', accountId: 'customer' })
  const instance = text(made, 'id')
  const now = Date.now()
  const items = [{ name: 'Print', rate: 1 }]
  await call('POST', `${provisioning}/rate-tables`, { effectiveFrom: now - 1_000, version: '1', items })
  await call('PUT', `${provisioning}/instances/${instance}/line-items`, {
    activationId: 'ACT-1',
    state: 'DEPLOYED',
    quantity: 400,
    start: now - 1_000,
    end: now + 3_600_000,
    attributes: { elastic: true },
  })

  let told = 0
  /** Until it is refused, or gets no answer. */
  const client = async (): Promise<string> => {
    for (;;) {
      const answer = await call('POST', `/elastic/api/v1.1/instances/${instance}/access-request`, {
        requester: { type: 'user', value: 'LisaBarry' },
        requestedItems: [{ item: 'Print', count: 1 }],
      }).catch(() => undefined)
      const code = pick(answer, 'requestedItems', 0, 'status', 'code')
      if (code !== '1001') return String(code)
      told += 1
    }
  }
  for (let kills = 1; kills <= 4; kills += 1) {
    const clients = Promise.all(Array.from({ length: 4 }, client))
    while (told < 60 * kills) await new Promise((resolve) => setImmediate(resolve))
    await twin.end('SIGKILL')
    await clients
    twin = await start()
    expect(await call('GET', `/edge/api/v1/instances/${instance}/recovery`)).toMatchObject({
      since: null,
      accounts: [],
    })
  }
  expect(await Promise.all(Array.from({ length: 4 }, client))).toEqual(['2002', '2002', '2002', '2002'])
  expect(twin.complaints).toEqual([])
  // There may be more than was sent: what the killed ones had no time to answer.
  expect(told).toBeLessThanOrEqual(400)
  expect(told).toBeGreaterThanOrEqual(400 - 4 * 4)
})
