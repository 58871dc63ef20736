/**
 * The site of the crash tests: a cloud and an enrolled device on a stable network. Both can be killed and restarted on
 * their state repeatedly.
 */
import { copyFileSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { inspect } from 'node:util'
import { z } from 'zod'
import { makeAccessToken } from '../../src/client/access-token.ts'
import { HttpClient } from '../../src/client/http.ts'
import { type Proxy, startProxy } from '../../src/demo/proxy.ts'
import { enrollmentTokenResponse } from '../../src/protocol/edge/enrollment.ts'
import { AGENT_STATUS_PATH, agentStatus, type AgentStatus } from '../../src/protocol/local/status.ts'
import { CodedError } from '../../src/protocol/errors.ts'
import { uuid } from '../../src/protocol/wire.ts'
import { type Launch, Service } from './service.ts'

const LOOPBACK = '127.0.0.1'
const DAY_MS = 86_400_000
const LOOK_EVERY_MS = 10

/** Tokens. The first is used up in the run, so that both pay some requests. */
const LINE_ITEMS = [
  { activationId: 'FIRST', quantity: 300, endsIn: 5 },
  { activationId: 'SECOND', quantity: 50_000_000, endsIn: 50 },
]

/** Price of one `press`: fractional, so that floating point sums would be wrong. */
const RATE = 0.1

const listeningTwin = z.object({ http: z.url(), adminKeyFile: z.string() })

export interface SiteOptions {
  readonly directory: string
  /** Names of options without dashes. */
  readonly agentSettings?: Readonly<Record<string, string>>
  readonly twinSettings?: Readonly<Record<string, string>>
}

export class Site implements AsyncDisposable {
  readonly directory: string
  readonly socketPath: string
  instanceId = ''
  agent: Service | undefined
  twin: Service | undefined
  readonly #options: SiteOptions
  readonly #network: Proxy
  #administration: { readonly url: string; readonly token: string } | undefined

  private constructor(options: SiteOptions, network: Proxy) {
    this.#options = options
    this.#network = network
    this.directory = options.directory
    this.socketPath = join(options.directory, 'agent.sock')
  }

  static async make(options: SiteOptions): Promise<Site> {
    const site = new Site(options, await startProxy())
    mkdirSync(dirname(site.agentState), { recursive: true })
    mkdirSync(dirname(site.twinState), { recursive: true })
    return site
  }

  get agentState(): string {
    return join(this.directory, 'device', 'state')
  }

  get twinState(): string {
    return join(this.directory, 'cloud', 'state')
  }

  startTwin(launch: Launch = {}): void {
    const flags = {
      'store-path': this.twinState,
      'http-port': '0',
      'http-public-url': `http://${LOOPBACK}:${this.#network.port}`,
      'push-broker': 'off',
      ...this.#options.twinSettings,
    }
    this.twin = new Service({
      args: ['cloud', ...flagsOf(flags)],
      logFile: join(this.directory, 'twin.log'),
      ...launch,
    })
  }

  async twinReady(): Promise<void> {
    const { http, adminKeyFile } = listeningTwin.parse(await this.twin?.listening)
    this.#network.lead(Number(new URL(http).port))
    const token = await makeAccessToken({
      kind: 'ADMIN',
      privateKey: readFileSync(adminKeyFile, 'utf8'),
      instanceIds: [],
      issuer: 'crash tests',
      now: Date.now(),
      lifetimeMs: 3_600_000,
    })
    this.#administration = { url: http, token }
  }

  /** A client with all rights, valid until the cloud's next start; the caller disposes of it. */
  administrator(): HttpClient {
    if (this.#administration === undefined) throw new Error('invariant: the twin has been ready')
    const { url, token } = this.#administration
    return new HttpClient({
      address: url,
      headers: { authorization: `Bearer ${token}` },
      unreachable: 'CLOUD_UNREACHABLE',
    })
  }

  async provision(): Promise<void> {
    using twin = this.administrator()
    const now = Date.now()
    const made = await twin.json(
      { method: 'POST', path: '/provisioning/api/v1.1/instances', body: { shortName: 'Press', accountId: 'crash' } },
      z.object({ id: uuid }),
    )
    this.instanceId = made.id
    const rates = { effectiveFrom: now - DAY_MS, version: '1', items: [{ name: 'press', rate: RATE }] }
    await twin.text({ method: 'POST', path: '/provisioning/api/v1.1/rate-tables', body: rates })
    for (const { activationId, quantity, endsIn } of LINE_ITEMS) {
      const window = { start: now - DAY_MS, end: now + endsIn * DAY_MS }
      const body = { activationId, state: 'DEPLOYED', quantity, ...window, attributes: { elastic: true } }
      const path = `/provisioning/api/v1.1/instances/${this.instanceId}/line-items`
      await twin.text({ method: 'PUT', path, body })
    }
    await this.newDevice()
  }

  async newDevice(): Promise<void> {
    using twin = this.administrator()
    rmSync(this.agentState, { recursive: true, force: true })
    const body = { instanceIds: [this.instanceId] }
    const { token } = await twin.json(
      { method: 'POST', path: '/edge/api/v1/enrollment-tokens', body },
      enrollmentTokenResponse,
    )
    writeFileSync(this.#tokenFile, token, { mode: 0o600 })
  }

  startAgent(launch: Launch = {}): void {
    const flags = {
      'state-directory': this.agentState,
      'socket-path': this.socketPath,
      ...(existsSync(this.#tokenFile) ? { 'enrollment-token-file': this.#tokenFile } : {}),
      'sync-interval': '1s',
      'sync-backoff-min': '20ms',
      'sync-backoff-max': '1s',
      'sync-batch': '50',
      'grants-starting': '100',
      'push-enabled': 'false',
      ...this.#options.agentSettings,
    }
    this.agent = new Service({
      args: ['agent', ...flagsOf(flags)],
      logFile: join(this.directory, 'agent.log'),
      ...launch,
    })
  }

  /** Polls the agent's status until the condition is met, also while it does not answer. */
  async until(what: string, isSo: (status: AgentStatus) => boolean, withinMs = 60_000): Promise<AgentStatus> {
    using client = new HttpClient({ address: `unix:${this.socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
    const deadline = performance.now() + withinMs
    let last: AgentStatus | undefined
    for (;;) {
      try {
        last = await client.json({ method: 'GET', path: AGENT_STATUS_PATH }, agentStatus)
        if (isSo(last)) return last
      } catch (error) {
        if (!(error instanceof CodedError) || !['AGENT_UNREACHABLE', 'STOPPING'].includes(error.code)) throw error
      }
      if (performance.now() > deadline) throw new Error(`waited in vain until ${what}: ${inspect(last, { depth: 4 })}`)
      await sleep(LOOK_EVERY_MS)
    }
  }

  /** Until the device is enrolled and has rules and tokens. */
  async agentServes(): Promise<AgentStatus> {
    return this.until('the agent serves', ({ policies, grant }) => {
      return grant !== null && policies.some(({ applied, newest }) => applied > 0 && applied === newest)
    })
  }

  async drained(): Promise<AgentStatus> {
    return this.until('everything is delivered', ({ connected, backlog, unacknowledgedSeq }) => {
      return connected && backlog === 0 && unacknowledgedSeq === null
    })
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([this.agent?.end('SIGKILL'), this.twin?.end('SIGKILL'), this.#network.close()])
  }

  get #tokenFile(): string {
    return join(this.directory, 'enrollment-token')
  }
}

/** Copies a database with its log as a killed process left them. */
export function copyDatabase(file: string, into: string): void {
  for (const suffix of ['', '-wal']) {
    if (existsSync(file + suffix)) copyFileSync(file + suffix, into + suffix)
  }
}

function flagsOf(settings: Readonly<Record<string, string>>): readonly string[] {
  return Object.entries(settings).map(([name, value]) => `--${name}=${value}`)
}
