// `tallygate explain` over a real agent with its database: what applications were answered is what comes out again.
import { ENGINE } from '../../src/core/engine.ts'
import { join } from 'node:path'
import fc from '../support/fast-check.ts'
import { beforeEach, expect, onTestFinished, test } from 'vitest'
import { HttpClient } from '../../src/client/http.ts'
import { Application, ACCOUNT, Site } from '../scenarios/agent/site.ts'
import { INSTANCE } from '../agent/sync/fake-cloud.ts'
import { policyWith } from '../agent/sync/policies.ts'
import type { PolicyDocumentWire } from '../../src/protocol/edge/policy-document.ts'
import { tallygate } from './outside.ts'

const DAY = 86_400_000
const CONDITION = '8f14e45f-ceea-467f-a0e1-0c7a9b3c4d5e'
const ALLOW = '6b0f3f7e-30a5-4d2f-8d2f-1f1a3c4b5d6e'

let site: Site
beforeEach(async () => {
  site = await Site.make()
})

/** Printing costs more with each revision; scanning has a formula; only the lab may copy. */
function rulesOf(revision: number): Omit<PolicyDocumentWire, 'trustedKeys'> {
  const [line] = policyWith(1).lineItems
  const around = { startsAt: Date.now() - DAY, endsAt: Date.now() + DAY }
  const lab = {
    id: CONDITION,
    name: 'lab',
    condition: { operator: 'IN', property: 'department', values: ['lab'] },
  } as const
  return policyWith(revision, {
    issuedAt: Date.now(),
    lineItems: [
      { ...line!, ...around },
      {
        ...{ ...line!, ...around, id: 'line-2', rateTableSeries: 'copy' },
        actions: [{ id: ALLOW, name: 'the lab', conditionId: CONDITION, effect: 'ALLOW', allocation: null }],
      },
    ],
    conditions: [lab],
    rateTables: [
      {
        ...{ series: '', version: '1', effectiveFrom: 1 },
        items: [
          { name: 'print', version: '', rate: `${revision}.5` },
          { name: 'scan', version: '2', formula: 'pages / 3' },
        ],
      },
      { series: 'copy', version: '1', effectiveFrom: 1, items: [{ name: 'copy', version: '', rate: '2' }] },
    ],
  })
}

const item = fc.record(
  {
    item: fc.constantFrom('print', 'scan', 'copy', 'fax'),
    version: fc.constantFrom('2', ''),
    count: fc.constantFrom(1, 2.5, 40, 0.000001, 900),
    variables: fc.dictionary(fc.constantFrom('pages', 'size'), fc.integer({ min: 0, max: 9 })),
    metaData: fc.dictionary(fc.constantFrom('job', 'correlationId'), fc.string()),
  },
  { requiredKeys: ['item', 'count'] },
)
const request = fc.record({
  requester: fc.record(
    {
      type: fc.constantFrom('user', 'Maschine ü'),
      value: fc.string({ unit: 'binary', maxLength: 8 }).filter((text) => text.isWellFormed() && !/\p{C}/u.test(text)),
      dictionary: fc.dictionary(
        fc.constantFrom('department', 'x'),
        fc.constantFrom<unknown>('lab', 'hall', ['lab'], 1, {}),
      ),
    },
    { requiredKeys: ['type', 'value'] },
  ),
  requestedItems: fc.array(item, { minLength: 1, maxLength: 3 }),
})

function clientOf(path: string): HttpClient {
  const client = new HttpClient({ address: `unix:${path}`, unreachable: 'AGENT_UNREACHABLE' })
  onTestFinished(() => client[Symbol.dispose]())
  return client
}

interface Explained {
  readonly answer: string | null
  readonly kind: string
  readonly policyRevision: number
  readonly replay: { readonly result: string; readonly says: string }
  readonly session: unknown
}

async function explained(id: string, ...args: readonly string[]): Promise<Explained> {
  const { code, out, err } = await tallygate(['explain', id, '--json', ...args])
  if (code !== 0) throw new Error(err)
  return JSON.parse(out) as Explained
}

