/** A device's keys, derived from its name; they outlive its processes. */
import type { DeviceKeys } from '../../src/agent/keys/device-key.ts'
import type { KeyLink } from '../../src/protocol/edge/device-key.ts'
import { type KeyPair, keyPair } from '../world/signatures.ts'

export class MachineKeys implements DeviceKeys {
  readonly #name: string
  #made = 0
  current: KeyPair
  next: KeyPair | null
  links: readonly KeyLink[]

  /** @param copied keys of the machine whose state directory this one has; null: it has its own */
  constructor(name: string, copied: MachineKeys | null = null) {
    this.#name = name
    this.current = copied?.current ?? keyPair(name)
    this.next = copied?.next ?? null
    this.links = copied?.links ?? []
  }

  async prepare(): Promise<KeyPair> {
    this.next ??= keyPair(`${this.#name}, key ${(this.#made += 1)}`)
    return this.next
  }

  async discard(): Promise<void> {
    this.next = null
  }

  async replace(links: readonly KeyLink[]): Promise<void> {
    if (this.next === null) throw new Error('invariant: only a key that is there takes the place')
    this.current = this.next
    this.next = null
    this.links = links
  }
}
