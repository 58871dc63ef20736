// The agent as a whole, over its socket, with its database, and with a cloud that answers in memory.
import { existsSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { pino } from 'pino'
import { describe, expect, it, onTestFinished } from 'vitest'
import { HttpClient } from '../../src/client/http.ts'
import { type Agent, composeAgent } from '../../src/agent/compose.ts'
import { agentOptions, type AgentSettings } from '../../src/agent/settings.ts'
import { lineAccount } from '../../src/core/account.ts'
import { billed } from '../../src/core/grant.ts'
import { CodedError } from '../../src/protocol/errors.ts'
import { AGENT_STATUS_PATH, type AgentStatus, agentStatus } from '../../src/protocol/local/status.ts'
import { type AccessResponse, accessResponseBody } from '../../src/protocol/service/access-request.ts'
import { loadSettings } from '../../src/settings/load.ts'
import { accessBody, temporaryDirectory } from './harness.ts'
import { FakeCloud, INSTANCE, makeCloudKey } from './link/fake-cloud.ts'
import { policyWith } from './link/policies.ts'

const ACCOUNT = lineAccount(INSTANCE, 'line-1', 0)
const DAY = 86_400_000

class Site {
  readonly directory = temporaryDirectory()
  cloud!: FakeCloud
  #token = ''
  isOnline = true

  static async make(): Promise<Site> {
    const site = new Site()
    site.cloud = new FakeCloud(() => Date.now(), await makeCloudKey())
    site.cloud.caps.set(ACCOUNT, 1_000_000_000n)
    const [item] = policyWith(1).lineItems
    const around = { startsAt: Date.now() - DAY, endsAt: Date.now() + DAY }
    await site.cloud.publish(policyWith(1, { issuedAt: Date.now(), lineItems: [{ ...item!, ...around }] }))
    site.#token = await site.cloud.enrollmentToken()
    return site
  }

  settings(flags: Readonly<Record<string, string>> = {}): AgentSettings {
    const tokenFile = join(this.directory, 'token')
    writeFileSync(tokenFile, this.#token)
    return loadSettings(agentOptions, {
      file: null,
      env: {},
      flags: {
        'state-directory': join(this.directory, 'state'),
        'socket-path': join(this.directory, 'agent.sock'),
        'enrollment-token-file': tokenFile,
        'sync-interval': '1s',
        ...flags,
      },
      readText: () => this.#token,
    })
  }

  async start(flags: Readonly<Record<string, string>> = {}): Promise<Agent> {
    const agent = await composeAgent(this.settings(flags), {
      log: pino({ level: 'silent' }),
      push: null,
      exchange: async (request) => {
        if (!this.isOnline) throw new CodedError('CLOUD_UNREACHABLE', 'the line is cut')
        return this.cloud.exchange(request)
      },
    })
    onTestFinished(() => agent.stop())
    return agent
  }
}

class Application {
  readonly #client: HttpClient

  constructor(agent: Agent) {
    this.#client = new HttpClient({ address: `unix:${agent.socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
    onTestFinished(() => this.#client[Symbol.dispose]())
  }

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

const code = ({ requestedItems }: AccessResponse): string | undefined => requestedItems[0]?.status.code

describe('the agent', () => {
  it('enrolls, takes rules and tokens, decides, delivers, and is billed what it has charged', async () => {
    const site = await Site.make()
    const application = new Application(await site.start())
    const ready = await application.until(({ accounts }) => accounts.length > 0)
    expect(ready).toMatchObject({ connected: true, incarnation: 1, policies: [{ instanceId: INSTANCE, applied: 1 }] })

    expect(code(await application.ask(2.5))).toBe('101')
    expect(code(await application.ask(40))).toBe('101')
    const delivered = await application.until(({ backlog, lastEntry }) => lastEntry === 2 && backlog === 0)
    expect(site.cloud.billedOn(ACCOUNT)).toBe(42_500_000n)
    expect(delivered.accounts.map(billed)).toEqual([42_500_000n])
    expect(site.cloud.alarms).toEqual([])
  })

  it('asks the cloud for a request that is larger than its grant, and the pool is never oversold', async () => {
    const site = await Site.make()
    const application = new Application(await site.start({ 'sync-interval': '1h' }))
    await application.until(({ accounts }) => accounts.length > 0)
    expect(code(await application.ask(700))).toBe('101')
    expect(code(await application.ask(700))).not.toBe('101')
    expect(code(await application.ask(250))).toBe('101')
    expect(site.cloud.outOn(ACCOUNT) <= 1_000_000_000n).toBe(true)
  })

  it('goes on offline within its grant, over restarts, and delivers everything when the line is back', async () => {
    const site = await Site.make()
    const first = await site.start()
    await new Application(first).until(({ accounts }) => accounts.length > 0)
    expect(code(await new Application(first).ask(10))).toBe('101')
    await first.stop()

    site.isOnline = false
    const second = await site.start()
    const application = new Application(second)
    expect(code(await application.ask(30))).toBe('101')
    expect(code(await application.ask(500))).toBe('208')
    const alone = await application.status()
    expect(alone).toMatchObject({ connected: false, lastEntry: 3 })
    expect(alone.backlog).toBeGreaterThanOrEqual(2)
    await second.stop()

    site.isOnline = true
    const third = new Application(await site.start())
    expect(code(await third.ask(1))).toBe('101')
    await third.until(({ backlog, connected }) => connected && backlog === 0)
    expect(site.cloud.billedOn(ACCOUNT)).toBe(41_000_000n)
    expect(site.cloud.alarms).toEqual([])
  })

  it('gives a retry the answer that it had before the restart', async () => {
    const site = await Site.make()
    const first = await site.start()
    await new Application(first).until(({ accounts }) => accounts.length > 0)
    const session = { 'x-tallygate-session': 'app', 'x-tallygate-request': '1' }
    const answer = await new Application(first).ask(10, session)
    await first.stop()
    site.isOnline = false
    const again = new Application(await site.start())
    expect(await again.ask(10, session)).toEqual(answer)
    expect((await again.status()).accounts.map(billed)).toEqual([10_000_000n])
  })

  it('shares neither its state nor its socket with a second one', async () => {
    const site = await Site.make()
    const agent = await site.start()
    await expect(site.start()).rejects.toMatchObject({ code: 'STATE_IN_USE' })
    const elsewhere = join(site.directory, 'elsewhere')
    await expect(site.start({ 'state-directory': elsewhere })).rejects.toMatchObject({ code: 'SOCKET_IN_USE' })
    expect((await new Application(agent).status()).version).toMatch(/^\d/)
    // What could not start has let go of what it held.
    const socket = { 'state-directory': elsewhere, 'socket-path': join(site.directory, 'other.sock') }
    await (await site.start(socket)).stop()
  })

  it('starts where the cloud is out of reach and it belongs to none yet, and says so', async () => {
    const site = await Site.make()
    site.isOnline = false
    const agent = await site.start()
    const application = new Application(agent)
    await expect(application.ask(1)).rejects.toMatchObject({ code: 'NOT_ENROLLED' })
    expect(await application.status()).toMatchObject({ deviceId: null, incarnation: 0, accounts: [] })
    await agent.stop()
    await agent.ended
    expect(existsSync(agent.socketPath)).toBe(false)
  })
})