const correlationIdOf = (text: string): string => (JSON.parse(text) as { correlationId: string }).correlationId

test(
  'random requests, one-off and in sessions, by two revisions of the rules, online and from the database',
  { timeout: 120_000 },
  async () => {
    await site.cloud.publish(rulesOf(2))
    const agent = await site.start()
    const application = new Application(agent)
    await application.until(({ accounts }) => accounts.some(({ account }) => account === ACCOUNT))
    const client = clientOf(agent.socketPath)
    const answers = new Map<string, { readonly text: string; readonly revision: number }>()
    const ask = async (bodies: readonly unknown[], revision: number): Promise<void> => {
      for (const body of bodies) {
        const { status, text } = await client.call({
          method: 'POST',
          path: `/v1.1/instances/${INSTANCE}/access-request`,
          body,
        })
        expect(status).toBe(200)
        answers.set(correlationIdOf(text), { text, revision })
      }
      const opened = await client.call({ method: 'POST', path: '/v1.1/sessions', body: { instanceId: INSTANCE } })
      const { sessionId } = JSON.parse(opened.text) as { sessionId: string }
      for (const body of [...bodies.slice(0, 6), { ...(bodies[0] as object), requestedItems: [] }]) {
        const asked = { ...(body as object), rollbackOnDeny: true }
        const { text } = await client.call({ method: 'PUT', path: `/v1.1/sessions/${sessionId}`, body: asked })
        answers.set(correlationIdOf(text), { text, revision })
      }
    }
    await ask(fc.sample(request, { numRuns: 25, seed: 1 }), 2)
    await site.cloud.publish(rulesOf(3))
    agent.link.wake('notification')
    await application.until(({ policies }) => policies[0]?.applied === 3)
    await ask(fc.sample(request, { numRuns: 25, seed: 2 }), 3)

    const check = async (...args: readonly string[]): Promise<void> => {
      for (const [id, { text, revision }] of answers) {
        const { answer, replay, policyRevision, kind } = await explained(id, ...args)
        // An empty request puts a session to rest: no rules are asked.
        if (kind === 'change') continue
        expect({ answer, replay: replay.result, policyRevision }).toEqual({
          answer: text,
          replay: 'same',
          policyRevision: revision,
        })
      }
    }
    expect(answers.size).toBe(64)
    await check('--socket', agent.socketPath)
    await agent.stop()
    const some = [...answers].slice(20, 34)
    answers.clear()
    for (const [id, each] of some) answers.set(id, each)
    await check('--db', join(site.stateDirectory, 'journal.db'))
  },
)

test.each(['durable', 'write-behind'])('what was answered a moment ago is known, %s', async (durability) => {
  await site.cloud.publish(rulesOf(2))
  const agent = await site.start({ durability, 'write-behind-directory': join(site.stateDirectory, 'run') })
  await new Application(agent).until(({ accounts }) => accounts.some(({ account }) => account === ACCOUNT))
  const client = clientOf(agent.socketPath)
  for (const item of ['print', 'copy', 'print', 'copy']) {
    const body = { requester: { type: 'user', value: 'ada' }, requestedItems: [{ item, count: 1 }] }
    const { text } = await client.call({ method: 'POST', path: `/v1.1/instances/${INSTANCE}/access-request`, body })
    const path = `/tallygate/v1/decisions/${correlationIdOf(text)}`
    expect(await client.call({ method: 'GET', path })).toMatchObject({ status: 200 })
  }
})

