// A cloud with its own broker and an agent, as shipped processes, with one line item.
import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { makeAccessToken } from '../../src/client/access-token.ts'
import { HttpClient } from '../../src/client/http.ts'
import { type ServiceOptions, type ServiceProcess, startService } from '../../src/demo/service-process.ts'
import { enrollmentTokenResponse } from '../../src/protocol/edge/enrollment.ts'
import { AGENT_STATUS_PATH, type AgentStatus, agentStatus } from '../../src/protocol/local/status.ts'

const DAY_MS = 86_400_000
const READY_MS = 60_000

export function requestBody(count: number): unknown {
  return { requester: { type: 'user', value: 'tests' }, requestedItems: [{ item: 'Print', version: '1.0', count }] }
}

export class Site implements AsyncDisposable {
  readonly directory: string
  readonly #application: HttpClient
  #cloud: ServiceProcess | undefined
  #agent: ServiceProcess | undefined
  #ports = { http: '0', push: '0' }
  url = ''
  adminKeyFile = ''
  instanceId = ''

  private constructor(directory: string) {
    this.directory = directory
    this.#application = new HttpClient({ address: `unix:${this.socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
  }

  /** @param directory empty; the caller removes it */
  static async open(directory: string): Promise<Site> {
    await using opened = new AsyncDisposableStack()
    const site = opened.use(new Site(directory))
    await site.startCloud()
    await site.#provision()
    opened.move()
    return site
  }

  /** On any free ports at first, then on the same ones. */
  async startCloud(): Promise<void> {
    const { http, push } = this.#ports
    this.#cloud = await startService({
      name: 'tallygate cloud',
      args: ['cloud', '--http-port', http, '--push-port', push, '--http-host', '127.0.0.1', '--push-host', '127.0.0.1'],
      env: { TALLYGATE_CLOUD_STORE_PATH: join(this.directory, 'cloud') },
      logFile: join(this.directory, 'cloud.log'),
      readyWithinMs: READY_MS,
    })
    const { listening } = this.#cloud
    this.url = String(listening['http'])
    this.adminKeyFile = String(listening['adminKeyFile'])
    this.#ports = { http: new URL(this.url).port, push: new URL(String(listening['push'])).port }
  }

  get cloudPid(): number {
    if (this.#cloud === undefined) throw new Error('the cloud is not running')
    return this.#cloud.pid
  }

  async stopCloud(): Promise<void> {
    await this.#cloud?.stop(10_000)
    this.#cloud = undefined
  }

  get socketPath(): string {
    return join(this.directory, 'agent.sock')
  }

  async administrator(): Promise<HttpClient> {
    const token = await makeAccessToken({
      kind: 'ADMIN',
      privateKey: readFileSync(this.adminKeyFile, 'utf8'),
      instanceIds: [],
      issuer: 'site',
      now: Date.now(),
      lifetimeMs: 3_600_000,
    })
    const headers = { authorization: `Bearer ${token}` }
    return new HttpClient({ address: this.url, headers, unreachable: 'CLOUD_UNREACHABLE' })
  }

  async enrollmentToken(): Promise<string> {
    using client = await this.administrator()
    const body = { instanceIds: [this.instanceId] }
    const call = { method: 'POST', path: '/edge/api/v1/enrollment-tokens', body } as const
    return (await client.json(call, enrollmentTokenResponse)).token
  }

  /** @returns the process id */
  async startAgent(
    token: string | null,
    { command, env = {} }: Partial<Pick<ServiceOptions, 'command' | 'env'>> = {},
  ): Promise<number> {
    this.#agent = await startService({
      name: 'tallygate agent',
      ...(command === undefined ? {} : { command }),
      args: ['agent'],
      env: {
        TALLYGATE_AGENT_STATE_DIRECTORY: join(this.directory, 'agent'),
        TALLYGATE_AGENT_SOCKET_PATH: this.socketPath,
        ...(token === null ? {} : { TALLYGATE_AGENT_ENROLLMENT_TOKEN: token }),
        // Exclude effects of the sync timer.
        TALLYGATE_AGENT_SYNC_INTERVAL: '1h',
        ...env,
      },
      logFile: join(this.directory, 'agent.log'),
      readyWithinMs: READY_MS,
    })
    return this.#agent.pid
  }

  async stopAgent(): Promise<void> {
    await this.#agent?.stop(10_000)
    this.#agent = undefined
  }

  get requestPath(): string {
    return `/v1.1/instances/${this.instanceId}/access-request`
  }

  async status(): Promise<AgentStatus> {
    return this.#application.json({ method: 'GET', path: AGENT_STATUS_PATH }, agentStatus)
  }

  async ask(count = 1): Promise<string> {
    return this.#application.text({ method: 'POST', path: this.requestPath, body: requestBody(count) })
  }

  async change(quantity: number): Promise<void> {
    using client = await this.administrator()
    await this.#map(client, quantity)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#application[Symbol.dispose]()
    await this.stopAgent()
    await this.stopCloud()
  }

  async #provision(): Promise<void> {
    using client = await this.administrator()
    const created = await client.text({
      method: 'POST',
      path: '/provisioning/api/v1.1/instances',
      body: { shortName: 'push', accountId: randomUUID() },
    })
    this.instanceId = (JSON.parse(created) as { id: string }).id
    await client.text({
      method: 'POST',
      path: '/provisioning/api/v1.1/rate-tables',
      body: {
        series: 'push',
        version: '1',
        effectiveFrom: Date.now() - DAY_MS,
        items: [{ name: 'Print', version: '1.0', rate: 1 }],
      },
    })
    await this.#map(client, 1_000_000)
  }

  async #map(client: HttpClient, quantity: number): Promise<void> {
    const now = Date.now()
    const path = `/provisioning/api/v1.1/instances/${this.instanceId}/line-items`
    const attributes = { elastic: true, rateTableSeries: 'push' }
    const window = { start: now - DAY_MS, end: now + 30 * DAY_MS }
    const body = { activationId: 'ACT-1', state: 'DEPLOYED', quantity, ...window, attributes }
    await client.text({ method: 'PUT', path, body })
  }
}
