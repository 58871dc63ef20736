/**
 * Disk space that is set aside as a file of its own, so that a device with a full disk can still seal and deliver what it
 * owes: releasing the file makes room for the last segments. Doing without it is never an error.
 */
import { closeSync, fsyncSync, openSync, rmSync, statSync, writeSync } from 'node:fs'

const PAGE_BYTES = 4096

export class Slack {
  readonly #path: string
  readonly #bytes: number

  constructor(path: string, pages: number) {
    this.#path = path
    this.#bytes = pages * PAGE_BYTES
  }

  /** Sets the space aside, as real blocks, if it is not. */
  fill(): void {
    if (this.#size() === this.#bytes) return
    try {
      const file = openSync(this.#path, 'w', 0o600)
      try {
        const block = Buffer.alloc(64 * PAGE_BYTES)
        for (let left = this.#bytes; left > 0; left -= block.length)
          writeSync(file, block, 0, Math.min(left, block.length))
        fsyncSync(file)
      } finally {
        closeSync(file)
      }
    } catch {
      this.release()
    }
  }

  /** Gives the space back to the file system. True when there was any. */
  release(): boolean {
    const had = this.#size() > 0
    rmSync(this.#path, { force: true })
    return had
  }

  #size(): number {
    return statSync(this.#path, { throwIfNoEntry: false })?.size ?? 0
  }
}
