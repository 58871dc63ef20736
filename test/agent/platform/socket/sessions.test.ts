// Sessions over the agent's socket, as an application that was written for the service sees them.
import { spawn } from 'node:child_process'
import { chmodSync } from 'node:fs'
import { once } from 'node:events'
import { request } from 'node:http'
import { connect, createServer } from 'node:net'
import { join } from 'node:path'
import { randomUUID } from 'node:crypto'
import { describe, expect, it, onTestFinished } from 'vitest'
import { connect as connectClient } from '../../../../sdk/node/src/index.ts'
import { HttpClient } from '../../../../src/client/http.ts'
import { accessResponseBody } from '../../../../src/protocol/service/access-request.ts'
import { liveSessions, session } from '../../../../src/protocol/service/sessions.ts'
import { INSTANCE } from '../../sync/fake-cloud.ts'
import { Application, Site } from '../../../scenarios/agent/site.ts'

const MIB = 10n ** 12n

interface Said {
  readonly status: number
  readonly body: unknown
}

class Caller {
  readonly #client: HttpClient

  constructor(socketPath: string) {
    this.#client = new HttpClient({ address: `unix:${socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
    onTestFinished(() => this.end())
  }

  end(): void {
    this.#client[Symbol.dispose]()
  }

  async call(method: 'GET' | 'POST' | 'PUT' | 'DELETE', path: string, body?: unknown, headers = {}): Promise<Said> {
    const { status, text } = await this.#client.call({ method, path, headers, ...(body === undefined ? {} : { body }) })
    return { status, body: text === '' ? undefined : (JSON.parse(text) as unknown) }
  }

  async open(headers = {}): Promise<string> {
    const { status, body } = await this.call('POST', '/api/v1.1/sessions', { instanceId: INSTANCE }, headers)
    expect(status).toBe(200)
    return (body as { sessionId: string }).sessionId
  }

  ask(
    id: string,
    count: number,
    more: { rollbackOnDeny?: boolean; headers?: Record<string, string> } = {},
  ): Promise<Said> {
    const { rollbackOnDeny = true, headers = {} } = more
    const requestedItems = count === 0 ? [] : [{ item: 'print', count }]
    const body = { requester: { type: 'user', value: 'ada' }, rollbackOnDeny, requestedItems }
    return this.call('PUT', `/api/v1.1/sessions/${id}`, body, headers)
  }
}

async function agent(flags: Record<string, string> = {}) {
  const site = await Site.make(MIB)
  const started = await site.start({ 'grants-starting': '1000', ...flags })
  const application = await Application.ready(started)
  return { site, started, caller: new Caller(site.socketPath), application }
}

