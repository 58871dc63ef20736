/**
 * Which devices are connected to the broker of change notifications, as this node has heard since it started. It is shown and decides
 * nothing: whoever may publish at a broker of somebody else's can say what he likes there.
 */
import { presenceTopic, readPresence } from '../../protocol/push.ts'
import { uuid } from '../../protocol/wire.ts'

export interface DevicePresence {
  readonly online: boolean
  /** POSIX ms. */
  readonly since: number
}

/** Devices of which something is remembered; beyond them the one that was heard of longest ago is forgotten. */
const DEVICES_MAX = 100_000

export class Presence {
  readonly #now: () => number
  readonly #devices = new Map<string, DevicePresence>()

  constructor(now: () => number) {
    this.#now = now
  }

  /** Null: nothing was heard. */
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

  /** A message at a broker; anything but the presence of a device is ignored. */
  hear(topic: string, payload: Uint8Array): void {
    const deviceId = topic.split('/')[3] ?? ''
    if (!uuid.safeParse(deviceId).success || topic !== presenceTopic(deviceId)) return
    const said = readPresence(payload)
    if (said !== undefined) this.set(deviceId.toLowerCase(), said.online)
  }
}
