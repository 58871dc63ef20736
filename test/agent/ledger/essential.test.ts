// An essential line item, offline: the agent as a whole against the real twin, over a line that the test can cut.
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { pino } from 'pino'
import { expect, it, onTestFinished } from 'vitest'
import { createExchange, EXCHANGE_DEFAULTS } from '../../../src/agent/platform/http/exchange.ts'
import { type Agent, composeAgent } from '../../../src/agent/compose.ts'
import { agentOptions } from '../../../src/agent/settings.ts'
import { type AgentClient, type Session, connect } from '../../../sdk/node/src/index.ts'
import { HttpClient } from '../../../src/client/http.ts'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { available } from '../../../src/core/accounts/grant.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { AGENT_STATUS_PATH, type AgentStatus, agentStatus } from '../../../src/protocol/local/status.ts'
import { type AccessResponse, accessResponseBody } from '../../../src/protocol/service/access-request.ts'
import { loadSettings } from '../../../src/settings/load.ts'
import { openTwin, type Twin } from '../../cloud/harness.ts'
import { temporaryDirectory } from '../harness.ts'
import { code } from '../../scenarios/agent/site.ts'

class Line {
  readonly twin: Twin
  readonly instanceId: string
  readonly directory = temporaryDirectory()
  isOnline = true
  #token = ''

  private constructor(twin: Twin, instanceId: string) {
    this.twin = twin
    this.instanceId = instanceId
  }

  static async open(): Promise<Line> {
    const twin = await openTwin()
    onTestFinished(() => twin[Symbol.asyncDispose]())
    const line = new Line(twin, await twin.instance())
    await twin.rates({ print: 1 })
    await twin.lineItem(line.instanceId)
    line.#token = await twin.enrollmentToken(line.instanceId)
    return line
  }

  get account(): string {
    return lineAccount(this.instanceId, 'ACT-1', 0)
  }

  setPolicy(body: Record<string, string>) {
    const path = `/edge/api/v1/instances/${this.instanceId}/line-items/ACT-1/offline-policy`
    return this.twin.call('PUT', path, { body })
  }

  async start(): Promise<Agent> {
    const { exchange, close } = createExchange(EXCHANGE_DEFAULTS)
    onTestFinished(close)
    const tokenFile = join(this.directory, 'token')
    writeFileSync(tokenFile, this.#token)
    const settings = loadSettings(agentOptions, {
      file: null,
      env: {},
      flags: {
        'state-directory': join(this.directory, 'state'),
        'socket-path': join(this.directory, 'agent.sock'),
        'reserve-directory': join(this.directory, 'run'),
        'enrollment-token-file': tokenFile,
        'sync-interval': '1s',
        'sync-backoff-max': '1s',
        'grants-starting': '10',
      },
      readText: () => this.#token,
    })
    const agent = await composeAgent(settings, {
      log: pino({ level: 'silent' }),
      push: null,
      exchange: async (request) => {
        if (!this.isOnline) throw new CodedError('CLOUD_UNREACHABLE', 'the line is cut')
        return exchange(request)
      },
    })
    onTestFinished(() => agent.stop())
    return agent
  }
}

class Application {
  readonly #client: HttpClient
  readonly #sessions: AgentClient
  readonly #line: Line

