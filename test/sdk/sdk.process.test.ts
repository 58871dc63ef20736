// Every client against a real agent and a real cloud: the same scenarios, driven through a small program in each language.
// What the programs were charged is compared with the usage that the cloud has.
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { z } from 'zod'
import { Site } from '../../crash/site/site.ts'
import { exactTokens, parseExactJson } from '../../src/client/exact-json.ts'
import { HttpClient } from '../../src/client/http.ts'
import { REFUSAL_REASONS } from '../../src/core/rules/refusal-reasons.ts'
import { ERRORS, messageOf } from '../../src/protocol/errors.ts'
import { liveSessions } from '../../src/protocol/service/sessions.ts'
import { ITEM_STATUS } from '../../src/protocol/service/status.ts'
import { Driver, LANGUAGES, type Language, missingTool } from './driver.ts'
import { provisionWorkshop } from './workshop.ts'

const directory = mkdtempSync(join(tmpdir(), 'tallygate-sdk-'))
/** What the scenarios change: no limits of callers, and many requests at a time. */
const USUAL = {
  'socket-waiting-max': '4096',
  // A request that needs more waits for what the cloud says, however busy the machine is.
  'grants-top-up-deadline': '60s',
  'callers-limits': 'uid:4294967294 = 1 sessions',
}

/** Of the next start of the agent. */
const agentSettings: Record<string, string> = { ...USUAL }
let site: Site

beforeAll(async () => {
  // An interval of a session is 6 seconds, so a heartbeat is sent every second.
  site = await Site.make({ directory, agentSettings, twinSettings: { 'sessions-trial-interval': '6s' } })
  site.startTwin()
  await site.twinReady()
  await provisionWorkshop(site)
  site.startAgent()
  await site.agentServes()
})

afterAll(async () => {
  await site[Symbol.asyncDispose]()
  rmSync(directory, { recursive: true })
})

async function restartAgent(settings: Readonly<Record<string, string>> = {}): Promise<void> {
  await site.agent?.end('SIGKILL')
  Object.assign(agentSettings, USUAL, settings)
  site.startAgent()
}

const exported = z.object({
  consumerId: z.string(),
  tokens: exactTokens,
  status: z.string(),
  correlationId: z.string(),
})

/** What the cloud has billed this requester, micro-tokens, and for how many requests. */
async function billed(requester: string): Promise<{ readonly tokens: bigint; readonly requests: number }> {
  await site.drained()
  using cloud = site.administrator()
  const path = `/provisioning/api/v1.1/usage?format=ndjson&instanceId=${site.instanceId}`
  const lines = (await cloud.text({ method: 'GET', path })).split('\n').filter((line) => line !== '')
  const own = lines
    .map((line) => exported.parse(parseExactJson(line)))
    .filter(({ consumerId, status }) => consumerId === requester && status !== 'REFUNDED')
  const charged = own.filter(({ tokens }) => tokens > 0n)
  return {
    tokens: charged.reduce((sum, { tokens }) => sum + tokens, 0n),
    requests: new Set(charged.map(({ correlationId }) => correlationId)).size,
  }
}