describe('sessions at the socket', () => {
  it('have the paths, bodies and statuses of the service', async () => {
    const { caller } = await agent()
    const id = await caller.open()
    const path = `/dynamicmonetization/api/v1.1/sessions`
    const listed = await caller.call('GET', `${path}?instanceId=${INSTANCE}`)
    expect(liveSessions.parse(listed.body)).toMatchObject([{ sessionId: id, state: 'IDLE', chargedUntil: 0 }])
    const granted = await caller.ask(id, 3)
    expect(granted.status).toBe(200)
    expect(accessResponseBody.parse(granted.body).requestedItems[0]).toMatchObject({
      status: { code: '1001' },
      totalTokensCharged: 3,
    })
    expect(
      session.parse((await caller.call('GET', `/floating/api/v1.0/sessions/${id.toUpperCase()}`)).body),
    ).toMatchObject({
      state: 'ACTIVE',
      items: [{ item: 'print', count: 3 }],
    })
    const denied = await caller.ask(id, 10_000_000)
    expect([denied.status, accessResponseBody.parse(denied.body).requestedItems[0]?.status.code]).toEqual([403, '2002'])
    expect(await caller.call('GET', `/v1.1/sessions/${id}/heartbeat`)).toEqual({ status: 204, body: undefined })
    expect(await caller.call('DELETE', `${path}/${id}`)).toEqual({ status: 204, body: undefined })
    expect((await caller.call('GET', path)).body).toEqual([])
  })

  it('say in which state they ended, as each version does', async () => {
    const { caller } = await agent()
    const id = await caller.open()
    expect((await caller.ask(id, 10_000_000, { rollbackOnDeny: false })).status).toBe(403)
    const code = 'SESSION_NOT_OPERABLE'
    expect(await caller.call('GET', `/api/v1.1/sessions/${id}/heartbeat`)).toEqual({
      status: 409,
      body: { message: 'Session is TERMINATED', code },
    })
    expect(await caller.call('GET', `/api/v1.0/sessions/${id}/heartbeat`)).toEqual({
      status: 403,
      body: { message: 'Session was terminated', code },
    })
    expect((await caller.call('DELETE', `/api/v1.0/sessions/${id}`)).status).toBe(409)
    expect((await caller.ask(id, 1)).status).toBe(409)
  })

  it('refuse malformed and unknown requests as the service does', async () => {
    const { caller } = await agent()
    const nowhere = randomUUID()
    const statuses = async (...calls: Promise<Said>[]): Promise<number[]> =>
      (await Promise.all(calls)).map(({ status }) => status)
    expect(
      await statuses(
        caller.call('GET', `/api/v1.1/sessions/${nowhere}`),
        caller.call('GET', `/api/v1.1/sessions/x`),
        caller.call('POST', '/api/v1.1/sessions', { instanceId: 'x' }),
        caller.call('POST', '/api/v1.1/sessions', { instanceId: nowhere }),
        caller.call('POST', '/api/v1.1/sessions', { instanceId: INSTANCE, more: 1 }),
        caller.call('PUT', `/api/v1.1/sessions/${nowhere}`, {}),
        caller.ask(nowhere, 1),
        caller.call('GET', '/api/v1.1/sessions?instanceId=x'),
        caller.call('GET', '/api/v1.1/sessions', undefined, { 'x-instance-id': 'x' }),
        caller.call('POST', '/api/v1.1/sessions', { instanceId: INSTANCE }, { 'x-instance-id': nowhere }),
        caller.call('POST', '/api/v1.1/sessions', { instanceId: INSTANCE }, { 'x-tallygate-bound': 'x' }),
        caller.call('POST', `/api/v1.1/sessions/${nowhere}`, {}),
        caller.call('GET', '/api/v2/sessions'),
      ),
    ).toEqual([404, 400, 400, 404, 400, 400, 404, 400, 400, 403, 400, 405, 404])
  })

  it('are listed whichever host the URL of a request names, even an invalid one', async () => {
    const { caller, site } = await agent()
    const id = await caller.open()
    const lines = [
      `GET http://[/v1.1/sessions?instanceId=${INSTANCE} HTTP/1.1`,
      `GET http://device:99999/v1.1/sessions?instanceId=${randomUUID()} HTTP/1.1`,
      'GET http:///v1.1/sessions?instanceId=x HTTP/1.1',
    ]
    const connection = connect(site.socketPath)
    connection.end(lines.map((line) => `${line}\r\nHost: device\r\n\r\n`).join(''))
    let received = ''
    for await (const chunk of connection) received += String(chunk)
    expect(received.match(/HTTP\/1\.1 \d+|\[.*\]|"code":"\w+"/g)).toEqual([
      'HTTP/1.1 200',
      expect.stringContaining(id),
      'HTTP/1.1 200',
      '[]',
      'HTTP/1.1 400',
      '"code":"BAD_REQUEST"',
    ])
  })

  it('check the instance of a request before its body', async () => {
    const { caller } = await agent()
    const id = await caller.open()
    const elsewhere = { 'x-instance-id': randomUUID() }
    expect(await caller.call('PUT', `/api/v1.1/sessions/${id}`, {}, elsewhere)).toMatchObject({
      status: 403,
      body: { code: 'INSTANCE_NOT_IN_TOKEN' },
    })
    expect(await caller.call('PUT', `/api/v1.1/sessions/${id}`, {})).toMatchObject({ body: { code: 'BAD_REQUEST' } })
  })

  it('are as they were after a restart of the agent, also with no way to the cloud', async () => {
    const { site, caller, started } = await agent()
    const [id, ended] = [await caller.open(), await caller.open()]
    await caller.ask(id, 5)
    await caller.call('DELETE', `/api/v1.1/sessions/${ended}`)
    await started.stop()
    site.isOnline = false
    await site.start()
    expect((await caller.call('GET', `/api/v1.1/sessions/${id}`)).body).toMatchObject({
      state: 'ACTIVE',
      items: [{ item: 'print', count: 5 }],
    })
    expect((await caller.call('GET', `/api/v1.1/sessions/${ended}`)).body).toMatchObject({ state: 'TERMINATED' })
    expect((await caller.ask(id, 6)).status).toBe(200)
    await caller.open()
  })

  it('repeat an answer for a request that is sent again under its number', async () => {
    const { caller, application } = await agent()
    const program = randomUUID()
    const headers = (n: number) => ({ 'x-tallygate-session': program, 'x-tallygate-request': String(n) })
    const id = await caller.open(headers(1))
    expect(await caller.open(headers(1))).toBe(id)
    const first = await caller.ask(id, 4, { headers: headers(2) })
    expect(await caller.ask(id, 4, { headers: headers(2) })).toEqual(first)
    const denied = await caller.ask(id, 10_000_000, { headers: headers(3) })
    expect([denied.status, await caller.ask(id, 10_000_000, { headers: headers(3) })]).toEqual([403, denied])
    const close = () => caller.call('DELETE', `/api/v1.1/sessions/${id}`, undefined, headers(4))
    expect([(await close()).status, (await close()).status]).toEqual([204, 204])
    const { accounts } = await application.status()
    expect(Number(accounts[0]?.used ?? 0) / 1e6).toBe(4)
  })
})

