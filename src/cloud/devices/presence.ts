/** As far as this node has observed. Display only: at an external broker, other publishers could fake it. */
import { presenceTopic, readPresence } from '../../protocol/push.ts'
import { uuid } from '../../protocol/wire.ts'

export interface DevicePresence {
  readonly online: boolean
  readonly since: number
}

const DEVICES_MAX = 100_000

export class Presence {
  readonly #now: () => number
  readonly #devices = new Map<string, DevicePresence>()

  constructor(now: () => number) {
    this.#now = now
  }

  of(deviceId: string): DevicePresence | null {
    return this.#devices.get(deviceId) ?? null
  }

  set(deviceId: string, online: boolean): void {
    const known = this.#devices.get(deviceId)
    if (known?.online === online) return
    this.#devices.delete(deviceId)
    this.#devices.set(deviceId, { online, since: this.#now() })
    const [oldest] = this.#devices.keys()
    if (this.#devices.size > DEVICES_MAX && oldest !== undefined) this.#devices.delete(oldest)
  }

  hear(topic: string, payload: Uint8Array): void {
    const deviceId = topic.split('/')[3] ?? ''
    if (!uuid.safeParse(deviceId).success || topic !== presenceTopic(deviceId)) return
    const presence = readPresence(payload)
    if (presence !== undefined) this.set(deviceId.toLowerCase(), presence.online)
  }
}
