/**
 * The volatile log of a board with write-behind: outlives the process, not the power. It can be full. Records are atomic
 * here; torn ones are tested with their framing.
 */
import type { PendingEntry } from '../../src/agent/ledger/journal.ts'
import type { Anchor, LeftLog, LogOwner, VolatileLog } from '../../src/agent/ledger/volatile-log.ts'
import { copyOf } from './copy-of.ts'

interface Part {
  readonly anchors: Anchor[]
  entries: PendingEntry[]
}

export const NO_SPACE = Object.assign(new Error('the volatile log is full'), { code: 'ENOSPC' })

/** Calls that need space. */
export const LOG_CALLS = ['begin', 'write', 'turn', 'forget'] as const

export type LogCall = (typeof LOG_CALLS)[number]

export class VolatileMemory {
  /** Calls for which there is no space. */
  full: ReadonlySet<LogCall> = new Set()
  #left: { readonly bootId: string; readonly owner: LogOwner; readonly shares: Part[] } | null = null

  /** Some spending is not on disk. */
  get isAhead(): boolean {
    return this.#left?.shares.some(({ entries }) => entries.some(({ postings }) => postings.length > 0)) ?? false
  }

  left(): LeftLog | undefined {
    if (this.#left === null) return undefined
    const { shares, owner, bootId } = this.#left
    return {
      bootId,
      ...owner,
      anchors: shares.flatMap(({ anchors }) => anchors),
      entries: shares.flatMap(({ entries }) => entries),
    }
  }

  clear(): void {
    this.#left = null
  }

  /**
   * One process's view during a boot.
   * @param alive an ended process writes nothing more
   * @param onWritten called with entries that may be answered
   * @param onRetracted called with the first number of the removed entries
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
    const needSpace = (call: LogCall): void => {
      if (this.full.has(call)) throw NO_SPACE
    }
    const remove = (): void => {
      this.#left = null
      onRetracted(1)
    }
    return {
      left: () => this.left(),
      begin: (owner, anchor) => {
        if (!alive()) return
        remove()
        needSpace('begin')
        this.#left = { bootId, owner, shares: [{ anchors: [anchor], entries: [] }] }
      },
      write: (entries) => {
        if (!alive()) return
        needSpace('write')
        newest().entries.push(...copyOf(entries))
        onWritten(entries)
      },
      retract: (from) => {
        for (const share of this.#left?.shares ?? []) share.entries = share.entries.filter(({ n }) => n < from)
        onRetracted(from)
      },
      turn: () => {
        newest()
        needSpace('turn')
        this.#left?.shares.push({ anchors: [], entries: [] })
      },
      forget: (anchor) => {
        needSpace('forget')
        newest().anchors.push(anchor)
        this.#left?.shares.splice(0, this.#left.shares.length - 1)
      },
      remove: () => {
        if (alive()) remove()
      },
    }
  }
}
