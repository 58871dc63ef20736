// Commands whose rules another administrator changes between their reads and their change.
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { type Twin, openTwin, pick } from '../cloud/harness.ts'
import { type Ran, administering, tallygate } from './outside.ts'

const SITE = `instances:
  - shortName: Workshop
    accountId: me
    conditions:
      - { name: design, operator: IN, property: department, values: [design] }
    lineItems:
      - activationId: A
        quantity: 5
        actions:
          - { action: DENY, name: mine }
      - activationId: B
        quantity: 5
`

let [twin, site, rules]: [Twin, string, string] = [undefined as never, SITE, '']
let [address, close] = ['', async (): Promise<void> => undefined]
/** What the other administrator does before the next change arrives. */
let meanwhile: (() => Promise<unknown>) | undefined

/** Carries requests to the cloud. */
async function openNetwork(): Promise<void> {
  const server = createServer((request, response) => {
    void (async () => {
      const pieces: Buffer[] = []
      for await (const piece of request) pieces.push(piece as Buffer)
      if (request.method !== 'GET') {
        const work = meanwhile
        meanwhile = undefined
        await work?.()
      }
      const { host: _, connection: _c, ...headers } = request.headers as Record<string, string>
      const body = pieces.length === 0 ? {} : { body: Buffer.concat(pieces) }
      const url = `${new URL(twin.cloud.address).origin}${request.url}`
      const answer = await fetch(url, { method: request.method ?? '', headers, ...body })
      const etag = answer.headers.get('etag')
      if (etag !== null) response.setHeader('etag', etag)
      response.statusCode = answer.status
      response.end(Buffer.from(await answer.arrayBuffer()))
    })()
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  address = `http://127.0.0.1:${(server.address() as AddressInfo).port}${new URL(twin.cloud.address).pathname}`
  close = async () => {
    server.closeAllConnections()
    await new Promise((resolve) => server.close(resolve))
  }
}

beforeEach(async () => {
  twin = await openTwin()
  site = SITE
  await openNetwork()
  expect(await mine('apply', '-f', 'site.yaml')).toMatchObject({ code: 0 })
})
afterEach(async () => {
  await close()
  await twin[Symbol.asyncDispose]()
})

const world = () =>
  administering(twin, (path) => (path === 'site.yaml' ? site : path === 'rules.yaml' ? rules : undefined))
const other = async (...args: readonly string[]): Promise<Ran> => tallygate(args, world())
const mine = async (...args: readonly string[]): Promise<Ran> => {
  const { env, ...rest } = world()
  return tallygate(args, { ...rest, env: { ...env, TALLYGATE_URL: address } })
}
const shown = async (...args: readonly string[]): Promise<unknown> =>
  JSON.parse((await other(...args, '--json')).out) as unknown

it('keeps the fields that the other has changed', async () => {
  meanwhile = async () => other('line-items', 'set', 'A', '--quantity', '7')
  expect(await mine('line-items', 'set', 'A', '--reset', 'DAILY')).toMatchObject({ code: 0, err: '' })
  expect(await shown('line-items', 'show', 'A')).toMatchObject({ quantity: 7, attributes: { resetFrequency: 'DAILY' } })
})

it('keeps the id and so the use of an action that the other has created', async () => {
  rules = 'actions: [{ action: ALLOW, condition: design, allocation: 50 }]'
  meanwhile = async () => other('rules', 'set', 'A', '-f', 'rules.yaml')
  expect(await mine('rules', 'set', 'A', '-f', 'rules.yaml')).toMatchObject({ out: 'list of actions A: unchanged\n' })
  rules = 'actions: [{ action: ALLOW, condition: design, allocation: 50 }, { action: DENY }]'
  const before = pick(await shown('rules', 'show', 'A'), 'actions', 0, 'id')
  meanwhile = async () => other('rules', 'set', 'B', '-f', 'rules.yaml')
  expect(await mine('rules', 'set', 'A', '-f', 'rules.yaml')).toMatchObject({ out: 'list of actions A: changed\n' })
  expect(pick(await shown('rules', 'show', 'A'), 'actions', 0, 'id')).toBe(before)
})

it('creates no second condition of a name', async () => {
  const set = ['conditions', 'set', 'sales', '--property', 'department', '--values', 'sales']
  meanwhile = async () => other(...set)
  expect(await mine(...set)).toMatchObject({ code: 0, out: 'condition sales: unchanged\n' })
  expect((await other('conditions', 'list', '--json')).out.trim().split('\n')).toHaveLength(2)
})

it('refuses a file that names one object twice: the second would overwrite the first', async () => {
  rules =
    '- { name: sales, property: department, values: [sales] }\n- { name: sales, property: department, values: [cad] }'
  const { code, err } = await mine('conditions', 'set', '-f', 'rules.yaml')
  expect([code, err]).toEqual([
    65,
    expect.stringContaining('FILE_INVALID: rules.yaml:2: [1]: the same condition as at rules.yaml:1'),
  ])
  expect((await other('conditions', 'list', '--json')).out.trim().split('\n')).toHaveLength(1)
})

it('applies a file with a new instance once, if the other applies it too', async () => {
  site = SITE.replace('Workshop', 'Garage')
  meanwhile = async () => other('apply', '-f', 'site.yaml')
  expect(await mine('apply', '-f', 'site.yaml')).toMatchObject({ code: 0, err: '' })
  const conditions = await other('conditions', 'list', '--instance', 'Garage', '--json')
  expect(conditions.out.trim().split('\n')).toHaveLength(1)
})

it('shows what an apply overwrites, and leaves what it does not name', async () => {
  site = SITE.replace('values: [design]', 'values: [cad]').replace('name: mine', 'name: ours')
  rules = 'actions: [{ action: DENY, name: theirs }]'
  meanwhile = async () => {
    await other('rules', 'set', 'A', '-f', 'rules.yaml')
    await other('line-items', 'set', 'B', '--reset', 'DAILY')
  }
  const { code, out } = await mine('apply', '-f', 'site.yaml')
  expect({ code, lines: out.split('\n') }).toEqual({
    code: 0,
    lines: [
      '~ condition design of Workshop',
      '    values: ["design"] -> ["cad"]',
      '~ list of actions A of Workshop',
      '    actions: [{"name":"theirs","action":"DENY"}] -> [{"action":"DENY","name":"ours"}]',
      '0 created, 2 changed, 3 unchanged.',
      '',
    ],
  })
  expect(await shown('line-items', 'show', 'B')).toMatchObject({ attributes: { resetFrequency: 'DAILY' } })
})

it('deletes what it has read again', async () => {
  meanwhile = async () => other('conditions', 'delete', 'design', '--yes')
  expect((await mine('conditions', 'delete', 'design', '--yes')).err).toContain(
    'NOT_FOUND: There is no condition design.',
  )
})

it('gives up against an administrator who changes the rules all the time', async () => {
  let count = 0
  const again = async (): Promise<void> => {
    count += 1
    await other('line-items', 'set', 'B', '--quantity', String(count + 10))
    meanwhile = again
  }
  meanwhile = again
  const { code, err } = await mine('line-items', 'set', 'A', '--quantity', '7')
  expect([code, count]).toEqual([1, 20])
  expect(err).toContain('RULES_CHANGED: The rules of the instance have changed')
})
