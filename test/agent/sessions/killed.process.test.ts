// The agent as a process that is killed in the middle of sessions, with applications of the client library at its socket and
// the real twin at the other end: in the end device and twin agree to the micro-token, and every line of the bill is there once.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { type AgentClient, type Session, SessionEnded, connect } from '../../../sdk/node/src/index.ts'
import { HttpClient } from '../../../src/client/http.ts'
import { AGENT_STATUS_PATH, type AgentStatus, agentStatus } from '../../../src/protocol/local/status.ts'
import { liveSessions } from '../../../src/protocol/service/sessions.ts'
import { DAY, type Twin, openTwin } from '../../cloud/harness.ts'
import { temporaryDirectory } from '../harness.ts'
import { COMMAND } from '../../support/command.ts'

const ada = { type: 'user', value: 'ada' }

const stops: (() => Promise<void> | void)[] = []
afterEach(async () => {
  for (const stop of stops.splice(0).reverse()) await stop()
})

class Device {
  readonly directory = temporaryDirectory()
  readonly socket = join(this.directory, 'agent.sock')
  readonly #tokenFile = join(this.directory, 'token')
  readonly #http = new HttpClient({ address: `unix:${this.socket}`, unreachable: 'AGENT_UNREACHABLE' })
  #child: ChildProcess | null = null

  constructor(token: string) {
    writeFileSync(this.#tokenFile, token)
    stops.push(() => {
      this.#child?.kill('SIGKILL')
      this.#http[Symbol.dispose]()
    })
  }

  start(): void {
    const flags = {
      'state-directory': join(this.directory, 'state'),
      'socket-path': this.socket,
      'enrollment-token-file': this.#tokenFile,
      'sync-interval': '1s',
      'grants-starting': '10000',
      'log-level': 'error',
    }
    const args = Object.entries(flags).flatMap(([key, value]) => [`--${key}`, value])
    this.#child = spawn(process.execPath, [COMMAND, 'agent', ...args], { stdio: ['ignore', 'inherit', 'inherit'] })
  }

  async kill(): Promise<void> {
    const child = this.#child
    if (child === null) return
    child.kill('SIGKILL')
    if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
  }

  async until(isSo: (status: AgentStatus) => boolean): Promise<AgentStatus> {
    const found: { status?: AgentStatus } = {}
    const look = async (): Promise<boolean> => {
      const status = await this.#http
        .json({ method: 'GET', path: AGENT_STATUS_PATH }, agentStatus)
        .catch(() => undefined)
      if (status !== undefined && isSo(status)) found.status = status
      return found.status !== undefined
    }
    await expect.poll(look, { timeout: 40_000, interval: 50 }).toBe(true)
    if (found.status === undefined) throw new Error('there is a status')
    return found.status
  }
}

/** A twin in real time whose intervals are short, and a device of it. */
async function open(intervalMs: number): Promise<{ twin: Twin; instanceId: string; device: Device }> {
  const twin = await openTwin((settings) => ({
    ...settings,
    sessions: { ...settings.sessions, trialInterval: intervalMs },
  }))
  stops.push(() => twin[Symbol.asyncDispose]())
  Object.defineProperty(twin, 'now', { get: () => Date.now() })
  const instanceId = await twin.instance()
  await twin.rates({ Print: 1.7 })
  const around = { start: Date.now() - DAY, end: Date.now() + DAY }
  await twin.lineItem(instanceId, { ...around, quantity: 1_000_000 })
  const device = new Device(await twin.enrollmentToken(instanceId))
  device.start()
  await device.until(({ accounts }) => accounts.some(({ granted }) => granted > 0n))
  return { twin, instanceId, device }
}

/** Opens sessions, uses and closes them, over and over, until it is stopped. */
class Application {
  readonly #client: AgentClient
  readonly #instanceId: string
  readonly #bound: boolean
  isStopped = false
  closed = 0

