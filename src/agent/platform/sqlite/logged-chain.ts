/** The answered entries that the volatile log of an earlier process in this boot adds to a ledger. */
import { entryHash } from '../../../protocol/signing.ts'
import type { PendingEntry } from '../../ledger/journal.ts'
import type { Anchor, BootLog } from '../../ledger/volatile-log.ts'

export interface LoggedChain {
  readonly epoch: number
  readonly anchor: Anchor
  readonly entries: ReadonlyMap<number, PendingEntry>
  readonly heads: ReadonlyMap<number, string>
  readonly lastEntry: number
}

/** Null: none, or the log is from another boot, or its entries have gaps, so that it cannot be trusted. */
export function loggedChain(left: BootLog | null): LoggedChain | null {
  if (left === null) return null
  const { log, bootId } = left
  const anchor = log.anchors.at(-1)
  if (log.bootId !== bootId || anchor === undefined) return null
  const entries = new Map<number, PendingEntry>()
  const heads = new Map([[anchor.n, anchor.head]])
  let { n, head } = anchor
  for (const entry of log.entries) {
    if (entry.n <= anchor.n) continue
    if (entry.n !== n + 1) return null
    n = entry.n
    head = entryHash(head, entry.body)
    entries.set(n, entry)
    heads.set(n, head)
  }
  return { epoch: log.epoch, anchor, entries, heads, lastEntry: n }
}
