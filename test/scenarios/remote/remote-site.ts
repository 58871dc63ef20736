// Broker, cloud and agent as processes, with the commands that people use.
import { execFile } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { Site } from '../../../bench/push/site.ts'
import { type DeviceState, deviceState } from '../../../src/protocol/edge/administration.ts'
import type { AgentStatus } from '../../../src/protocol/local/status.ts'
import { poll } from './poll.ts'
import { COMMAND } from '../../support/command.ts'

const READY_MS = 30_000
const run = promisify(execFile)

export class RemoteSite implements AsyncDisposable {
  readonly directory: string
  readonly site: Site
  deviceId = ''
  #opened = new AsyncDisposableStack()

  private constructor(directory: string, site: Site) {
    this.directory = directory
    this.site = site
  }

  /** With an enrolled device. */
  static async open(
    isReady: (status: AgentStatus) => boolean,
    signal = AbortSignal.timeout(READY_MS),
  ): Promise<RemoteSite> {
    await using opened = new AsyncDisposableStack()
    const directory = await mkdtemp(join(tmpdir(), 'tallygate-remote-'))
    opened.defer(() => rm(directory, { recursive: true, force: true }))
    const remote = new RemoteSite(directory, opened.use(await Site.open(directory)))
    await remote.site.startAgent(await remote.site.enrollmentToken())
    remote.deviceId = (await poll(() => remote.site.status(), isReady, signal)).deviceId ?? ''
    remote.#opened = opened.move()
    return remote
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#opened.disposeAsync()
  }

  until(isSo: (status: AgentStatus) => boolean): Promise<AgentStatus> {
    return poll(() => this.site.status(), isSo)
  }

  async askUntilGranted(): Promise<void> {
    await poll(
      () => this.site.ask().catch(String),
      (answer) => answer.includes('"1001"'),
    )
  }

  async tallygate(...args: string[]): Promise<string> {
    const env = { ...process.env, TALLYGATE_AGENT_STATE_DIRECTORY: join(this.directory, 'agent') }
    return (await run(process.execPath, [COMMAND, ...args], { env })).stdout
  }

  local(...args: string[]): Promise<string> {
    return this.tallygate(...args, '--socket', this.site.socketPath)
  }

  devices(...args: string[]): Promise<string> {
    return this.#asAdministrator('devices', ...args)
  }

  /** The lines of the audit about the device. */
  audited(): Promise<string> {
    return this.#asAdministrator('audit', 'list', '--device', this.deviceId)
  }

  async shown(): Promise<DeviceState> {
    return deviceState.parse(JSON.parse(await this.devices('show', this.deviceId, '--json')))
  }

  #asAdministrator(...args: string[]): Promise<string> {
    return this.tallygate(...args, '--url', this.site.url, '--admin-key', this.site.adminKeyFile)
  }
}
