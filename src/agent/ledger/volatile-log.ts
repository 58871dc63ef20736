/**
 * The log of a device that spends ahead of its disk: entries that were answered and do not stand in the journal yet. It
 * survives the process and not the machine, so it is believed only when it fits the journal: same boot, same epoch,
 * and a chain of entries that goes through the journal's own head.
 */
import { entryHash } from '../../protocol/signing.ts'
import type { PendingEntry, Snapshot } from './journal.ts'

/** How far the journal is known to be: the hash chain over its entries up to `n` ends in `head`. */
export interface Anchor {
  readonly n: number
  readonly head: string
}

export interface VolatileLog {
  /** All of them, or none and it throws. Without a flush. */
  write(entries: readonly PendingEntry[]): void
  /** Entries from this number on never happened: the journal did not take them. */
  retract(from: number): void
  /** What is written from here on is forgotten apart from what was written before. */
  turn(): void
  /** What was written before the last turn stands in the journal. */
  forget(anchor: Anchor): void
  /** Begins anew, with nothing in it. Throws when it cannot be written. */
  begin(epoch: number, anchor: Anchor): void
  /** Leaves nothing behind. */
  remove(): void
}

/** What a log holds that an earlier process left behind. */
export interface LeftLog {
  readonly bootId: string
  readonly epoch: number
  readonly anchors: readonly Anchor[]
  /** In the order in which they were written; those that never happened are not among them. */
  readonly entries: readonly PendingEntry[]
}

/** What an earlier process left, and which boot this is. */
export interface BootLog {
  readonly log: LeftLog
  readonly bootId: string
}

/**
 * The entries of the log that the journal does not have, in order; undefined when the log does not fit the journal, so that
 * nothing can be said of what was spent since.
 *
 * @param bootId of this boot
 */
export function missingFrom(
  left: LeftLog | undefined,
  { epoch, lastEntry, entryHead }: Pick<Snapshot, 'epoch' | 'lastEntry' | 'entryHead'>,
  bootId: string,
): readonly PendingEntry[] | undefined {
  if (left?.bootId !== bootId || left.epoch !== epoch) return undefined
  const anchor = left.anchors.at(-1)
  // The journal has lost what it had: it went back in time.
  if (anchor === undefined || anchor.n > lastEntry) return undefined
  let { n, head } = anchor
  const missing: PendingEntry[] = []
  for (const entry of left.entries) {
    if (entry.n <= anchor.n) continue
    if (entry.n !== n + 1) return undefined
    ;({ n } = entry)
    if (n <= lastEntry) head = entryHash(head, entry.body)
    else missing.push(entry)
  }
  return n >= lastEntry && head === entryHead ? missing : undefined
}
