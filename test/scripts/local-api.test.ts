// The OpenAPI document of the socket against the socket: its paths lead somewhere, and responses are as it says.
import { randomUUID } from 'node:crypto'
import { expect, it, onTestFinished } from 'vitest'
import { localDocument, localOperations } from '../../scripts/local-api.ts'
import { route } from '../../src/agent/platform/socket/parse-request.ts'
import { HttpClient } from '../../src/client/http.ts'
import { errorBody } from '../../src/protocol/errors.ts'
import { INSTANCE } from '../agent/sync/fake-cloud.ts'
import { Application, Site } from '../scenarios/agent/site.ts'

const UUID = randomUUID()

const targetOf = (path: string, ids: Readonly<Record<string, string>> = {}): string =>
  path.replaceAll(/\{(\w+)\}/g, (_, name: string) => ids[name] ?? UUID)

it('names every operation of the socket', () => {
  const served = localOperations.map(({ method, paths: [path = ''] }) => route(method, targetOf(path)))
  expect(served.map(({ to }) => to)).not.toContain('refusal')
  const kinds = served.map((each) => (each.to === 'session' ? `session ${each.operation}` : each.to))
  const sessions = ['open', 'list', 'show', 'request', 'heartbeat', 'close'].map((operation) => `session ${operation}`)
  expect(kinds.toSorted()).toEqual(
    ['access', 'decision', 'live', 'log', 'offers', 'rotate-key', 'status', ...sessions].toSorted(),
  )
})

it('names the refusals of a device that is locked or for which an operator provides keys, and no limit where none applies', () => {
  const codesOf = (id: string) => localOperations.find((each) => each.id === id)?.codes
  expect(codesOf('getheartbeat')).toContain('DEVICE_LOCKED')
  expect(codesOf('rotatekey')).toEqual(expect.arrayContaining(['DEVICE_KEY_PROVIDED', 'STATE_UNWRITABLE']))
  expect(codesOf('closesession')).not.toContain('CALLER_LIMITED')
})

it('declares the headers of refusals', () => {
  const declared: unknown = expect.anything()
  expect(localDocument('')).toMatchObject({
    components: {
      responses: {
        METHOD_NOT_ALLOWED: { headers: { Allow: declared } },
        ServiceUnavailable: { headers: { 'Retry-After': declared } },
        TooManyRequests: { headers: { 'Retry-After': declared } },
      },
    },
  })
})

it('describes the responses that the socket gives', async () => {
  const site = await Site.make()
  await new Application(await site.start()).until(({ accounts }) => accounts.some(({ granted }) => granted > 0n))
  const client = new HttpClient({ address: `unix:${site.socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
  onTestFinished(() => client[Symbol.dispose]())

  const seen: string[] = []
  const call = async (id: string, ids: Readonly<Record<string, string>> = {}, body?: unknown): Promise<unknown> => {
    const operation = localOperations.find((each) => each.id === id)
    if (operation === undefined) throw new Error(`no operation ${id}`)
    const { method, paths, answers, codes } = operation
    const numbered = method === 'GET' ? {} : { 'x-tallygate-session': randomUUID(), 'x-tallygate-request': '1' }
    const answer = await client.call({ method, path: targetOf(paths[0] ?? '', ids), body, headers: numbered })
    seen.push(`${id} ${answer.status}`)
    const form = answers[answer.status]
    if (form === undefined) {
      expect(codes).toContain(errorBody.parse(JSON.parse(answer.text)).code)
      return undefined
    }
    const own = Object.keys(answer.headers).filter((name) => name.startsWith('x-tallygate-'))
    expect(Object.keys(form.headers ?? {})).toEqual(expect.arrayContaining(own))
    return form.body?.parse(JSON.parse(answer.text))
  }
  const requester = { type: 'user', value: 'anna' }
  const cut = (count: number, version?: string) => ({
    requester,
    requestedItems: [{ item: 'print', count, ...(version === undefined ? {} : { version }) }],
  })

  await call('listoffers')
  await call('postaccessrequest', { instanceId: INSTANCE }, cut(1))
  await call('postaccessrequest', { instanceId: INSTANCE }, cut(1, '9'))
  await call('postaccessrequest', {}, cut(1))
  const opened = (await call('createsession', {}, { instanceId: INSTANCE })) as { readonly sessionId: string }
  await call('putsessionaccessrequest', opened, { ...cut(1), rollbackOnDeny: true })
  await call('putsessionaccessrequest', opened, { ...cut(1, '9'), rollbackOnDeny: true })
  for (const id of ['getallsessionsforinstance', 'getsession', 'getheartbeat', 'closesession', 'getheartbeat']) {
    await call(id, opened)
  }
  for (const id of ['getstatus', 'getdecision', 'getlog', 'rotatekey', 'getlive']) await call(id)
  expect(seen).toEqual([
    'listoffers 200',
    'postaccessrequest 200',
    'postaccessrequest 200',
    'postaccessrequest 404',
    'createsession 200',
    'putsessionaccessrequest 200',
    'putsessionaccessrequest 403',
    'getallsessionsforinstance 200',
    'getsession 200',
    'getheartbeat 204',
    'closesession 204',
    'getheartbeat 409',
    'getstatus 200',
    'getdecision 404',
    'getlog 200',
    'rotatekey 200',
    'getlive 200',
  ])
})

it('says when the next heartbeat is due, unless none is needed', async () => {
  const site = await Site.make()
  await new Application(await site.start()).until(({ accounts }) => accounts.some(({ granted }) => granted > 0n))
  using client = new HttpClient({ address: `unix:${site.socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
  const heartbeatOf = async (method: 'GET' | 'POST' | 'PUT', path: string, body?: unknown, headers = {}) => {
    const answer = await client.call({ method, path, body, headers })
    return { due: answer.headers['x-tallygate-heartbeat-ms'], text: answer.text }
  }
  const open = { instanceId: INSTANCE }
  const { due, text } = await heartbeatOf('POST', '/v1.1/sessions', open)
  const { sessionId } = JSON.parse(text) as { sessionId: string }
  const requested = { requester: { type: 'user', value: 'anna' }, rollbackOnDeny: true, requestedItems: [] }
  const halted = await heartbeatOf('PUT', `/v1.1/sessions/${sessionId}`, requested)
  const beaten = await heartbeatOf('GET', `/v1.1/sessions/${sessionId}/heartbeat`)
  expect([due, halted.due, beaten.due]).toEqual(['1800000', '1800000', '1800000'])
  const bound = await heartbeatOf('POST', '/v1.1/sessions', open, { 'x-tallygate-bound': 'connection' })
  expect(bound.due).toBeUndefined()
})