describe('a session that is bound to its connection', () => {
  it('ends with its refund when the application that opened it is killed', async () => {
    const { site, caller, application } = await agent()
    const script = `
      const { request } = require('node:http')
      const call = (method, path, body, headers, done) => {
        const text = JSON.stringify(body)
        const asked = request({ socketPath: process.argv[1], agent, method, path, headers: { 'content-type': 'application/json', 'content-length': text.length, ...headers } }, (r) => { let t = ''; r.on('data', (c) => (t += c)); r.on('end', () => done(JSON.parse(t))) })
        asked.end(text)
      }
      const agent = new (require('node:http').Agent)({ keepAlive: true, maxSockets: 1 })
      call('POST', '/api/v1.1/sessions', { instanceId: '${INSTANCE}' }, { 'x-tallygate-bound': 'connection' }, ({ sessionId }) =>
        call('PUT', '/api/v1.1/sessions/' + sessionId, { requester: { type: 'user', value: 'x' }, rollbackOnDeny: true, requestedItems: [{ item: 'print', count: 7 }] }, {}, () => console.log(sessionId)))
      setInterval(() => undefined, 1000)`
    const child = spawn(process.execPath, ['-e', script, site.socketPath], { stdio: ['ignore', 'pipe', 'inherit'] })
    onTestFinished(() => void child.kill('SIGKILL'))
    const [line] = (await once(child.stdout, 'data')) as [Buffer]
    const id = line.toString().trim()
    expect((await caller.call('GET', `/api/v1.1/sessions/${id}`)).body).toMatchObject({ state: 'ACTIVE' })
    child.kill('SIGKILL')
    await expect
      .poll(async () => (await caller.call('GET', `/api/v1.1/sessions/${id}`)).body)
      .toMatchObject({ state: 'TERMINATED' })
    const { accounts } = await application.status()
    expect(Number(accounts[0]?.refunded)).toBeGreaterThan(6_900_000)
  })

  it('differs from the session that the same request opened without the binding', async () => {
    const { caller } = await agent()
    const first = { 'x-tallygate-session': randomUUID(), 'x-tallygate-request': '1' }
    await caller.open(first)
    const bound = { ...first, 'x-tallygate-bound': 'connection' }
    expect(await caller.call('POST', '/api/v1.1/sessions', { instanceId: INSTANCE }, bound)).toMatchObject({
      status: 409,
      body: { code: 'IDEMPOTENCY_CONFLICT' },
    })
  })

  it('is opened again if the connection broke before the application got the first response', async () => {
    const { site } = await agent()
    const path = join(site.directory, 'cut.sock')
    let isCut = false
    const between = createServer((near) => {
      const far = connect(site.socketPath)
      for (const side of [near, far]) side.on('error', () => undefined)
      near.pipe(far)
      far.once('data', (bytes: Buffer) => {
        if (isCut) {
          near.write(bytes)
          far.pipe(near)
          return
        }
        isCut = true
        far.destroy()
        near.destroy()
      })
    })
    await new Promise<void>((resolve) => between.listen(path, resolve))
    onTestFinished(() => void between.close())
    await using session = await connectClient({ socket: path }).openSession({ instanceId: INSTANCE, bound: true })
    expect(isCut).toBe(true)
    expect(await session.state()).toBe('IDLE')
    expect((await session.request({ type: 'user', value: 'ada' }, [{ item: 'print', count: 1 }])).granted).toBe(true)
  })

  it('ends with the first of two connections over which it was opened', async () => {
    const { site, caller } = await agent()
    const key = { 'x-tallygate-session': randomUUID(), 'x-tallygate-request': '1', 'x-tallygate-bound': 'connection' }
    const [first, second] = [new Caller(site.socketPath), new Caller(site.socketPath)]
    const id = await first.open(key)
    expect([await second.open(key), (await caller.ask(id, 2)).status]).toEqual([id, 200])
    second.end()
    await expect
      .poll(async () => (await caller.call('GET', `/api/v1.1/sessions/${id}`)).body)
      .toMatchObject({ state: 'TERMINATED' })
    expect((await first.ask(id, 1)).status).toBe(409)
  })

  it('may be one of many of its connection, which all end with it, and needs a single listener', async () => {
    const { site, caller } = await agent()
    const warnings: string[] = []
    const warned = ({ name }: Error) => void warnings.push(name)
    process.on('warning', warned)
    onTestFinished(() => void process.off('warning', warned))
    const many = new Caller(site.socketPath)
    const ids: string[] = []
    for (let n = 0; n < 12; n += 1) ids.push(await many.open({ 'x-tallygate-bound': 'connection' }))
    await many.call('DELETE', `/api/v1.1/sessions/${ids[0]}`)
    await many.open({ 'x-tallygate-bound': 'connection' })
    expect((await caller.call('GET', '/api/v1.1/sessions')).body).toHaveLength(12)
    many.end()
    await expect.poll(async () => (await caller.call('GET', '/api/v1.1/sessions')).body).toEqual([])
    expect(warnings).not.toContain('MaxListenersExceededWarning')
  })

  it('ends with its connection after a request whose refusal closes that', async () => {
    const { site, caller } = await agent()
    const body = JSON.stringify({ instanceId: INSTANCE })
    const connection = connect(site.socketPath)
    connection.write(
      'POST /api/v1.1/sessions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-Tallygate-Bound: connection\r\n' +
        `Content-Length: ${body.length}\r\n\r\n${body}`,
    )
    const [first] = (await once(connection, 'data')) as [Buffer]
    expect(String(first)).toMatch(/^HTTP\/1.1 200 [^]*\r\nConnection: keep-alive\r\n/)
    connection.write('GET /livez HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\nGET /livez HTTP/1.1\r\nHost: x\r\n\r\n')
    let received = ''
    for await (const chunk of connection) received += String(chunk)
    expect(received.match(/HTTP\/1.1 \d+|Connection: [a-z-]+/g)).toEqual(['HTTP/1.1 400', 'Connection: close'])
    await expect.poll(async () => (await caller.call('GET', '/api/v1.1/sessions')).body).toEqual([])
  })

  it('ends as well when the connection closes before the answer', async () => {
    const { site, caller } = await agent()
    const text = JSON.stringify({ instanceId: INSTANCE })
    const asked = request({
      socketPath: site.socketPath,
      method: 'POST',
      path: '/api/v1.1/sessions',
      headers: { 'content-type': 'application/json', 'content-length': text.length, 'x-tallygate-bound': 'connection' },
    })
    asked.on('error', () => undefined)
    asked.end(text, () => setImmediate(() => asked.destroy()))
    await new Promise((resolve) => asked.once('close', resolve))
    await expect.poll(async () => (await caller.call('GET', '/api/v1.1/sessions')).body).toEqual([])
  })
})

