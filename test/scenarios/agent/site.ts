// A device with its agent, a cloud in memory that can be cut off, and applications at the agent's socket.
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { pino } from 'pino'
import { expect, onTestFinished } from 'vitest'
import { HttpClient } from '../../../src/client/http.ts'
import { type Agent, type Overrides, composeAgent } from '../../../src/agent/compose.ts'
import { agentOptions, type AgentSettings } from '../../../src/agent/settings.ts'
import { ENGINE } from '../../../src/core/engine.ts'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { AGENT_STATUS_PATH, type AgentStatus, agentStatus } from '../../../src/protocol/local/status.ts'
import { type AccessResponse, accessResponseBody } from '../../../src/protocol/service/access-request.ts'
import { loadSettings } from '../../../src/settings/load.ts'
import { accessBody, temporaryDirectory } from '../../agent/harness.ts'
import { FakeCloud, INSTANCE } from '../../agent/sync/fake-cloud.ts'
import { newSigner } from '../../support/new-signer.ts'
import { policyWith } from '../../agent/sync/policies.ts'

export const ACCOUNT = lineAccount(INSTANCE, 'line-1', 0)
const DAY = 86_400_000

export class Site {
  readonly directory = temporaryDirectory()
  cloud!: FakeCloud
  #token = ''
  isOnline = true
  /** Lines of the agents that were started. */
  readonly log: string[] = []
  /** Of the agents that start next. */
  engine = ENGINE

  /** @param cap of the pool, micro-tokens */
  static async make(cap = 1_000_000_000n, changes: Parameters<typeof policyWith>[1] = {}): Promise<Site> {
    const site = new Site()
    site.cloud = new FakeCloud(() => Date.now(), await newSigner())
    site.cloud.caps.set(ACCOUNT, cap)
    const [item] = policyWith(1).lineItems
    const around = { startsAt: Date.now() - DAY, endsAt: Date.now() + DAY }
    await site.cloud.publish(policyWith(1, { issuedAt: Date.now(), lineItems: [{ ...item!, ...around }], ...changes }))
    site.#token = await site.cloud.enrollmentToken()
    return site
  }

  /** A device with more tokens than any test spends, whose agent has stopped. */
  static async offline(): Promise<Site> {
    const site = await Site.make(10n ** 15n)
    const agent = await site.start({ 'grants-starting': '100000000' })
    await new Application(agent).until(({ accounts, backlog }) => accounts.length > 0 && backlog === 0)
    await agent.stop()
    return site
  }

  get stateDirectory(): string {
    return join(this.directory, 'state')
  }

  get socketPath(): string {
    return join(this.directory, 'agent.sock')
  }

  settings(flags: Readonly<Record<string, string>> = {}): AgentSettings {
    const tokenFile = join(this.directory, 'token')
    writeFileSync(tokenFile, this.#token)
    return loadSettings(agentOptions, {
      file: null,
      env: {},
      flags: {
        'state-directory': this.stateDirectory,
        'socket-path': this.socketPath,
        'enrollment-token-file': tokenFile,
        'sync-interval': '1s',
        ...flags,
      },
      readText: (path) => readFileSync(path, 'utf8'),
    })
  }

  async start(flags: Readonly<Record<string, string>> = {}, overrides: Overrides = {}): Promise<Agent> {
    const agent = await composeAgent(this.settings(flags), {
      log: pino({ level: 'info' }, { write: (line) => void this.log.push(line) }),
      push: null,
      engine: this.engine,
      exchange: async (request) => {
        if (!this.isOnline) throw new CodedError('CLOUD_UNREACHABLE', 'the line is cut')
        return this.cloud.exchange(request)
      },
      ...overrides,
    })
    onTestFinished(() => agent.stop())
    return agent
  }
}

export class Application {
  readonly #client: HttpClient

  constructor(agent: { readonly socketPath: string }) {
    this.#client = new HttpClient({ address: `unix:${agent.socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
    onTestFinished(() => this.#client[Symbol.dispose]())
  }

  /** Of an agent that has its first grant. */
  static async ready(agent: { readonly socketPath: string }): Promise<Application> {
    const application = new Application(agent)
    await application.until(({ accounts }) => accounts.length > 0)
    return application
  }

  /** @throws CodedError of the refusal, or AGENT_UNREACHABLE */
  async ask(count: number, headers: Record<string, string> = {}): Promise<AccessResponse> {
    const path = `/v1.0/instances/${INSTANCE}/access-request`
    return this.#client.json({ method: 'POST', path, headers, body: accessBody(count) }, accessResponseBody)
  }

  async status(): Promise<AgentStatus> {
    return this.#client.json({ method: 'GET', path: AGENT_STATUS_PATH }, agentStatus)
  }

  /** Waits for the status to be so. */
  async until(isSo: (status: AgentStatus) => boolean): Promise<AgentStatus> {
    let status = await this.status()
    await expect
      .poll(
        async () => {
          status = await this.status()
          return isSo(status)
        },
        { timeout: 20_000, interval: 5 },
      )
      .toBe(true)
    return status
  }
}

export const code = ({ requestedItems }: AccessResponse): string | undefined => requestedItems[0]?.status.code
