// The same requests to a real agent's socket and to a real cloud: the same answers, but for ids, times, and what a list says.
import { request } from 'node:http'
import { expect, onTestFinished, test } from 'vitest'
import { temporaryDirectory } from '../../agent/harness.ts'
import { ALWAYS, openTwin, text } from '../../cloud/harness.ts'
import { Application } from '../agent/site.ts'
import { startAgent } from '../agent/start-agent.ts'
import { type Probe, probes } from './requests.ts'

interface Received {
  readonly status: number
  readonly body: string
  readonly allow: string | undefined
}

/** One of the two servers, with the ids that stand for the placeholders there. */
interface Side {
  readonly at: { readonly socketPath: string } | { readonly host: string; readonly port: number }
  readonly headers: Readonly<Record<string, string>>
  readonly prefix: string
  readonly ids: Record<string, string>
}

function send({ at, headers, prefix, ids }: Side, probe: Omit<Probe, 'name'>): Promise<Received> {
  const fill = (given: string): string => given.replaceAll(/\{(\w+)\}/g, (_, name: string) => ids[name] ?? `{${name}}`)
  const body = typeof probe.body === 'string' && probe.body.length < 200_000 ? fill(probe.body) : probe.body
  return new Promise((resolve, reject) => {
    const sent = request({
      ...at,
      method: probe.method,
      path: `${prefix}${fill(probe.path)}`,
      headers: {
        ...headers,
        ...(!probe.path.startsWith('/elastic') ? { 'x-instance-id': ids['instance'] } : {}),
        ...probe.headers,
        ...(body === null ? {} : { 'content-length': String(Buffer.byteLength(body)) }),
      },
    })
    let isAnswered = false
    sent.on('response', (response) => {
      isAnswered = true
      const pieces: Buffer[] = []
      const done = (): void => {
        const { statusCode = 0, headers: received } = response
        resolve({ status: statusCode, body: Buffer.concat(pieces).toString(), allow: received.allow })
      }
      response
        .on('data', (piece: Buffer) => pieces.push(piece))
        .on('end', done)
        .on('error', done)
    })
    sent.on('error', (error) => {
      if (!isAnswered) reject(error)
    })
    sent.end(body ?? undefined)
  })
}

const UUID = /[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/gi

/** Without ids and times. */
function gist({ status, body, allow }: Received): string {
  const shown = body.replaceAll(UUID, 'ID').replaceAll(/\b\d{13}\b/g, 'TIME')
  return `${status} ${allow === undefined ? '' : `allow ${allow} `}${shown}`
}

/** Differences that docs/reference/local-api.md lists. */
const LISTED: readonly RegExp[] = [/a body of 100 kilobytes$/]

test('a device and the cloud give the same answers', { timeout: 240_000 }, async () => {
  const twin = await openTwin()
  onTestFinished(() => twin[Symbol.asyncDispose]())
  twin.followMachine()
  const onDevice = await twin.shop(ALWAYS)
  const inCloud = await twin.instance('other')
  await twin.lineItem(inCloud, ALWAYS)
  const agent = await startAgent({
    directory: temporaryDirectory(),
    enrollmentToken: await twin.enrollmentToken(onDevice),
  })
  await new Application(agent).until(({ accounts, connected }) => accounts.length > 0 && connected)
  const url = new URL(twin.cloud.address)
  const unknown = '64d2028c-ae87-4069-a624-66089d957ef9'
  const sides: readonly Side[] = [
    {
      at: { host: url.hostname, port: Number(url.port) },
      headers: { authorization: `Bearer ${await twin.clientToken(inCloud, unknown)}` },
      prefix: url.pathname,
      ids: { instance: inCloud },
    },
    {
      at: { socketPath: agent.socketPath },
      headers: { host: 'localhost' },
      prefix: url.pathname,
      ids: { instance: onDevice },
    },
  ]
  for (const side of sides) {
    for (const name of ['session', 'ended']) {
      const opened = await send(side, {
        method: 'POST',
        path: '/api/v1.1/sessions',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ instanceId: side.ids['instance'] }),
      })
      side.ids[name] = text(JSON.parse(opened.body), 'sessionId')
    }
    await send(side, { method: 'DELETE', path: '/api/v1.1/sessions/{ended}', headers: {}, body: null })
  }
  const different: Record<string, readonly [cloud: string, device: string]> = {}
  const all = probes()
  for (const probe of all) {
    const [cloud, device] = await Promise.all(sides.map(async (side) => gist(await send(side, probe))))
    if (cloud !== device) different[probe.name] = [cloud ?? '', device ?? '']
  }
  const listed = (name: string): boolean => LISTED.some((each) => each.test(name))
  expect(Object.fromEntries(Object.entries(different).filter(([name]) => !listed(name)))).toEqual({})
  expect(LISTED.filter((each) => !Object.keys(different).some((name) => each.test(name)))).toEqual([])
  expect(all.length).toBeGreaterThanOrEqual(200)

  for (const [method, path] of ONLY_IN_CLOUD) {
    const headers = { 'content-type': 'application/json' }
    const { status, body } = await send(sides[1]!, { method, path, headers, body: method === 'GET' ? null : '{}' })
    expect([status, text(JSON.parse(body), 'code')], path).toEqual([404, 'NOT_ON_DEVICE'])
    expect(text(JSON.parse(body), 'message')).toMatch(new RegExp(` the cloud at ${twin.cloud.address}\\.$`))
  }
})

const ONLY_IN_CLOUD: readonly (readonly [method: string, path: string])[] = [
  ['GET', '/provisioning/api/v1.0/instances?accountId=a&default=true'],
  ['POST', '/api/v1.1/instances'],
  ['PUT', '/provisioning/api/v1.1/instances/{instance}/line-items'],
  ['GET', '/provisioning/api/v1.0/instances/{instance}/line-items/ACT-1'],
  ['POST', '/api/v1.0/instances/{instance}/line-items/ACT-1/actions'],
  ['PATCH', '/floating/api/v1.1/instances/{instance}/conditions'],
  ['PUT', '/api/v1.1/instances/{instance}/line-items/ACT-1/consumption-limit'],
  ['DELETE', '/provisioning/api/v1.0/rate-tables?version=1'],
  ['PATCH', '/provisioning/api/v1.1/configuration'],
  ['PUT', '/api/v1.0/administration-keys'],
  ['PUT', '/api/v1.1/client-keys'],
  ['GET', '/api/v1.0/public-keys'],
  ['GET', '/provisioning/api/v1.1/usage'],
]