  constructor(line: Line, agent: Agent) {
    this.#line = line
    this.#sessions = connect({ socket: agent.socketPath })
    onTestFinished(() => this.#sessions[Symbol.dispose]())
    this.#client = new HttpClient({ address: `unix:${agent.socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
    onTestFinished(() => this.#client[Symbol.dispose]())
  }

  ask(count: number): Promise<AccessResponse> {
    const body = { requester: { type: 'user', value: 'ada' }, requestedItems: [{ item: 'print', count }] }
    return this.#client.json(
      { method: 'POST', path: `/v1.0/instances/${this.#line.instanceId}/access-request`, body },
      accessResponseBody,
    )
  }

  openSession(): Promise<Session> {
    return this.#sessions.openSession({ instanceId: this.#line.instanceId })
  }

  status(): Promise<AgentStatus> {
    return this.#client.json({ method: 'GET', path: AGENT_STATUS_PATH }, agentStatus)
  }

  async until(isSo: (status: AgentStatus) => boolean): Promise<void> {
    await expect.poll(async () => isSo(await this.status()), { timeout: 15_000, interval: 20 }).toBe(true)
  }

  /** Of the line item. */
  async counters() {
    const { accounts } = await this.status()
    return accounts.find(({ account }) => account === this.#line.account)
  }
}

it('continues above its grant up to the cap while the cloud is out of reach, and settles at the next contact', async () => {
  const line = await Line.open()
  const { status, body } = await line.setPolicy({ policy: 'essential', overspendCap: '50000000' })
  expect([status, body]).toMatchObject([
    200,
    { policy: 'essential', overspendCap: '50000000', devices: 0, exposure: '0' },
  ])
  let agent = await line.start()
  let application = new Application(line, agent)
  await application.until(({ accounts }) => accounts.some((held) => available(held) > 0n))
  // While the cloud can be asked, its word is what counts.
  expect(code(await application.ask(1_000))).not.toBe('101')

  line.isOnline = false
  await application.until(({ connected }) => !connected)
  const before = await application.counters()
  const left = Number(available(before!) / 1_000_000n)
  expect(code(await application.ask(left + 30))).toBe('101')
  expect(code(await application.ask(21))).not.toBe('101')
  const above = await application.counters()
  expect(above!.used - above!.refunded + above!.returned - above!.granted).toBe(30_000_000n)

  // What is above the grant is no less durable than the rest, and the cap no wider after a restart.
  await agent.stop()
  agent = await line.start()
  application = new Application(line, agent)
  expect(code(await application.ask(21))).not.toBe('101')
  expect(code(await application.ask(20))).toBe('101')
  expect(code(await application.ask(1))).not.toBe('101')
  const total = Number((await application.counters())!.used / 1_000_000n)

  line.isOnline = true
  await application.until(({ connected, backlog }) => connected && backlog === 0)
  await expect.poll(() => line.twin.used(line.instanceId, 'ACT-1'), { timeout: 10_000 }).toBe(total)
  const settled = await application.counters()
  expect(settled!.granted >= settled!.used).toBe(true)
  const { conditions } = await application.status()
  expect(conditions.filter(({ subject }) => subject === 'sync')).toEqual([])

  line.isOnline = false
  await application.until(({ connected }) => !connected)
  const anew = await application.counters()
  expect(code(await application.ask(Number(available(anew!) / 1_000_000n) + 50))).toBe('101')
  expect(code(await application.ask(1))).not.toBe('101')
}, 90_000)

it('a session above its grant is delivered and billed in full, with its refund', async () => {
  const line = await Line.open()
  await line.setPolicy({ policy: 'essential', overspendCap: '50000000' })
  const application = new Application(line, await line.start())
  await application.until(({ accounts }) => accounts.some((held) => available(held) > 0n))
  line.isOnline = false
  await application.until(({ connected }) => !connected)

  const left = Number(available((await application.counters())!) / 1_000_000n)
  const session = await application.openSession()
  const print = (count: number) => session.request({ type: 'user', value: 'ada' }, [{ item: 'print', count }])
  expect((await print(left + 51)).granted).toBe(false)
  expect((await print(left + 40)).granted).toBe(true)
  expect(code(await application.ask(11))).not.toBe('101')
  expect(code(await application.ask(10))).toBe('101')
  await session.close()
  const { used, refunded, granted } = (await application.counters())!
  expect(refunded).toBeGreaterThan(0n)
  expect(used).toBeGreaterThan(granted)

  line.isOnline = true
  await application.until(({ connected, backlog }) => connected && backlog === 0)
  const billed = Number(used - refunded) / 1_000_000
  await expect.poll(() => line.twin.used(line.instanceId, 'ACT-1'), { timeout: 10_000 }).toBe(billed)
  const records = await line.twin.usage(line.instanceId)
  expect(records.reduce((sum, { tokens }) => sum + tokens, 0n)).toBe(used - refunded)
}, 60_000)

it('is refused while offline when its policy is changed to refuse, the default', async () => {
  const line = await Line.open()
  await line.setPolicy({ policy: 'essential', overspendCap: '50000000' })
  const { body } = await line.setPolicy({ policy: 'refuse' })
  expect(body).toMatchObject({ policy: 'refuse', overspendCap: '0' })
  const application = new Application(line, await line.start())
  await application.until(({ accounts }) => accounts.some((held) => available(held) > 0n))
  line.isOnline = false
  await application.until(({ connected }) => !connected)
  expect(code(await application.ask(1_000))).not.toBe('101')
}, 60_000)