test('a person reads the checks, and the first that failed', async () => {
  await site.cloud.publish(rulesOf(2))
  const agent = await site.start()
  await Application.ready(agent)
  const client = clientOf(agent.socketPath)
  const body = {
    requester: { type: 'user', value: 'ada', dictionary: { department: 'hall' } },
    requestedItems: [{ item: 'copy', count: 1 }],
  }
  const { text } = await client.call({ method: 'POST', path: `/v1.1/instances/${INSTANCE}/access-request`, body })
  const { code, out } = await tallygate(['explain', correlationIdOf(text).toUpperCase(), '--socket', agent.socketPath])
  expect(code).toBe(0)
  expect(out).toMatch(new RegExp(`^rules +revision 2 of instance Workshop \\(${INSTANCE}\\)$`, 'm'))
  expect(out).toContain('1 of copy: DENIED_BY_RULE, 0 tokens\n')
  expect(out).toContain(
    '  NO  the actions of such a line item allow the requester (DENIED_BY_RULE)\n        line-2: NO_RULE_MATCHES\n',
  )
  expect(out).toContain('  -   the pools of those line items have enough tokens\n')
  expect(out).toContain('Dictionary of the requester: {"department":"hall"}\n')
  expect(out).toMatch(/Replay: same\./)
})

test('a request that was turned away is explained by the id in its header, and an unknown id says what to do', async () => {
  const agent = await site.start()
  const client = clientOf(agent.socketPath)
  await Application.ready(agent)
  const other = '00000000-0000-4000-8000-000000000000'
  const { headers } = await refusedBy(agent.socketPath, `/v1.1/instances/${other}/access-request`)
  const id = headers['x-tallygate-correlation-id'] as string
  const { out } = await tallygate(['explain', id, '--socket', agent.socketPath])
  expect(out).toContain('refusal  ')
  expect(out).toContain('  NO  the device has the instance or session that the request names (NOT_FOUND)\n')
  expect(out).toContain(`POST v1.1 access-request of ${other}`)
  expect(out).toMatch(/called by uid:\d+/)

  const unknown = await tallygate(['explain', other, '--socket', agent.socketPath])
  expect(unknown).toMatchObject({ code: 66, out: '' })
  expect(unknown.err).toMatch(/^tallygate: DECISION_UNKNOWN: .*Check the id /)
  expect(await client.call({ method: 'GET', path: '/tallygate/v1/decisions/none' })).toMatchObject({ status: 400 })
  for (const args of [['x'], [other, '--db', 'a', '--socket', 'b'], []]) {
    expect(await tallygate(['explain', ...args])).toMatchObject({ code: 64 })
  }
  expect(await tallygate(['explain', other, '--db', '/nowhere/journal.db'])).toMatchObject({ code: 66 })
})

test('does not compare a decision of an earlier engine, and exits with a separate code', async () => {
  site.engine = { version: ENGINE.version + 1, oldest: 1 }
  const agent = await site.start()
  const application = await Application.ready(agent)
  const { correlationId } = await application.ask(1)
  const { code, out, err } = await tallygate(['explain', correlationId, '--socket', agent.socketPath])
  const says = `Decided by engine ${ENGINE.version + 1}, this is engine ${ENGINE.version}: the decision is not compared.`
  expect(out).toContain(`Replay: other-engine. ${says}\n`)
  expect(out).toContain('1 of print: GRANTED, 1 tokens\n')
  expect(code).toBe(69)
  expect(err).toMatch(/^tallygate: ENGINE_DIFFERS: This is normal after an upgrade\. /)
})

test('with explain.decisions 0 no inputs are kept, and that is said', async () => {
  const agent = await site.start({ 'explain-decisions': '0' })
  const application = await Application.ready(agent)
  const { correlationId } = await application.ask(1)
  const { replay, answer } = await explained(correlationId, '--socket', agent.socketPath)
  expect({ result: replay.result, answer }).toEqual({ result: 'impossible', answer: null })
})

/** Answer with headers, which the client does not show. */
async function refusedBy(socketPath: string, path: string): Promise<{ readonly headers: Record<string, unknown> }> {
  const { request: send } = await import('node:http')
  return new Promise((resolve, reject) => {
    const headers = { 'content-type': 'application/json' }
    const sending = send({ socketPath, path, method: 'POST', headers }, (response) => {
      response.resume().on('end', () => resolve({ headers: response.headers }))
    })
    sending.on('error', reject)
    sending.end(
      JSON.stringify({ requester: { type: 'user', value: 'x' }, requestedItems: [{ item: 'print', count: 1 }] }),
    )
  })
}
