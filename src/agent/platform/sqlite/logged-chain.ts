/** The answered entries that the volatile log of an earlier process in this boot adds to a ledger. */
import { entryHash } from '../../../protocol/signing.ts'
import type { Identity, PendingEntry } from '../../ledger/journal.ts'
import type { Anchor, BootLog, LogOwner } from '../../ledger/volatile-log.ts'

export interface LoggedChain extends LogOwner {
  readonly anchor: Anchor
  readonly entries: ReadonlyMap<number, PendingEntry>
  readonly heads: ReadonlyMap<number, string>
  readonly lastEntry: number
}

/** False: the log is of a device whose state directory was at the same path. @param identity null: unknown */
export function mayBeOf({ deviceId }: LogOwner, identity: Identity | null): boolean {
  return identity === null || identity.deviceId === deviceId
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
  return { deviceId: log.deviceId, epoch: log.epoch, anchor, entries, heads, lastEntry: n }
}
