// The status of a whole agent over HTTP.
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { type IncomingMessage, request } from 'node:http'
import { connect } from 'node:net'
import { text } from 'node:stream/consumers'
import { request as secureRequest } from 'node:https'
import { describe, expect, it, onTestFinished } from 'vitest'
import type { Agent } from '../../../../src/agent/compose.ts'
import { openStatus } from '../../../../src/agent/platform/status-http/server.ts'
import { deviceReport, readiness } from '../../../../src/protocol/local/report.ts'
import { Authority } from '../../../support/certificates.ts'
import { silentPeer } from '../../../support/silent-peer.ts'
import { parsePrometheusText, valueOf } from '../../../support/prometheus-text.ts'
import { ACCOUNT, Application, Site } from '../../../scenarios/agent/site.ts'
import { reportWith } from './report-with.ts'

const openFor = (auth: Parameters<typeof openStatus>[0]['auth']) =>
  openStatus({
    ...{ port: 0, auth },
    report: async () => reportWith(),
    readiness: async () => ({ ready: true, checks: [] }),
    onFault: (error) => expect.unreachable(String(error)),
  })

const PORT = { 'status-port': '0' }

async function get(agent: Agent, path: string): Promise<Response> {
  if (agent.statusAddress === null) throw new Error('there is no status page')
  return fetch(`${agent.statusAddress}${path}`)
}

