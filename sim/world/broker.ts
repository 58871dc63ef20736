/**
 * The broker of change notifications: messages are lost, delayed and duplicated; an unreachable device has no
 * connection.
 */
import type { Push, PushOptions } from '../../src/agent/sync/push.ts'
import type { PushMessage } from '../../src/cloud/devices/publish-notifications.ts'
import { deviceTopic, policyTopic } from '../../src/protocol/push.ts'
import type { PushWeather } from '../plan.ts'
import type { Random } from './random.ts'
import type { Scheduler } from './scheduler.ts'

export interface BrokerDeps {
  readonly scheduler: Scheduler
  readonly random: Random
  readonly onFault: (kind: string) => void
}

interface Way {
  readonly isCut: () => boolean
  /** Calls later unless the process has ended. */
  readonly after: (ms: number, call: () => void) => () => void
}

interface Connection extends PushOptions, Way {}

export const CALM_PUSH: PushWeather = { lost: 0, doubled: 0, late: 0, lateMax: 0 }

/** Time to connect, and to detect a lost connection, ms. */
const CONNECT_MS = 1_000
const KEEP_ALIVE_MS = 60_000

export class Broker {
  weather: PushWeather
  readonly isConnected = true
  readonly #deps: BrokerDeps
  readonly #retained = new Map<string, PushMessage>()
  readonly #connections = new Set<Connection>()

  constructor(deps: BrokerDeps, weather: PushWeather) {
    this.#deps = deps
    this.weather = weather
  }

  async publish(message: PushMessage): Promise<void> {
    if (message.retain) this.#retained.set(message.topic, message)
    for (const connection of this.#connections) {
      if (topicsOf(connection).includes(message.topic)) this.#send(connection, message)
    }
  }

  pushFor(way: Way): Push {
    return {
      run: (options, signal) =>
        new Promise((resolve) => {
          const connection: Connection = { ...options, ...way }
          let cancel = (): void => undefined
          const look = (): void => {
            if (signal.aborted) return
            const isConnected = this.#connections.has(connection)
            if (way.isCut() && isConnected) {
              this.#connections.delete(connection)
              options.onConnection(false)
            } else if (!way.isCut() && !isConnected) this.#connect(connection)
            cancel = way.after(KEEP_ALIVE_MS, look)
          }
          cancel = way.after(CONNECT_MS, look)
          signal.addEventListener('abort', () => {
            cancel()
            this.#connections.delete(connection)
            resolve()
          })
        }),
    }
  }

  #connect(connection: Connection): void {
    this.#connections.add(connection)
    connection.onConnection(true)
    for (const topic of topicsOf(connection)) {
      const message = this.#retained.get(topic)
      if (message !== undefined) this.#send(connection, message)
    }
  }

  #send(connection: Connection, { topic, payload }: PushMessage): void {
    const { random, onFault } = this.#deps
    const { lost, doubled, late, lateMax } = this.weather
    if (connection.isCut() || random.chance(lost)) {
      onFault('push message lost')
      return
    }
    const copies = random.chance(doubled) ? 2 : 1
    if (copies > 1) onFault('push message doubled')
    for (let copy = 0; copy < copies; copy += 1) {
      const isLate = random.chance(late)
      if (isLate) onFault('push message late')
      connection.after(isLate ? random.spread(1_000, lateMax) : random.whole(5, 60), () =>
        connection.onMessage(topic, payload),
      )
    }
  }
}

function topicsOf({ deviceId, instanceIds }: PushOptions): readonly string[] {
  return [deviceTopic(deviceId), ...instanceIds.map(policyTopic)]
}
