// An MQTT client of the tests that keeps what it hears until a test asks for it.
import { type IClientOptions, type MqttClient, connectAsync } from 'mqtt'

export interface Heard {
  readonly topic: string
  readonly payload: unknown
  readonly retained: boolean
}

export class Listener implements AsyncDisposable {
  readonly client: MqttClient
  readonly closed: Promise<void>
  readonly #heard: Heard[] = []
  readonly #waiting: ((heard: Heard) => void)[] = []

  private constructor(client: MqttClient) {
    this.client = client
    this.closed = new Promise((resolve) => client.once('close', () => resolve()))
    client.on('error', () => undefined)
    client.on('message', (topic, payload, { retain }) => {
      const heard: Heard = { topic, payload: JSON.parse(payload.toString('utf8')) as unknown, retained: retain }
      const waiting = this.#waiting.shift()
      if (waiting === undefined) this.#heard.push(heard)
      else waiting(heard)
    })
  }

  /** Rejects when the broker refuses. */
  static async connect(url: string, options: IClientOptions): Promise<Listener> {
    return new Listener(
      await connectAsync(url, { protocolVersion: 4, reconnectPeriod: 0, clean: true, ...options }, false),
    )
  }

  /** The granted qualities of service; 128 where the broker refuses the topic. */
  async subscribe(...topics: string[]): Promise<number[]> {
    return new Promise((resolve, reject) => {
      this.client.subscribe(topics, { qos: 1 }, (error, granted, packet) => {
        const codes = (packet?.granted ?? granted?.map(({ qos }) => qos)) as number[] | undefined
        if (codes === undefined) reject(error ?? new Error('the broker did not answer'))
        else resolve(codes)
      })
    })
  }

  async next(): Promise<Heard> {
    const heard = this.#heard.shift()
    return heard ?? new Promise((resolve) => this.#waiting.push(resolve))
  }

  /** What was heard and not asked for. */
  get rest(): readonly Heard[] {
    return this.#heard
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.client.endAsync(true)
  }
}