/** The error code, or the status code of the item, of a request without a client library. */
async function ask(value: string, count: number): Promise<string | undefined> {
  using local = new HttpClient({ address: `unix:${site.socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
  const path = `/v1.1/instances/${site.instanceId}/access-request`
  const requestedItems = [{ item: 'LaserCut', version: '1.0', count }]
  const { text } = await local.call({
    method: 'POST',
    path,
    body: { requester: { type: 'user', value }, requestedItems },
  })
  const { code, ...answer } = JSON.parse(text) as { code?: string; requestedItems?: { status: { code: string } }[] }
  return code ?? answer.requestedItems?.[0]?.status.code
}

const CUT = 850_000n

/** A client on the same agent as the others. */
class Client {
  readonly #language: Language
  readonly #command: readonly string[]

  constructor(language: Language, command: readonly string[]) {
    this.#language = language
    this.#command = command
  }

  get name(): string {
    return this.#language.name
  }

  requester(what: string): string {
    return `${what}-${this.name.replaceAll(' ', '-')}`
  }

  get forks(): boolean {
    return this.#language.forks === true
  }

  program({ patienceMs = 150_000, socket = site.socketPath, instance = site.instanceId } = {}): Driver {
    const env = { TALLYGATE_SOCKET: socket, INSTANCE: instance, PATIENCE_MS: String(patienceMs) }
    const driver = new Driver(this.#command, { ...this.#language.env, ...env })
    onTestFinished(() => driver.kill())
    return driver
  }
}

const clients: Client[] = []

beforeAll(async () => {
  const built = LANGUAGES.filter((language) => missingTool(language) === undefined)
  clients.push(...(await Promise.all(built.map(async (each) => new Client(each, await each.build(directory))))))
})

it.for(LANGUAGES)('the client for $name is tested', (language, { skip }) => {
  const reason = missingTool(language)
  if (reason === undefined || process.env['TALLYGATE_REQUIRE_SERVERS'] === '1') expect(reason).toBe(undefined)
  else skip(reason)
})

/** Runs a step of a scenario with all clients at a time. */
async function everyClient<T>(step: (client: Client, index: number) => Promise<T>): Promise<readonly T[]> {
  return Promise.all(
    clients.map(async (client, index) => {
      try {
        return await step(client, index)
      } catch (cause) {
        throw new Error(`The client for ${client.name}: ${messageOf(cause)}`, { cause })
      }
    }),
  )
}

const granted = (count: number): readonly string[] => Array.from({ length: count }, () => 'granted 1001 0.85 -')

/** Every client, in the same scenario at the same time: a restart of the agent concerns them all. */
describe('each client', () => {
  it('requests what is offered, and learns what an unknown item should have been', async () => {
    await everyClient(async (client) => {
      const driver = client.program()
      expect(await driver.do('offers')).toEqual(['offer LaserCut 1.0 0.85 Workshop'])
      const who = client.requester('anna')
      expect(await driver.do(`access ${who} 1.0 2.5 1`)).toEqual(['granted 1001 2.125 -'])
      expect(await driver.do(`access ${who} 2.0 1 1`)).toEqual(['refused 2001 0 no LaserCut exists as version 1.0'])
      expect(await billed(who)).toEqual({ tokens: 2_125_000n, requests: 1 })
    })
  })

  it('is charged once for each request while the agent is killed', async () => {
    const drivers = clients.map((client) => [client.program(), client.program()])
    await Promise.all(drivers.flat().map((driver) => driver.do('offers')))
    const running = everyClient(async (client, index) => {
      const requests = `access ${client.requester('killed')} 1.0 1 150`
      const results = await Promise.all((drivers[index] ?? []).map((driver) => driver.do(requests)))
      expect(results).toEqual([granted(150), granted(150)])
    })
    running.catch(() => undefined)
    // The fastest is still busy at the last kill, and so is every other.
    const answered = (): number => Math.max(...drivers.flat().map((driver) => driver.answered))
    for (let kill = 1; kill <= 3; kill += 1) {
      await expect.poll(answered, { timeout: 60_000, interval: 1 }).toBeGreaterThan(kill * 30)
      await restartAgent()
    }
    await running
    await everyClient(async (client) => {
      expect(await billed(client.requester('killed'))).toEqual({ tokens: 300n * CUT, requests: 300 })
    })
  }, 180_000)

  it('is served while the cloud is away, up to the tokens of the device', async () => {
    await site.twin?.end('SIGKILL')
    await everyClient(async (client) => {
      const driver = client.program()
      const who = client.requester('offline')
      expect(await driver.do(`access ${who} 1.0 1 3`)).toEqual(granted(3))
      expect(await driver.do(`access ${who} 1.0 10000000 1`)).toEqual(['refused 2008 0 online'])
    })
    site.startTwin()
    await site.twinReady()
    await everyClient(async (client) => {
      expect(await billed(client.requester('offline'))).toEqual({ tokens: 3n * CUT, requests: 3 })
    })
  }, 120_000)

  it('waits while the agent is overloaded', async () => {
    await restartAgent({ 'socket-waiting-max': '1', 'grants-top-up-deadline': '3s' })
    await site.agentServes()
    const drivers = clients.map((client) => client.program())
    await Promise.all(drivers.map((driver) => driver.do('offers')))
    // A request that waits for a cloud that does not respond takes the only place.
    site.twin?.signal('SIGSTOP')
    onTestFinished(() => site.twin?.signal('SIGCONT'))
    const holding = ask('holding', 10_000_000)
    holding.catch(() => undefined)
    await expect.poll(() => ask('probe', 10_000_000), { timeout: 60_000, interval: 1 }).toBe('OVERLOADED')
    await everyClient(async (client, index) => {
      expect(await drivers[index]?.do(`access ${client.requester('overload')} 1.0 1 3`)).toEqual(granted(3))
    })
    site.twin?.signal('SIGCONT')
    await holding
    await everyClient(async (client) => {
      expect(await billed(client.requester('overload'))).toEqual({ tokens: 3n * CUT, requests: 3 })
    })
    await restartAgent()
  }, 120_000)

  it('leaves the limits of its user to the application', async () => {
    await restartAgent({ 'callers-limits': `uid:${process.getuid?.() ?? 0} = 3 tokens/h` })
    await site.agentServes()
    // All clients run as the same user.
    for (let request = 1; request <= 3; request += 1) expect(await ask('limited', 1)).toBe('1001')
    await everyClient(async (client) => {
      const limited = await client.program().do(`access ${client.requester('limited')} 1.0 1 1`)
      expect(limited).toEqual(['error LimitReached CALLER_LIMITED later'])
    })
    await restartAgent()
  }, 60_000)

  it('says that the agent does not respond, and that the device needs the cloud', async () => {
    await everyClient(async (client) => {
      const nowhere = client.program({ patienceMs: 100, socket: join(directory, 'nowhere.sock') })
      expect(await nowhere.do(`access anna 1.0 1 1`)).toEqual([
        'error AgentUnreachable AGENT_UNREACHABLE later TALLYGATE_SOCKET',
      ])
    })
    using cloud = site.administrator()
    const { deviceId } = await site.agentServes()
    const order = (what: string) => cloud.text({ method: 'POST', path: `/edge/api/v1/devices/${deviceId}/${what}` })
    await order('lock')
    await site.until('the device is locked', ({ suspension }) => suspension !== null)
    await everyClient(async (client) => {
      expect(await client.program().do(`access anna 1.0 1 1`)).toEqual(['error NeedsCloud DEVICE_LOCKED online'])
    })
    await order('unlock')
    await site.until('the device is unlocked', ({ suspension }) => suspension === null)
  }, 120_000)

  it('keeps a session with heartbeats over restarts of the agent, and gives back what is unused', async () => {
    using local = new HttpClient({ address: `unix:${site.socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
    const beats = new Map<string, Set<number>>()
    const drivers = await everyClient(async (client) => {
      const driver = client.program()
      const who = client.requester('session')
      const [opened = ''] = await driver.do('open')
      beats.set(opened.replace('opened ', ''), new Set())
      expect(await driver.do(`request ${who} 10000000000`)).toEqual(['refused 2002 0 later'])
      expect(await driver.do(`request ${who} 100`)).toEqual(['granted 1001 85 -'])
      return driver
    })
    const fewestBeats = async (): Promise<number> => {
      const listed = await local.json({ method: 'GET', path: '/v1.1/sessions' }, liveSessions).catch(() => [])
      for (const { sessionId, lastHeartBeat } of listed) if (lastHeartBeat > 0) beats.get(sessionId)?.add(lastHeartBeat)
      return Math.min(...[...beats.values()].map(({ size }) => size))
    }
    await expect.poll(fewestBeats, { timeout: 60_000 }).toBeGreaterThanOrEqual(1)
    await restartAgent()
    await expect.poll(fewestBeats, { timeout: 60_000 }).toBeGreaterThanOrEqual(2)
    await everyClient(async (_, index) => {
      expect(await drivers[index]?.do('state')).toEqual(['state ACTIVE'])
      expect(await drivers[index]?.do('close')).toEqual(['closed'])
    })
    const { accounts } = await site.drained()
    expect(accounts.some(({ refunded }) => refunded > 0n)).toBe(true)
  }, 120_000)

  it('learns that an administrator has ended its session', async () => {
    using cloud = site.administrator()
    await everyClient(async (client) => {
      const driver = client.program()
      const [opened = ''] = await driver.do('open')
      await driver.do(`request ${client.requester('ended')} 1`)
      const waiting = driver.do('wait')
      waiting.catch(() => undefined)
      const path = `/edge/api/v1/sessions/${opened.replace('opened ', '')}/terminate`
      const end = () => cloud.call({ method: 'POST', path }).then(({ status }) => status)
      await expect.poll(end, { timeout: 60_000 }).toBe(202)
      expect(await waiting).toEqual(['ended TERMINATED'])
      expect(await driver.do('state')).toEqual(['state TERMINATED'])
      expect(await driver.do(`request ${client.requester('ended')} 1`)).toEqual(['error SessionEnded SESSION_ENDED no'])
      expect(await driver.do('close')).toEqual(['closed'])
    })
  }, 120_000)

  it('does not call a session ended that the application has closed, however often', async () => {
    await everyClient(async (client) => {
      const driver = client.program()
      await driver.do('open')
      expect(await driver.do('close twice')).toEqual(['closed'])
      expect(await driver.do('close')).toEqual(['closed'])
      expect(await driver.do('request anna 1')).toEqual(['error SessionEnded SESSION_ENDED no'])
      expect(await driver.do('end')).toEqual(['end -'])
    })
  })

  it('numbers the requests of a forked process separately, and leaves the session to the process that opened it', async () => {
    await everyClient(async (client) => {
      if (!client.forks) return
      const driver = client.program()
      const who = client.requester('forked')
      const requests = `access ${who} 1.0 1 3`
      await driver.do('open')
      expect(await driver.do(requests)).toEqual(granted(3))
      expect(await driver.do(`fork ${requests}`)).toEqual(granted(3))
      expect(await driver.do(`fork ${requests}`)).toEqual(granted(3))
      expect(await driver.do(requests)).toEqual(granted(3))
      expect(await driver.do(`fork request ${who} 1`)).toEqual(['error TallygateError SESSION_OF_ANOTHER no'])
      expect(await driver.do('fork state')).toEqual(['error TallygateError SESSION_OF_ANOTHER no'])
      expect(await driver.do('fork wait')).toHaveLength(1)
      expect(await driver.do('fork close')).toEqual(['closed'])
      expect(await driver.do(`request ${who} 1`)).toEqual(granted(1))
      expect(await driver.do('close')).toEqual(['closed'])
      expect((await billed(who)).requests).toBe(13)
    })
  })

  it('reports a mistake of the application at once', async () => {
    const refused = /^error TallygateError (BAD_JSON|BAD_REQUEST) no$/
    await everyClient(async (client) => {
      const driver = client.program()
      expect((await driver.do('access anna 1.0 NaN 1')).join()).toMatch(refused)
      expect(await driver.do('access anna 1.0 1 1')).toEqual(granted(1))
      expect((await client.program({ instance: 'a\nb' }).do('access anna 1.0 1 1')).join()).toMatch(refused)
    })
  })

  it('binds a session to its process', async () => {
    using local = new HttpClient({ address: `unix:${site.socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
    await everyClient(async (client) => {
      const driver = client.program()
      const [opened = ''] = await driver.do('open bound')
      const path = `/v1.1/sessions/${opened.replace('opened ', '')}`
      await driver.do(`request ${client.requester('bound')} 1`)
      driver.kill()
      const state = async (): Promise<unknown> =>
        (JSON.parse(await local.text({ method: 'GET', path })) as { state: string }).state
      await expect.poll(state, { timeout: 60_000 }).toBe('TERMINATED')
    })
  })
})

it('the client for C does not repeat a request whose response is longer than its buffer', async ({ skip }) => {
  const client = clients.find(({ name }) => name === 'C')
  if (client === undefined) return skip()
  let requests = 0
  const server = createServer((_, response) => {
    requests += 1
    response.end('x'.repeat(40_000))
  })
  const socket = join(directory, 'long.sock')
  await new Promise<void>((resolve) => server.listen(socket, resolve))
  onTestFinished(() => void server.close())
  expect(await client.program({ socket }).do('offers')).toEqual(['error TallygateError ANSWER_UNEXPECTED no'])
  expect(requests).toBe(1)
})

it.each(['', 'no JSON', '[]', '{}', '{"requestedItems":7}', '{"correlationId":"a","requestedItems":[]}'])(
  'every client refuses a response that is not from an agent: %j',
  async (body) => {
    const server = createServer((_, response) => response.end(body))
    const socket = join(directory, 'strange.sock')
    await new Promise<void>((resolve) => server.listen(socket, resolve))
    onTestFinished(() => void server.close())
    await everyClient(async (client) => {
      const driver = client.program({ socket })
      const refused = ['error TallygateError ANSWER_UNEXPECTED no']
      expect(await driver.do('access anna 1.0 1 1')).toEqual(refused)
      expect(await driver.do('open')).toEqual(refused)
    })
  },
)

describe('the tables in the sources of the clients', () => {
  const sources = [
    'sdk/node/src/index.ts',
    'sdk/python/src/tallygate/_core.py',
    'sdk/go/tallygate.go',
    'sdk/c/tallygate.h',
  ].map((path) => [path, readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8')] as const)

  it.each(sources)('%s: when a refused item can be requested again', (_path, source) => {
    for (const [reason, { retry }] of Object.entries(REFUSAL_REASONS)) {
      const code = ITEM_STATUS[reason as keyof typeof REFUSAL_REASONS]['v1.1']
      const line = source.split('\n').find((each) => each.includes(code)) ?? ''
      const found = /online/i.test(line) ? 'ONLINE' : /later/i.test(line) ? 'LATER' : 'NEVER'
      expect([code, retry === 'NEVER' && line === '' ? 'NEVER' : found]).toEqual([code, retry])
    }
  })

  it.each(sources)('%s: the errors that the cloud solves', (_path, source) => {
    const needCloud = Object.entries(ERRORS).filter(([, { retry }]) => retry === 'online')
    for (const [code] of needCloud)
      expect(source).toContain(`"${code}"`.replaceAll('"', source.includes(`'${code}'`) ? "'" : '"'))
  })
})
