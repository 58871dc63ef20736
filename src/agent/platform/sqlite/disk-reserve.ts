/** A file that is deleted when the disk is full, so that the device can still deliver. It may be missing. */
import { closeSync, fsyncSync, openSync, rmSync, statSync, writeSync } from 'node:fs'
import { hasSpace } from '../../../platform/disk-space.ts'
import type { JournalFile } from './journal-file.ts'

const CHUNK_BYTES = 256 * 1024

export class DiskReserve {
  readonly #path: string
  readonly #bytes: number

  constructor(path: string, bytes: number) {
    this.#path = path
    this.#bytes = bytes
  }

  /**
   * Allocates real blocks unless already done. False if the disk lacks the space.
   * @param log truncated if the disk then has enough space: on a full disk, the log stays long
   */
  fill(log?: Pick<JournalFile, 'logBytes' | 'truncateLog'>): boolean {
    if (this.#size() === this.#bytes) return true
    if (log !== undefined && !this.#hasSpace() && this.#hasSpace(log.logBytes)) log.truncateLog()
    if (!this.#hasSpace()) return false
    try {
      const file = openSync(this.#path, 'w', 0o600)
      try {
        const block = Buffer.alloc(CHUNK_BYTES)
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

  /** Frees the space. True if any was reserved. */
  release(): boolean {
    if (this.#size() === 0) return false
    try {
      rmSync(this.#path)
      return true
    } catch {
      return false
    }
  }

  /** Checked first: a failed attempt would fill a nearly full disk. The space of a file with another size counts as free. */
  #hasSpace(more = 0): boolean {
    return hasSpace(this.#path, this.#bytes - this.#size() - more)
  }

  #size(): number {
    const found = statSync(this.#path, { throwIfNoEntry: false })
    return found?.isFile() === true ? found.size : 0
  }
}