describe('the status over HTTP', () => {
  it('is there only when a port is set', async () => {
    const site = await Site.make()
    expect((await site.start()).statusAddress).toBeNull()
  })

  it('shows the activity of the device as JSON, as metrics and as a page', async () => {
    const site = await Site.make()
    const agent = await site.start(PORT)
    const application = await Application.ready(agent)
    await application.ask(2.5)
    await application.until(({ backlog }) => backlog === 0)

    const report = deviceReport.parse(await (await get(agent, '/status')).json())
    expect(report.health.level).toBe('ok')
    expect(report.machine.diskFree).toBeGreaterThan(0)
    expect(report.machine.ledgerSize).toBeGreaterThan(0)
    expect(report.machine.memoryOfAgent).toBeGreaterThan(1e6)
    // What others share with this process counts in part only.
    expect(report.machine.memoryOfAgent).toBeLessThan(process.memoryUsage.rss() * 1.5)
    expect(report.status.storage).toMatchObject({ written: expect.any(Number) as number, perDay: null })

    const families = parsePrometheusText(await (await get(agent, '/metrics')).text())
    expect(valueOf(families, 'tallygate_agent_tokens_used')).toBe(2.5)
    expect(valueOf(families, 'tallygate_agent_ledger_entries')).toBe(1)
    expect(valueOf(families, 'tallygate_agent_health', { level: 'ok' })).toBe(1)
    expect(valueOf(families, 'tallygate_agent_ready')).toBe(1)

    const page = await get(agent, '/')
    expect(page.headers.get('content-security-policy')).toContain("default-src 'none'")
    expect(await page.text()).toContain(report.health.sentence)
  })

  it('shows the last decisions with their reasons, while the ledger has them', async () => {
    const site = await Site.make()
    const first = await site.start()
    await Application.ready(first)
    await first.stop()
    site.isOnline = false
    const agent = await site.start(PORT)
    await new Application(agent).ask(30)
    await new Application(agent).ask(100_000)
    const decisions = async () => {
      const report = deviceReport.parse(await (await get(agent, '/status')).json())
      return report.decisions.map(({ outcome, tokens }) => [outcome, tokens])
    }
    // The entry of a denial follows its response.
    await expect.poll(decisions).toEqual([
      ['GRANT_EXHAUSTED', 0n],
      ['GRANTED', 30_000_000n],
    ])
  })

  it('knows when tokens were charged, and a restarted agent knows it from its ledger', async () => {
    const site = await Site.make()
    const agent = await site.start(PORT)
    await Application.ready(agent)
    await new Application(agent).ask(2)
    await new Application(agent).ask(3)
    const used = async (of: Agent) => {
      const { use } = deviceReport.parse(await (await get(of, '/status')).json())
      return use.accounts.map(({ account, charged }) => [account, charged.reduce((sum, amount) => sum + amount, 0n)])
    }
    expect(await used(agent)).toEqual([[ACCOUNT, 5_000_000n]])
    await agent.stop()
    site.isOnline = false
    const next = await site.start(PORT)
    expect(await used(next)).toEqual([[ACCOUNT, 5_000_000n]])
    await new Application(next).ask(1)
    expect(await used(next)).toEqual([[ACCOUNT, 6_000_000n]])
  })

  it('is ready offline, and not before there are rules', async () => {
    const site = await Site.make()
    site.isOnline = false
    const stranger = await site.start(PORT)
    const refused = await get(stranger, '/readyz')
    expect(refused.status).toBe(503)
    expect(readiness.parse(await refused.json()).checks[0]).toMatchObject({ name: 'decision', code: 'NOT_ENROLLED' })
    expect((await get(stranger, '/livez')).status).toBe(200)
    await stranger.stop()

    site.isOnline = true
    const enrolled = await site.start()
    await Application.ready(enrolled)
    await enrolled.stop()
    site.isOnline = false
    const offline = await site.start(PORT)
    const ready = await get(offline, '/readyz')
    expect([ready.status, readiness.parse(await ready.json()).ready]).toEqual([200, true])
  })

  it('closes a connection on which many requests wait, before it has looked for their answers', async () => {
    let asked = 0
    const server = await openStatus({
      port: 0,
      auth: { host: '127.0.0.1', tls: null, token: null },
      report: async () => reportWith(),
      readiness: async () => {
        asked += 1
        return { ready: true, checks: [] }
      },
      onFault: (error) => expect.unreachable(String(error)),
    })
    onTestFinished(() => server.stop())
    for (const count of [60, 1_000]) {
      const socket = connect(Number(new URL(server.origin).port), '127.0.0.1')
      socket.on('error', () => undefined)
      socket.write('GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n'.repeat(count))
      await once(socket.resume(), 'close')
      expect(asked).toBe(4)
    }
  })

  it('refuses other paths, other methods and other names by code', async () => {
    const server = await openFor({ host: '127.0.0.1', tls: null, token: 'secret' })
    const ask = async (path: string, init: RequestInit = {}) => {
      const answer = await fetch(`${server.origin}${path}`, init)
      const body = await answer.text()
      return [answer.status, body.startsWith('{') ? (JSON.parse(body) as { code?: string }).code : body]
    }
    expect(await ask('/nowhere')).toEqual([404, 'OPERATION_UNKNOWN'])
    expect(await ask('/status', { method: 'POST', body: 'x' })).toEqual([404, 'OPERATION_UNKNOWN'])
    expect(await ask('/status')).toEqual([401, 'TOKEN_MISSING'])
    expect(await ask('/status', { headers: { authorization: 'Bearer no' } })).toEqual([401, 'TOKEN_INVALID'])
    const head = await fetch(`${server.origin}/`, { method: 'HEAD', headers: { authorization: 'Bearer secret' } })
    expect([head.status, await head.text()]).toEqual([200, ''])
    const { port } = new URL(server.origin)
    const rebound = request({
      port,
      path: '/status',
      headers: { host: 'evil.example', authorization: 'Bearer secret' },
    })
    rebound.end()
    const answer = await new Promise<IncomingMessage>((resolve) => rebound.once('response', resolve))
    expect(await text(answer)).toContain('BAD_REQUEST')
    await server.stop()
  })

  it('does not start where others could read', async () => {
    const site = await Site.make()
    const started = site.start({ ...PORT, 'status-host': '0.0.0.0' })
    await expect(started).rejects.toMatchObject({ code: 'CONFIG_INVALID' })
  })
})

it('the schema of the report is the one that is documented', () => {
  const schema = JSON.parse(
    readFileSync(new URL('../../../../docs/reference/device-report.schema.json', import.meta.url), 'utf8'),
  ) as {
    readonly required: readonly string[]
  }
  expect(schema.required).toEqual(Object.keys(deviceReport.shape))
})

