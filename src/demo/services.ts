/** The demo's two services, with short intervals so that a day takes seconds. */
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { z } from 'zod'
import { entryPointBeside } from '../platform/entry-point-beside.ts'
import { CodedError } from '../protocol/errors.ts'
import { type ServiceOptions, type ServiceProcess, startService } from './service-process.ts'

const LOOPBACK = '127.0.0.1'

abstract class Restartable {
  readonly #failing = Promise.withResolvers<never>()
  /** Rejects if it ends unexpectedly or cannot be restarted. Never resolves. */
  readonly failure = this.#failing.promise
  kills = 0
  #process: ServiceProcess | undefined
  #restarting: Promise<void> = Promise.resolve()

  constructor() {
    // Avoids an unhandled rejection while no caller waits.
    this.failure.catch(() => undefined)
  }

  protected abstract options(): ServiceOptions

  protected ready?(process: ServiceProcess): void

  async start(): Promise<void> {
    const options = this.options()
    const process = await startService(options)
    this.#process = process
    this.ready?.(process)
    void process.ended.then((code) => {
      if (this.#process === process)
        this.#failing.reject(new CodedError('DEMO_FAILED', `${options.name} ended unexpectedly with ${code}.`))
    })
  }

  killAndRestart(): void {
    this.kills += 1
    this.#restarting = this.#restarting.then(async () => {
      await this.#take()?.kill()
      await this.start()
    })
    this.#restarting.catch((error: unknown) => this.#failing.reject(error as Error))
  }

  async restarted(): Promise<void> {
    await this.#restarting
  }

  async stop(graceMs: number): Promise<void> {
    await this.#restarting.catch(() => undefined)
    await this.#take()?.stop(graceMs)
  }

  /** Returns the running process and marks its end as expected. */
  #take(): ServiceProcess | undefined {
    const process = this.#process
    this.#process = undefined
    return process
  }
}

interface TwinOptions {
  readonly directory: string
  readonly publicPorts: { readonly http: number; readonly push: number }
  readonly readyWithinMs: number
}

const twinListening = z.object({ http: z.url(), push: z.url(), adminKeyFile: z.string() })

export class Twin extends Restartable {
  /** Direct URL of the cloud with its prefix; devices use another. */
  url = ''
  httpPort = 0
  pushPort = 0
  adminKeyFile = ''
  readonly #options: TwinOptions

  constructor(options: TwinOptions) {
    super()
    this.#options = options
  }

  protected override options(): ServiceOptions {
    const { directory, publicPorts, readyWithinMs } = this.#options
    return {
      name: 'tallygate cloud',
      args: ['cloud'],
      env: {
        TALLYGATE_CLOUD_STORE_PATH: join(directory, 'cloud'),
        TALLYGATE_CLOUD_HTTP_HOST: LOOPBACK,
        // Any free port at the first start, the same one afterwards.
        TALLYGATE_CLOUD_HTTP_PORT: String(this.httpPort),
        TALLYGATE_CLOUD_HTTP_PUBLIC_URL: `http://${LOOPBACK}:${publicPorts.http}`,
        TALLYGATE_CLOUD_PUSH_PORT: String(this.pushPort),
        TALLYGATE_CLOUD_PUSH_PUBLIC_URL: `mqtt://${LOOPBACK}:${publicPorts.push}`,
        // Reports responses that violate the API description as errors.
        TALLYGATE_CLOUD_HTTP_CHECK_ANSWERS: 'true',
        // Represents one hour of a session.
        TALLYGATE_CLOUD_SESSIONS_TRIAL_INTERVAL: '500ms',
      },
      logFile: join(directory, 'cloud.log'),
      readyWithinMs,
    }
  }

  protected override ready({ listening }: ServiceProcess): void {
    const { http, push, adminKeyFile } = twinListening.parse(listening)
    this.url = http
    this.httpPort = Number(new URL(http).port)
    this.pushPort = Number(new URL(push).port)
    this.adminKeyFile = adminKeyFile
  }
}

interface AgentOptions {
  readonly directory: string
  readonly enrollmentToken: string
  readonly readyWithinMs: number
  /** File with the device's clock error in ms; omitted: the clock is correct. */
  readonly clockErrorFile?: string
}

const STEPPED_CLOCK = entryPointBeside(import.meta.url, 'stepped-clock')

export class Agent extends Restartable {
  readonly socketPath: string
  readonly #options: AgentOptions

  constructor(options: AgentOptions) {
    super()
    this.#options = options
    this.socketPath = join(options.directory, 'agent.sock')
  }

  protected override options(): ServiceOptions {
    const { directory, enrollmentToken, readyWithinMs, clockErrorFile } = this.#options
    const tokenFile = join(directory, 'enrollment-token')
    writeFileSync(tokenFile, enrollmentToken, { mode: 0o600 })
    mkdirSync(join(directory, 'agent'), { recursive: true })
    return {
      name: 'tallygate agent',
      args: ['agent'],
      env: {
        TALLYGATE_AGENT_SOCKET_PATH: this.socketPath,
        TALLYGATE_AGENT_STATE_DIRECTORY: join(directory, 'agent'),
        TALLYGATE_AGENT_ENROLLMENT_TOKEN_FILE: tokenFile,
        // A real device may take minutes to reconnect; the demo should not.
        TALLYGATE_AGENT_SYNC_INTERVAL: '1s',
        TALLYGATE_AGENT_SYNC_BACKOFF_MIN: '50ms',
        TALLYGATE_AGENT_SYNC_BACKOFF_MAX: '1s',
        ...(clockErrorFile === undefined ? {} : { DEMO_CLOCK_ERROR_FILE: clockErrorFile }),
      },
      ...(clockErrorFile === undefined ? {} : { preload: STEPPED_CLOCK }),
      logFile: join(directory, 'agent.log'),
      readyWithinMs,
    }
  }
}
