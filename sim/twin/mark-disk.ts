/** The sales mark's file: survives the process and database restores. A power cut loses unflushed writes. */
import type { MarkFile } from '../../src/cloud/sync/recovery/mark-file.ts'

export class MarkDisk {
  #written: string[] | null = null
  #flushed: string[] | null = null
  #boots = 0

  /** The file for one process. @param requireAlive throws after its end */
  file(requireAlive: () => void): MarkFile {
    const slots = (): string[] => {
      requireAlive()
      if (this.#written === null) throw new Error('a mark is begun before it is written')
      return this.#written
    }
    const flush = (): void => {
      this.#flushed = [...slots()]
    }
    return {
      bootId: String(this.#boots),
      read: () =>
        this.#written === null ? 'MISSING' : Array.from(this.#written, (text: string | undefined) => text ?? ''),
      begin: () => {
        requireAlive()
        this.#written = []
        flush()
      },
      write: (slot, text) => {
        slots()[slot] = text
      },
      flush,
      flushLater: async () => flush(),
      place: () => 'the only one',
    }
  }

  powerCut(): void {
    this.#boots += 1
    this.#written = this.#flushed === null ? null : [...this.#flushed]
  }
}