describe('a request that cannot be read', () => {
  const whole = 'GET /livez HTTP/1.1\r\nHost: localhost\r\n'
  it.each([
    ['bytes that are not HTTP', 'no HTTP\r\n\r\n', ['400', 'BAD_REQUEST']],
    ['two lengths', `${whole}Content-Length: 1\r\nContent-Length: 2\r\n\r\n`, ['400', 'BAD_REQUEST']],
    ['large headers', `${whole}X: ${'x'.repeat(20_000)}\r\n\r\n`, ['431', 'HEADERS_TOO_LARGE']],
    ['no Host', 'GET /livez HTTP/1.1\r\nConnection: close\r\n\r\n', ['400', 'BAD_REQUEST']],
    ['two hosts', `${whole}Host: x\r\n\r\n`, ['400', 'BAD_REQUEST']],
    [
      'an unknown transfer coding',
      `${whole}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n`,
      ['501', 'TRANSFER_CODING_UNKNOWN'],
    ],
    ['an unknown expectation', `${whole}Expect: tea\r\n\r\n`, ['417', 'EXPECTATION_UNKNOWN']],
    ['a tunnel', 'CONNECT x:1 HTTP/1.1\r\nHost: localhost\r\n\r\n', ['404', 'OPERATION_UNKNOWN']],
    ['bytes after a request', `${whole}\r\nno HTTP\r\n\r\n`, ['200', '400', 'BAD_REQUEST']],
    ['five requests at once', `${whole}\r\n`.repeat(5), ['200', '200', '200', '200', '400', 'BAD_REQUEST']],
    ['a thousand requests at once', `${whole}\r\n`.repeat(1_000), ['400', 'BAD_REQUEST']],
  ])('%s: gets a code, after the responses to earlier requests', async (_, bytes, expected) => {
    const server = await openFor({ host: '127.0.0.1', tls: null, token: null })
    onTestFinished(() => server.stop())
    const socket = connect(Number(new URL(server.origin).port), '127.0.0.1')
    socket.on('error', () => undefined)
    socket.write(bytes)
    let received = ''
    for await (const chunk of socket) received += String(chunk)
    expect(
      [...received.matchAll(/HTTP\/1\.1 (\d{3})|"code":"(\w+)"/g)].map(([, status, code]) => status ?? code),
    ).toEqual(expected)
  })

  it('of a peer without TLS: the connection closes', async () => {
    await using authority = await Authority.make()
    const tls = { ...(await authority.certify(Date.now() + 86_400_000)), clientCa: null }
    const server = await openFor({ host: '127.0.0.1', tls, token: null })
    onTestFinished(() => server.stop())
    const socket = connect(Number(new URL(server.origin).port), '127.0.0.1')
    socket.on('error', () => undefined)
    socket.write(`${whole}\r\n`)
    await once(socket.resume(), 'close')
  })
})

it('stops while a peer is silent in its TLS handshake', async () => {
  await using authority = await Authority.make()
  const tls = { ...(await authority.certify(Date.now() + 86_400_000)), clientCa: null }
  const server = await openFor({ host: '127.0.0.1', tls, token: null })
  const silent = await silentPeer(Number(new URL(server.origin).port))
  const closed = once(silent, 'close')
  await server.stop()
  await closed
})

it('beyond loopback, a client without a certificate is served only with a token, if one is configured', async () => {
  await using authority = await Authority.make()
  const certified = await authority.certify(Date.now() + 86_400_000)
  const tls = { ...certified, clientCa: authority.certificate }
  const access = { host: '0.0.0.0', tls, token: null }
  const server = await openFor(access)
  onTestFinished(() => server.stop())
  const { port } = new URL(server.origin)
  const ask = async (more: object): Promise<number | string> => {
    const asked = secureRequest({ port, path: '/status', ca: authority.certificate, agent: false, ...more })
    asked.end()
    return new Promise((resolve) => {
      asked.once('response', (answer) => resolve(answer.resume().statusCode ?? 0))
      asked.once('error', () => resolve('closed'))
    })
  }
  const shown = { cert: certified.certificate, key: certified.key }
  const authorization = { headers: { authorization: 'Bearer secret' } }
  expect([await ask(shown), await ask({}), await ask(authorization)]).toEqual([200, 'closed', 'closed'])
  server.renew({ ...access, token: 'secret' })
  expect([await ask(shown), await ask({}), await ask(authorization)]).toEqual([200, 401, 200])
  server.renew(access)
  expect([await ask(shown), await ask({}), await ask(authorization)]).toEqual([200, 'closed', 'closed'])
})
