/**
 * Entries that were answered but are not yet in the journal (write-behind). It survives the process, not the machine,
 * so it is used only if it fits the journal: same boot, same device, same epoch, and a chain that includes the journal's head.
 */
import { entryHash } from '../../protocol/signing.ts'
import type { PendingEntry, Snapshot } from './journal.ts'

/** The hash chain over the journal's entries up to `n` ends in `head`. */
export interface Anchor {
  readonly n: number
  readonly head: string
}

/** Whose entries they are: a wiped state directory can become that of another device. */
export interface LogOwner {
  /** Null: not enrolled, so there are no entries. */
  readonly deviceId: string | null
  readonly epoch: number
}

/** Errors of the file system have codes. Those without one are broken invariants. */
export interface VolatileLog {
  /** Writes all entries or throws; does not flush. */
  write(entries: readonly PendingEntry[]): void
  /** Discards the entries of the last write, which the journal did not record. @param from its first entry */
  retract(from: number): void
  /** Starts a new part, which is forgotten separately. */
  turn(): void
  /** Forgets the parts before the last turn: they are in the journal. */
  forget(anchor: Anchor): void
  /** Empties the log. Throws when it cannot be written. */
  begin(owner: LogOwner, anchor: Anchor): void
  remove(): void
}

export interface LeftLog extends LogOwner {
  readonly bootId: string
  readonly anchors: readonly Anchor[]
  /** As written, without retracted ones. */
  readonly entries: readonly PendingEntry[]
}

export interface BootLog {
  readonly log: LeftLog
  readonly bootId: string
}

/** The log's entries that the journal lacks; undefined if it does not fit: then spending is unknown. */
export function missingFrom(
  left: LeftLog | undefined,
  { identity, epoch, lastEntry, entryHead }: Pick<Snapshot, 'identity' | 'epoch' | 'lastEntry' | 'entryHead'>,
  bootId: string,
): readonly PendingEntry[] | undefined {
  if (left?.bootId !== bootId || left.deviceId !== (identity?.deviceId ?? null) || left.epoch !== epoch)
    return undefined
  const anchor = left.anchors.at(-1)
  // The journal lost entries: it was restored.
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
