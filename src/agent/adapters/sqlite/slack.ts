/**
 * Disk space that is set aside as a file of its own, so that a device with a full disk can still seal and deliver what it
 * owes: releasing the file makes room for the last segments. Doing without it is never an error.
 */
import { closeSync, fsyncSync, openSync, rmSync, statSync, statfsSync, writeSync } from 'node:fs'
import { dirname } from 'node:path'

const PAGE_BYTES = 4096

export class Slack {
  readonly #path: string
  readonly #bytes: number

  constructor(path: string, pages: number) {
    this.#path = path
    this.#bytes = pages * PAGE_BYTES
  }

  /** Sets the space aside, as real blocks, if it is not. False when the disk does not have it. */
  fill(): boolean {
    if (this.#size() === this.#bytes) return true
    if (!this.#isRoomy()) return false
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
      return true
    } catch {
      this.release()
      return false
    }
  }

  /** Gives the space back to the file system. True when there was any. */
  release(): boolean {
    if (this.#size() === 0) return false
    try {
      rmSync(this.#path)
      return true
    } catch {
      return false
    }
  }

  /** Looked at first, so that a disk that is nearly full is not written full for nothing. */
  #isRoomy(): boolean {
    const { bavail, bsize } = statfsSync(dirname(this.#path))
    return bavail * bsize > this.#bytes
  }

  #size(): number {
    const found = statSync(this.#path, { throwIfNoEntry: false })
    return found?.isFile() === true ? found.size : 0
  }
}