describe('callers at the socket', () => {
  const LOWLY = 65_534

  /** A call made as another user, where this process may become one. */
  async function callAs(
    uid: number,
    site: Site,
    path: string,
    method = 'GET',
    body = '',
    more: Record<string, string> = {},
  ): Promise<string> {
    const script = `
      const asked = require('node:http').request({ socketPath: process.argv[1], path: process.argv[2], method: process.argv[3], headers: { ...JSON.parse(process.argv[5]), ...(process.argv[4] ? { 'content-type': 'application/json', 'content-length': process.argv[4].length } : {}) } }, (r) => { let t = ''; r.on('data', (c) => (t += c)); r.on('end', () => console.log(r.statusCode, t)) })
      asked.end(process.argv[4])`
    const child = spawn(process.execPath, ['-e', script, site.socketPath, path, method, body, JSON.stringify(more)], {
      uid,
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    let said = ''
    child.stdout.on('data', (chunk: Buffer) => (said += chunk.toString()))
    await once(child, 'close')
    return said.trim()
  }

  it.skipIf(process.getuid?.() !== 0)(
    'are let into the rings that name them, and see no sessions but their own',
    async () => {
      const { site, caller } = await agent({
        'socket-mode': '0666',
        'callers-observe': 'uid:0',
        'callers-limits': `uid:${LOWLY} = 5 tokens/h, as user:ada`,
      })
      chmodSync(site.directory, 0o755)
      const id = await caller.open()
      expect(await callAs(LOWLY, site, '/tallygate/v1/status')).toMatch(/^403 .*CALLER_NOT_ALLOWED/)
      expect(await callAs(LOWLY, site, '/tallygate/v1/rotate-key', 'POST')).toMatch(/^403 .*CALLER_NOT_ALLOWED/)
      expect(await callAs(LOWLY, site, '/livez')).toMatch(/^200/)
      expect(await callAs(LOWLY, site, `/api/v1.1/sessions/${id}`)).toMatch(/^404/)
      expect(await callAs(LOWLY, site, '/api/v1.1/sessions')).toBe('200 []')
      const body = (value: string, count: number) =>
        JSON.stringify({ requester: { type: 'user', value }, requestedItems: [{ item: 'print', count }] })
      const path = `/v1.1/instances/${INSTANCE}/access-request`
      expect(await callAs(LOWLY, site, path, 'POST', body('ada', 4))).toMatch(/^200 .*"1001"/)
      expect(await callAs(LOWLY, site, path, 'POST', body('ada', 4))).toMatch(/^429 .*CALLER_LIMITED/)
      expect(await callAs(LOWLY, site, path, 'POST', body('eve', 1))).toMatch(/^403 .*CALLER_NOT_ALLOWED/)
      expect(await callAs(LOWLY, site, path, 'POST', body('ada', 1))).toMatch(/^200/)
      const opened = await callAs(LOWLY, site, '/api/v1.1/sessions', 'POST', JSON.stringify({ instanceId: INSTANCE }))
      const theirs = /"sessionId":"([^"]+)"/.exec(opened)?.[1] ?? ''
      expect((await caller.call('GET', `/api/v1.1/sessions/${theirs}`)).status).toBe(200)
    },
  )

  it.skipIf(process.getuid?.() !== 0)('may read and end all sessions if they administer, and only that', async () => {
    const { site, caller } = await agent({
      'socket-mode': '0666',
      'callers-use': 'uid:0',
      'callers-observe': 'uid:0',
      'callers-administer': `uid:${LOWLY}`,
    })
    chmodSync(site.directory, 0o755)
    const id = await caller.open()
    const path = `/api/v1.1/sessions/${id}`
    expect(await callAs(LOWLY, site, '/api/v1.1/sessions')).toMatch(new RegExp(`^200 .*${id}`))
    expect(await callAs(LOWLY, site, path)).toMatch(/^200 .*IDLE/)
    const refused = /^403 .*CALLER_NOT_ALLOWED/
    expect(await callAs(LOWLY, site, `${path}/heartbeat`)).toMatch(refused)
    expect(await callAs(LOWLY, site, path, 'PUT', '{}')).toMatch(refused)
    const open = JSON.stringify({ instanceId: INSTANCE })
    expect(await callAs(LOWLY, site, '/api/v1.1/sessions', 'POST', open)).toMatch(refused)
    expect(await callAs(LOWLY, site, path, 'DELETE')).toBe('204')
    expect((await caller.call('GET', path)).body).toMatchObject({ state: 'TERMINATED' })
  })

  it.skipIf(process.getuid?.() !== 0)(
    'charge nothing to sessions of others, also if they may use and administer the agent',
    async () => {
      const { site, caller, application } = await agent({ 'socket-mode': '0666', 'callers-administer': `uid:${LOWLY}` })
      chmodSync(site.directory, 0o755)
      const id = await caller.open()
      expect((await caller.ask(id, 1)).status).toBe(200)
      const path = `/api/v1.1/sessions/${id}`
      const body = (count: number) =>
        JSON.stringify({
          requester: { type: 'user', value: 'eve' },
          rollbackOnDeny: true,
          requestedItems: [{ item: 'print', count }],
        })
      const refused = new RegExp(`^403 .*Only uid:0 may.*CALLER_NOT_ALLOWED`)
      expect(await callAs(LOWLY, site, path, 'PUT', body(2))).toMatch(refused)
      expect(await callAs(LOWLY, site, path, 'PUT', '{}')).toMatch(refused)
      expect(await callAs(LOWLY, site, `${path}/heartbeat`)).toMatch(refused)
      const { accounts } = await application.status()
      expect(accounts[0]?.used).toBe(1_000_000n)
      expect(await callAs(LOWLY, site, path, 'DELETE')).toBe('204')
    },
  )

  it.skipIf(process.getuid?.() !== 0)(
    'have names and numbers of application sessions of their own: no answer, and no session, comes into other hands by one',
    async () => {
      const { site, caller } = await agent({ 'socket-mode': '0666' })
      chmodSync(site.directory, 0o755)
      const first = { 'x-tallygate-session': randomUUID(), 'x-tallygate-request': '1' }
      const id = await caller.open(first)
      const open = JSON.stringify({ instanceId: INSTANCE })
      const bound = { ...first, 'x-tallygate-bound': 'connection' }
      const theirs = await callAs(LOWLY, site, '/v1.1/sessions', 'POST', open, bound)
      expect(theirs).toMatch(/^200/)
      expect(theirs).not.toContain(id)
      const far = { ...first, 'x-tallygate-request': '999999999' }
      expect(await callAs(LOWLY, site, '/v1.1/sessions', 'POST', open, far)).toMatch(/^200/)
      const body = JSON.stringify({
        requester: { type: 'user', value: 'eve' },
        requestedItems: [{ item: 'print', count: 1 }],
      })
      const access = `/v1.1/instances/${INSTANCE}/access-request`
      const further = { ...first, 'x-tallygate-request': '1999999999' }
      expect(await callAs(LOWLY, site, access, 'POST', body, further)).toMatch(/^200/)
      expect((await caller.ask(id, 1, { headers: { ...first, 'x-tallygate-request': '2' } })).status).toBe(200)
      expect((await caller.call('GET', `/v1.1/sessions/${id}`)).body).toMatchObject({ state: 'ACTIVE' })
    },
  )

  it('may have a limited number of connections, and open another one when one is closed', async () => {
    const { site } = await agent({ 'callers-limits': `uid:${process.getuid?.() ?? 0} = 3 connections` })
    const isTaken = async () => {
      const socket = connect(site.socketPath)
      onTestFinished(() => void socket.destroy())
      socket.on('error', () => undefined)
      socket.write('GET /livez HTTP/1.1\r\nHost: x\r\n\r\n')
      const taken = await Promise.race([
        once(socket, 'data').then(
          () => true,
          () => false,
        ),
        once(socket, 'close').then(() => false),
      ])
      return { socket, taken }
    }
    // The application of the test has one.
    const [first, second] = [await isTaken(), await isTaken()]
    expect([first.taken, second.taken, (await isTaken()).taken]).toEqual([true, true, false])
    first.socket.destroy()
    await once(first.socket, 'close')
    await expect.poll(async () => (await isTaken()).taken).toBe(true)
  })

  it('are limited in the rate and the number of sessions that they open', async () => {
    const { caller } = await agent({ 'callers-limits': '* = 3 requests/s, 2 sessions' })
    const open = () => caller.call('POST', '/v1.1/sessions', { instanceId: INSTANCE })
    const said = [await open(), await open(), await open()].map(({ status }) => status)
    expect(said).toEqual([200, 200, 429])
  })

  it('are distinguished on every connection, in the fast path too', async () => {
    const { site, application } = await agent({ 'callers-limits': '* = 1 requests/s' })
    await application.ask(1)
    await expect(application.ask(1)).rejects.toMatchObject({ code: 'CALLER_LIMITED' })
    const socket = connect(site.socketPath)
    onTestFinished(() => void socket.destroy())
    socket.write('GET /livez HTTP/1.1\r\nHost: x\r\n\r\n')
    const [chunk] = (await once(socket, 'data')) as [Buffer]
    expect(chunk.toString()).toContain('200 OK')
  })
})
