// Keys of a device that live as long as the test: files that outlive the process, with a crash where the disk has ordered one.
import type { KeyLink } from '../../../src/protocol/edge/device-key.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import type { Signer } from '../../../src/protocol/signing.ts'
import type { DeviceKey, DeviceKeys } from '../../../src/agent/keys/device-key.ts'
import type { TestDisk } from '../test-disk.ts'

/** What is on the disk. */
export interface KeyPlace {
  current: DeviceKey
  next: DeviceKey | null
  /** To the current one; absent: none. */
  links?: readonly KeyLink[]
}

export class MemoryKeys implements DeviceKeys {
  readonly #place: KeyPlace
  readonly #disk: TestDisk
  readonly #make: () => Promise<DeviceKey>
  current: DeviceKey
  next: DeviceKey | null
  links: readonly KeyLink[]
  /** Nothing can be written. */
  readOnly = false

  constructor(place: KeyPlace, disk: TestDisk, make: () => Promise<DeviceKey>) {
    this.#place = place
    this.#disk = disk
    this.#make = make
    this.current = place.current
    this.next = place.next
    this.links = place.links ?? []
  }

  async prepare(): Promise<DeviceKey> {
    if (this.next !== null) return this.next
    const made = await this.#make()
    this.#write(() => (this.#place.next = made))
    this.next = made
    return made
  }

  async discard(): Promise<void> {
    this.#write(() => (this.#place.next = null))
    this.next = null
  }

  async replace(links: readonly KeyLink[]): Promise<void> {
    const { next } = this
    if (next === null) throw new Error('invariant: only a key that is there takes the place')
    this.#write(() => Object.assign(this.#place, { current: next, next: null, links }))
    this.current = next
    this.links = links
    this.next = null
  }

  #write(change: () => unknown): void {
    if (this.readOnly) throw new CodedError('STATE_UNWRITABLE', 'the directory is read-only')
    change()
    if (this.#disk.committed()) throw new Error('the power was cut after the commit')
  }
}

/** Signs with the key that is in use at that moment. */
export function signerOf(keys: () => DeviceKeys): Signer {
  return {
    get keyId() {
      return keys().current.signer.keyId
    },
    get privateKey() {
      return keys().current.signer.privateKey
    },
  }
}
