/** A device's keys, derived from its name; they outlive its processes. */
import type { DeviceKeys } from '../../src/agent/keys/device-key.ts'
import { type KeyPair, keyPair } from '../world/signatures.ts'

export class MachineKeys implements DeviceKeys {
  readonly #name: string
  readonly #first: KeyPair
  #made = 0
  current: KeyPair
  next: KeyPair | null

  /** @param copied keys of the machine whose state directory this one has; null: it has its own */
  constructor(name: string, copied: MachineKeys | null = null) {
    this.#name = name
    this.#first = copied === null ? keyPair(name) : copied.#first
    this.current = copied?.current ?? this.#first
    this.next = copied?.next ?? null
  }

  get wasReplaced(): boolean {
    return this.current !== this.#first
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
