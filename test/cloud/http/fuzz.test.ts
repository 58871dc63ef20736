// Every route is asked for everything: requests made from the API's own documents, right, almost right and hostile. No
// answer is a server error, each is one that its operation declares, and afterwards the books add up. FUZZ_RUNS sets how
// many; the seed and the path of a failure are in its message.
import { Agent, request } from 'node:http'
import { text as readAll } from 'node:stream/consumers'
import fc from '../../support/fast-check.ts'
import { describe, expect, it } from 'vitest'
import { parseAccount } from '../../../src/core/accounts/account.ts'
import { accountLedger } from '../../../src/protocol/edge/administration.ts'
import { generatedPages } from '../../../scripts/docs.ts'
import { EdgeClient } from '../devices/edge-client.ts'
import { DAY, HOUR, START, type Twin, openTwin, text } from '../harness.ts'
import { type Hostile, type Token, type Vocabulary, requests } from './fuzz.requests.ts'

const RUNS = Number(process.env['FUZZ_RUNS'] ?? 700)
const ANSWER_MS_MAX = 10_000

const documents = [...(await generatedPages())]
  .filter(([path]) => path.startsWith('docs/reference/openapi/'))
  .map(([, content]) => JSON.parse(content) as unknown)

/** Something of each kind, so that requests find what they name. */
async function furnish(twin: Twin): Promise<{ instances: string[]; words: Vocabulary; device: EdgeClient }> {
  const instances = [await twin.instance(), await twin.instance('another')]
  const [instance = ''] = instances
  await twin.rates({ Print: 3, Scan: 0.5 })
  for (const id of ['ACT-1', 'ACT-2']) await twin.lineItem(instance, { activationId: id, quantity: 1_000 })
  const conditions = await twin.call('POST', `/api/v1.1/instances/${instance}/conditions`, {
    body: [{ operator: 'IN', property: 'department', values: ['x', 'y'] }],
  })
  const conditionId = text(conditions.body, 0, 'id')
  const actions = await twin.call('POST', `/api/v1.1/instances/${instance}/line-items/ACT-2/actions`, {
    body: [{ action: 'ALLOW', conditionId, allocation: 500 }, { action: 'ALLOW' }],
  })
  const sessions: string[] = []
  for (let made = 0; made < 3; made += 1) {
    const { body } = await twin.call('POST', '/api/v1.1/sessions', { body: { instanceId: instance } })
    sessions.push(text(body, 'sessionId'))
  }
  await twin.access(instance, { Print: 10 })
  const device = await EdgeClient.join(twin, instance)
  const words = ['ACT-1', 'ACT-2', 'Print', 'Scan', 'x', 'department', 'user', '1', '', '__proto__', 'PT1H', 'true']
  const stranger = '00000000-0000-4000-8000-000000000000'
  const uuids = [
    ...instances,
    instance,
    instance,
    conditionId,
    text(actions.body, 0, 'id'),
    ...sessions,
    device.id,
    stranger,
  ]
  return { instances, words: { uuids, words }, device }
}

interface Said {
  readonly status: number
  readonly body: string
}

async function send(twin: Twin, agent: Agent, hostile: Hostile, token: string | null): Promise<Said | 'ENDED'> {
  const { hostname, port } = new URL(twin.cloud.address)
  const { promise, resolve, reject } = Promise.withResolvers<Said | 'ENDED'>()
  const length = hostile.body?.length ?? 0
  const sent = request(
    {
      hostname,
      port,
      agent,
      method: hostile.method,
      path: hostile.path,
      timeout: ANSWER_MS_MAX,
      headers: {
        ...hostile.headers,
        ...(token === null ? {} : { authorization: `Bearer ${token}` }),
        ...(hostile.body === null ? {} : { 'content-length': length }),
      },
    },
    (response) => {
      void readAll(response).then((body) => resolve({ status: response.statusCode ?? 0, body }), reject)
    },
  )
  sent.on('timeout', () => {
    sent.destroy()
    reject(new Error('there was no answer in time'))
  })
  // A connection that is cut, by whichever side, is an end too.
  sent.on('error', () => resolve('ENDED'))
  if (hostile.truncated && hostile.body !== null) {
    sent.write(hostile.body.subarray(0, length - 1), () => sent.destroy())
  } else sent.end(hostile.body ?? undefined)
  return promise
}

/** Charges add up to usage records, and no pool has given more than it has. */
async function audit(twin: Twin, instances: readonly string[]): Promise<void> {
  for (const instance of instances) {
    const { body } = await twin.call('GET', `/edge/api/v1/instances/${instance}/accounts?size=1000`)
    const charged = new Map<string, bigint>()
    for (const account of accountLedger.parse(body).accounts) {
      expect(account.charged >= 0n && account.grantedOut >= 0n, account.account).toBe(true)
      if (account.capInForce !== null) {
        expect(account.charged + account.grantedOut, account.account).toBeLessThanOrEqual(account.capInForce)
      }
      const parsed = parseAccount(account.account)
      if (parsed?.kind !== 'line') continue
      charged.set(parsed.lineItemId, (charged.get(parsed.lineItemId) ?? 0n) + account.charged)
    }
    const recorded = new Map<string, bigint>()
    for (const { activationId, tokens } of await twin.usage(instance)) {
      if (activationId !== null) recorded.set(activationId, (recorded.get(activationId) ?? 0n) + tokens)
    }
    for (const id of new Set([...charged.keys(), ...recorded.keys()])) {
      expect([id, recorded.get(id) ?? 0n]).toEqual([id, charged.get(id) ?? 0n])
    }
  }
}

describe('any input', () => {
  it(
    'is answered as declared, never with a server error, and the books add up',
    async () => {
      await using twin = await openTwin()
      const { instances, words, device } = await furnish(twin)
      const [instance = ''] = instances
      const tokens: Readonly<Record<Token, () => Promise<string | null>>> = {
        admin: () => twin.administrationToken(),
        client: () => twin.clientToken(instance),
        device: () => device.token(),
        none: async () => null,
        garbage: async () => 'e30.e30.AAAA',
      }
      const agent = new Agent({ keepAlive: true, maxSockets: 4 })
      const statuses = new Map<number, number>()
      let count = 0
      await fc.assert(
        fc.asyncProperty(requests(documents, words), async (hostile) => {
          const said = await send(twin, agent, hostile, await tokens[hostile.token]())
          count += 1
          if (count % 100 === 0) await twin.advance(HOUR)
          expect(twin.wrongAnswers.map(({ message }) => message)).toEqual([])
          if (said === 'ENDED') return
          expect(said.status, said.body).toBeLessThan(500)
          statuses.set(said.status, (statuses.get(said.status) ?? 0) + 1)
        }),
        { numRuns: RUNS, endOnFailure: true },
      )
      agent.destroy()
      await audit(twin, instances)
      expect((await twin.usage(instance)).some(({ tokens }) => tokens > 0n)).toBe(true)
      // Else the requests were not ones that anything is done with.
      for (const status of [200, 400, 401, 404]) expect(statuses.get(status) ?? 0, `${status}`).toBeGreaterThan(0)
      expect(twin.now).toBeLessThan(START + 300 * DAY)
    },
    Math.max(60_000, RUNS * 60),
  )
})
