/** The two services of the demo, with the settings that make a day fit into seconds. */
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { z } from 'zod'
import { CodedError } from '../protocol/errors.ts'
import { type ServiceProcess, startService } from './service-process.ts'

export interface Twin {
  readonly process: ServiceProcess
  /** As the twin itself is reached, with its prefix; devices use another way. */
  readonly url: string
  readonly httpPort: number
  readonly pushPort: number
  readonly adminKeyFile: string
}

const LOOPBACK = '127.0.0.1'

const twinListening = z.object({ http: z.url(), push: z.url(), adminKeyFile: z.string() })

export async function startTwin(order: {
  readonly directory: string
  readonly publicPorts: { readonly http: number; readonly push: number }
  readonly readyWithinMs: number
}): Promise<Twin> {
  const { directory, publicPorts, readyWithinMs } = order
  const process = await startService({
    name: 'tallygate cloud',
    args: ['cloud'],
    env: {
      TALLYGATE_CLOUD_STORE_PATH: join(directory, 'cloud'),
      TALLYGATE_CLOUD_HTTP_HOST: LOOPBACK,
      TALLYGATE_CLOUD_HTTP_PORT: '0',
      TALLYGATE_CLOUD_HTTP_PUBLIC_URL: `http://${LOOPBACK}:${publicPorts.http}`,
      TALLYGATE_CLOUD_PUSH_PORT: '0',
      TALLYGATE_CLOUD_PUSH_PUBLIC_URL: `mqtt://${LOOPBACK}:${publicPorts.push}`,
    },
    logFile: join(directory, 'cloud.log'),
    readyWithinMs,
  })
  const { http, push, adminKeyFile } = twinListening.parse(process.listening)
  return {
    process,
    url: http,
    httpPort: Number(new URL(http).port),
    pushPort: Number(new URL(push).port),
    adminKeyFile,
  }
}

/** The agent, which can be killed and started again on the same state as often as one likes. */
export class Agent {
  readonly socketPath: string
  /** Rejects when the agent ends without having been asked to, or cannot be started again. Never resolves. */
  readonly failure: Promise<never>
  kills = 0
  readonly #order: AgentOrder
  #process: ServiceProcess | undefined
  #restarting: Promise<void> = Promise.resolve()
  #fail: (error: Error) => void = () => undefined

  constructor(order: AgentOrder) {
    this.#order = order
    this.socketPath = join(order.directory, 'agent.sock')
    this.failure = new Promise((_resolve, reject) => (this.#fail = reject))
    // Whoever waits for something races with it; nobody may wait at the moment when it happens.
    this.failure.catch(() => undefined)
  }

  async start(): Promise<void> {
    const { directory, enrollmentToken, readyWithinMs } = this.#order
    const tokenFile = join(directory, 'enrollment-token')
    writeFileSync(tokenFile, enrollmentToken, { mode: 0o600 })
    mkdirSync(join(directory, 'agent'), { recursive: true })
    const process = await startService({
      name: 'tallygate agent',
      args: ['agent'],
      env: {
        TALLYGATE_AGENT_SOCKET_PATH: this.socketPath,
        TALLYGATE_AGENT_STATE_DIRECTORY: join(directory, 'agent'),
        TALLYGATE_AGENT_ENROLLMENT_TOKEN_FILE: tokenFile,
        // A device in the field may take minutes to come back; nobody wants to watch that.
        TALLYGATE_AGENT_SYNC_INTERVAL: '1s',
        TALLYGATE_AGENT_SYNC_BACKOFF_MIN: '50ms',
        TALLYGATE_AGENT_SYNC_BACKOFF_MAX: '1s',
      },
      logFile: join(directory, 'agent.log'),
      readyWithinMs,
    })
    this.#process = process
    void process.ended.then((code) => {
      if (this.#process === process)
        this.#fail(new CodedError('DEMO_FAILED', `tallygate agent ended by itself with ${code}.`))
    })
  }

  /** Kills it with SIGKILL at once, and starts it again. */
  killAndRestart(): void {
    this.kills += 1
    this.#restarting = this.#restarting.then(async () => {
      await this.#take()?.kill()
      await this.start()
    })
    this.#restarting.catch((error: unknown) => this.#fail(error as Error))
  }

  /** Resolves when no restart is under way. */
  async restarted(): Promise<void> {
    await this.#restarting
  }

  async stop(graceMs: number): Promise<void> {
    await this.#restarting.catch(() => undefined)
    await this.#take()?.stop(graceMs)
  }

  /** The running process, whose end is expected from now on. */
  #take(): ServiceProcess | undefined {
    const process = this.#process
    this.#process = undefined
    return process
  }
}

interface AgentOrder {
  readonly directory: string
  readonly enrollmentToken: string
  readonly readyWithinMs: number
}
