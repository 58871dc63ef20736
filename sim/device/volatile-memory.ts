/**
 * What a board keeps in memory outside of the process: the volatile log of a device that answers ahead of its disk. It
 * outlives the process and not the power. A record is written as a whole; that it may be cut off is tested where it is
 * framed.
 */
import type { PendingEntry } from '../../src/agent/ledger/journal.ts'
import type { Anchor, LeftLog, VolatileLog } from '../../src/agent/ledger/volatile-log.ts'
import { copyOf } from './copy-of.ts'

interface Part {
  readonly anchors: Anchor[]
  entries: PendingEntry[]
}

export class VolatileMemory {
  #left: { readonly bootId: string; readonly epoch: number; readonly shares: Part[] } | null = null

  /** Something was spent that is on no disk. */
  get isAhead(): boolean {
    return this.#left?.shares.some(({ entries }) => entries.some(({ postings }) => postings.length > 0)) ?? false
  }

  /** What a process that starts now finds. */
  left(): LeftLog | undefined {
    if (this.#left === null) return undefined
    const { shares, epoch, bootId } = this.#left
    return {
      bootId,
      epoch,
      anchors: shares.flatMap(({ anchors }) => anchors),
      entries: shares.flatMap(({ entries }) => entries),
    }
  }

  /** The power is off. */
  clear(): void {
    this.#left = null
  }

  /**
   * As one process on a boot sees it.
   *
   * @param alive a process that is gone writes nothing more
   * @param onWritten hears of what may be answered from here on
   * @param onRetracted entries from this number on have never happened
   */
  log(
    bootId: string,
    alive: () => boolean,
    onWritten: (entries: readonly PendingEntry[]) => void,
    onRetracted: (from: number) => void,
  ): VolatileLog & { readonly left: () => LeftLog | undefined } {
    const newest = (): Part => {
      const part = this.#left?.shares.at(-1)
      if (part === undefined) throw new Error('the volatile log is not open')
      return part
    }
    return {
      left: () => this.left(),
      begin: (epoch, anchor) => {
        if (alive()) this.#left = { bootId, epoch, shares: [{ anchors: [anchor], entries: [] }] }
      },
      write: (entries) => {
        if (!alive()) return
        newest().entries.push(...copyOf(entries))
        onWritten(entries)
      },
      retract: (from) => {
        for (const share of this.#left?.shares ?? []) share.entries = share.entries.filter(({ n }) => n < from)
        onRetracted(from)
      },
      turn: () => {
        newest()
        this.#left?.shares.push({ anchors: [], entries: [] })
      },
      forget: (anchor) => {
        newest().anchors.push(anchor)
        this.#left?.shares.splice(0, this.#left.shares.length - 1)
      },
      remove: () => {
        if (alive()) this.#left = null
      },
    }
  }
}
