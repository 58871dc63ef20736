/** A device's keys, derived from its name; they outlive its processes. */
import type { DeviceKeys } from '../../src/agent/keys/device-key.ts'
import { type KeyPair, keyPair } from '../world/signatures.ts'

export class MachineKeys implements DeviceKeys {
  readonly #name: string
  #made = 0
  current: KeyPair
  next: KeyPair | null = null

  constructor(name: string) {
    this.#name = name
    this.current = keyPair(name)
  }

  get wasReplaced(): boolean {
    return this.current !== keyPair(this.#name)
  }

  async prepare(): Promise<KeyPair> {
    this.next ??= keyPair(`${this.#name}, key ${(this.#made += 1)}`)
    return this.next
  }

  async discard(): Promise<void> {
    this.next = null
  }

  async replace(): Promise<void> {
    if (this.next === null) throw new Error('invariant: only a key that is there takes the place')
    this.current = this.next
    this.next = null
  }
}
