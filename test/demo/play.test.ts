import { mkdtempSync, rmSync } from 'node:fs'
import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import type { DayRequest } from '../../src/demo/day.ts'
import { Applications } from '../../src/demo/play.ts'

const instanceId = '64d2028c-ae87-4069-a624-66089d957ef9'

let directory: string
let socketPath: string
let server: Server
let seen: { readonly session: string; readonly n: string; readonly body: string }[]
let counts: number[]
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'tallygate-play-'))
  socketPath = join(directory, 'agent.sock')
  seen = []
  counts = []
})
afterEach(async () => {
  server.closeAllConnections()
  await new Promise((resolve) => server.close(resolve))
  rmSync(directory, { recursive: true })
})

type Behaviour = (request: IncomingMessage, response: ServerResponse, attempt: number) => void

/** A scripted agent that records its requests. */
async function agent(behave: Behaviour): Promise<void> {
  const listener: RequestListener = (request, response) => {
    let body = ''
    request.on('data', (chunk: Buffer) => (body += chunk.toString()))
    request.on('end', () => {
      const { 'x-tallygate-session': session, 'x-tallygate-request': n } = request.headers
      seen.push({ session: String(session), n: String(n), body })
      behave(request, response, seen.length)
    })
  }
  server = createServer(listener)
  await new Promise<void>((resolve) => server.listen(socketPath, resolve))
}

function applications(connections: number, patienceMs = 5_000) {
  return new Applications({
    socketPath,
    instanceId,
    connections,
    signal: new AbortController().signal,
    patienceMs,
    onAnswer: (count) => counts.push(count),
  })
}

const request = (count: number, must?: DayRequest['items'][number]['must']): DayRequest => ({
  at: '07:00:00',
  requester: 'laser-1',
  items: [{ item: 'LaserCut', version: '1.0', count, ...(must === undefined ? {} : { must }) }],
})

const allowed =
  '{"requestedItems":[{"status":{"code":"1001"},"totalTokensCharged":1.000001,"lineItems":[{"activationId":"A","tokensCharged":1},{"activationId":"B","tokensCharged":0.000001}]}]}'
const denied = '{"requestedItems":[{"status":{"code":"2003"},"totalTokensCharged":0,"lineItems":[]}]}'

test('keeps exactly what the applications received, in the order of the requests', async () => {
  await agent((_request, response, attempt) => response.end(attempt === 1 ? allowed : denied))
  using apps = applications(1)
  const answered = await apps.play([request(1), request(2, 'DENIED_BY_RULE')])
  expect(answered).toEqual([
    {
      request: request(1),
      repeats: 0,
      items: [
        {
          outcome: 'GRANTED',
          must: undefined,
          charges: [
            { lineItemId: 'A', micro: 1_000_000n },
            { lineItemId: 'B', micro: 1n },
          ],
        },
      ],
    },
    {
      request: request(2, 'DENIED_BY_RULE'),
      repeats: 0,
      items: [{ outcome: 'DENIED_BY_RULE', must: 'DENIED_BY_RULE', charges: [] }],
    },
  ])
  expect(counts).toEqual([1, 2])
  expect(JSON.parse(seen[0]!.body)).toEqual({
    requester: {
      type: 'device',
      value: 'laser-1',
      dictionary: { role: 'machine', area: 'hall', department: 'production' },
    },
    requestedItems: [{ item: 'LaserCut', version: '1.0', count: 1 }],
  })
})

test('a request whose answer got lost is sent again under its number, the next one under the next', async () => {
  await agent((incoming, response, attempt) => {
    if (attempt === 1) incoming.socket.destroy()
    else if (attempt === 2) response.writeHead(503).end('{"code":"STOPPING","message":"Stopping."}')
    else response.end(allowed)
  })
  using apps = applications(1)
  const answered = await apps.play([request(1), request(2)])
  expect(answered.map(({ repeats }) => repeats)).toEqual([2, 0])
  expect(seen.map(({ n }) => n)).toEqual(['1', '1', '1', '2'])
  expect(new Set(seen.map(({ session }) => session)).size).toBe(1)
})

test('uses one application session for each connection, and keeps counting in the next phase', async () => {
  await agent((_request, response) => response.end(allowed))
  using apps = applications(3)
  await apps.play([1, 2, 3, 4, 5, 6].map((count) => request(count)))
  await apps.play([1, 2, 3].map((count) => request(count)))
  const numbers = Map.groupBy(seen, ({ session }) => session)
  expect(numbers.size).toBe(3)
  for (const own of numbers.values()) expect(own.map(({ n }) => n)).toEqual(own.map((_, index) => String(index + 1)))
})

test.each([
  [
    'a refusal that may not be repeated',
    '{"code":"IDEMPOTENCY_CONFLICT","message":"No."}',
    409,
    'IDEMPOTENCY_CONFLICT',
  ],
  ['an answer without the asked items', '{"requestedItems":[]}', 200, 'ANSWER_UNEXPECTED'],
  ['parts that do not add up', allowed.replace('1.000001', '1'), 200, 'ANSWER_UNEXPECTED'],
])('%s ends the play', async (_what, text, status, code) => {
  await agent((_request, response) => response.writeHead(status).end(text))
  using apps = applications(1)
  await expect(apps.play([request(1)])).rejects.toMatchObject({ code })
})

test('patience with an agent that does not come back has an end', async () => {
  await agent((incoming) => incoming.socket.destroy())
  using apps = applications(1, 50)
  await expect(apps.play([request(1)])).rejects.toMatchObject({ code: 'AGENT_UNREACHABLE' })
})