  constructor(device: Device, instanceId: string, bound: boolean) {
    this.#client = connect({ socket: device.socket, patienceMs: 30_000 })
    this.#instanceId = instanceId
    this.#bound = bound
    stops.push(() => this.#client[Symbol.dispose]())
  }

  async run(): Promise<void> {
    while (!this.isStopped) {
      try {
        await this.#oneSession()
        this.closed += 1
      } catch (error) {
        // One that is bound ends with the agent.
        if (!(error instanceof SessionEnded)) throw error
      }
    }
  }

  async #oneSession(): Promise<void> {
    const options = { instanceId: this.#instanceId, bound: this.#bound }
    await using session: Session = await this.#client.openSession(options)
    for (let count = 1; count <= 5; count += 1) {
      const { granted } = await session.request(ada, [{ item: 'Print', count: count * 1.3 }])
      expect(granted).toBe(true)
      await new Promise((resolve) => setTimeout(resolve, 40))
    }
  }
}

describe('an agent that is killed in the middle of sessions', () => {
  it('charges and refunds everything once: its ledger, the twin and the usage records are equal', async () => {
    const { twin, instanceId, device } = await open(900)
    const applications = [0, 1, 2, 3].map((index) => new Application(device, instanceId, index === 3))
    const running = applications.map((application) => application.run())
    const closed = (): number => applications.reduce((sum, application) => sum + application.closed, 0)
    for (let kill = 1; kill <= 3; kill += 1) {
      const before = closed()
      await expect.poll(closed, { timeout: 30_000 }).toBeGreaterThan(before + 3)
      await device.kill()
      device.start()
    }
    const lasting = connect({ socket: device.socket, patienceMs: 30_000 })
    stops.push(() => lasting[Symbol.dispose]())
    const session = await lasting.openSession({ instanceId })
    await session.request(ada, [{ item: 'Print', count: 2 }])
    for (const application of applications) application.isStopped = true
    await Promise.all(running)

    const live = async () =>
      liveSessions.parse((await twin.call('GET', `/api/v1.1/sessions?instanceId=${instanceId}`)).body)
    await expect
      .poll(async () => (await live()).map(({ sessionId }) => sessionId), { timeout: 20_000 })
      .toContain(session.id)
    await session.close()
    const { accounts } = await device.until(
      ({ backlog, unacknowledgedSeq }) => backlog === 0 && unacknowledgedSeq === null,
    )
    const [account] = accounts.filter(({ used }) => used > 0n)
    const billed = (account?.used ?? 0n) - (account?.refunded ?? 0n)
    expect(account?.refunded).toBeGreaterThan(0n)
    expect(await twin.used(instanceId, 'ACT-1')).toBe(Number(billed) / 1e6)
    const records = await twin.usage(instanceId)
    expect(records.reduce((sum, { tokens }) => sum + tokens, 0n)).toBe(billed)
    const places = records.map(({ source, status, item, activationId }) =>
      JSON.stringify([source, status, item, activationId]),
    )
    expect(new Set(places).size).toBe(places.length)
    expect(records.every(({ source }) => source.kind === 'device' && source.sessionId !== undefined)).toBe(true)
    // The agent's own sessions with the cloud are never asked for anything.
    await expect
      .poll(async () => (await live()).filter(({ lastAccessRequest }) => lastAccessRequest > 0), { timeout: 20_000 })
      .toEqual([])
  }, 120_000)
})

describe('an administrator of the twin', () => {
  it('locks a session on a device: its next request is refused, until it is unlocked', async () => {
    const { twin, instanceId, device } = await open(600_000)
    const client = connect({ socket: device.socket })
    stops.push(() => client[Symbol.dispose]())
    const session = await client.openSession({ instanceId })
    await session.request(ada, [{ item: 'Print', count: 2 }])
    const command = (what: string) => twin.call('POST', `/edge/api/v1/sessions/${session.id}/${what}`)
    await expect.poll(async () => (await command('lock')).status, { timeout: 20_000 }).toBe(202)
    await expect.poll(() => session.state(), { timeout: 20_000 }).toBe('LOCKED')
    await expect(session.request(ada, [{ item: 'Print', count: 1 }])).rejects.toMatchObject({ state: 'LOCKED' })
    expect(session.signal.aborted).toBe(true)
    await expect
      .poll(async () => (await twin.call('GET', `/api/v1.1/sessions/${session.id}`)).body, { timeout: 20_000 })
      .toMatchObject({ state: 'LOCKED' })
    await command('unlock')
    await expect.poll(() => session.state(), { timeout: 20_000 }).toBe('ACTIVE')
    await command('terminate')
    await expect.poll(() => session.state(), { timeout: 20_000 }).toBe('TERMINATED')
    await session.close()
    const { accounts } = await device.until(({ backlog }) => backlog === 0)
    const [account] = accounts.filter(({ used }) => used > 0n)
    expect(account?.used).toBe(3_400_000n)
    expect(Number(account?.refunded)).toBeGreaterThan(3_000_000)
  }, 60_000)
})
