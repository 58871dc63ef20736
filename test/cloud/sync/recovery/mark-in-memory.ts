// The file of a sales mark in memory, as a machine keeps it, with its flushes and mishaps.
import type { MarkFile } from '../../../../src/cloud/sync/recovery/mark-file.ts'
import { CodedError } from '../../../../src/protocol/errors.ts'

export class MarkInMemory implements MarkFile {
  bootId: string | null = 'boot'
  flushes = 0
  fails = false
  isDamaged = false
  #place: string
  #written: string[] = []
  #flushed: string[] = []

  constructor(place = 'here') {
    this.#place = place
  }

  read(): readonly string[] | 'MISSING' | 'DAMAGED' {
    if (this.isDamaged) return 'DAMAGED'
    if (this.#written.length === 0) return 'MISSING'
    return Array.from(this.#written, (text: string | undefined) => text ?? '')
  }

  begin(): void {
    this.#written = []
  }

  write(slot: number, text: string): void {
    if (this.fails) throw new CodedError('NOT_RECORDED', 'the disk is full')
    this.#written[slot] = text
  }

  flush(): void {
    this.flushes += 1
    this.#flushed = [...this.#written]
  }

  async flushLater(): Promise<void> {
    this.flush()
  }

  place(): string {
    return this.#place
  }

  powerCut(): void {
    if (this.bootId !== null) this.bootId += '+'
    this.#written = [...this.#flushed]
  }

  /** The same file in another place. */
  copyTo(place: string): MarkInMemory {
    const copy = new MarkInMemory(place)
    copy.#written = [...this.#written]
    return copy
  }
}
