/**
 * Shares an empty pool. A shortage sets a level for its account; devices above it return the rest at their next sync.
 * Unreturned tokens are never reassigned. Source: docs/decisions/fair-sharing.md.
 */
import type { AccountId } from '../../../core/accounts/account.ts'
import { type Micro, countable } from '../../../core/pricing/amount.ts'
import { recallLevel } from '../../../core/accounts/fair-share.ts'
import { RELEASES_MAX } from '../../../protocol/edge/sync.ts'
import { free } from '../../accounts/pool.ts'
import type { ChangeNotification, Pool } from '../../storage/records.ts'
import type { Transaction } from '../../storage/store.ts'
import { RECALLS_NOTIFIED_MAX } from '../../devices/limits.ts'
import type { AccountMove } from '../../accounts/move-pools.ts'
import type { Recall, Returnable, ShortTimes, Shortage, Shortages } from '../../storage/device-records.ts'
import type { MergeContext } from '../merge-context.ts'
import { type EdgeTerms, overdueBefore } from '../../devices/terms.ts'

/** How long after a shortage a device that does not use the account gets less of it in advance, ms. */
const REBALANCE_MS = 60 * 60_000

/** Shortest interval between notifications for one shortage, ms. */
const RECALL_AGAIN_MS = 1_000

/** Sync intervals for which a shortage reserves and recalls tokens: one to return them, one to retry. */
const SHORT_FOR_SYNCS = 2

type Terms = Pick<EdgeTerms, 'syncEveryMs'>

export interface ShortageTransaction {
  readonly outbox: Pick<Transaction['outbox'], 'append'>
  readonly edge: {
    readonly shortages: Pick<Transaction['edge']['shortages'], 'of' | 'save'>
    readonly deviceAccounts: Pick<Transaction['edge']['deviceAccounts'], 'availableOfOthers' | 'returnable'>
  }
}

export function shortTimes(now: number, terms: Terms): ShortTimes {
  return { since: now - REBALANCE_MS, until: now, shortSince: shortSince(now, terms) }
}

/** Tokens that the device must return. Reported spending is not a return: levels count from the balance before it. */
export async function recallsFrom(
  { tx, device, epoch, now, deps }: MergeContext,
  moves: readonly AccountMove[],
): Promise<readonly Recall[]> {
  const spent = new Map(
    moves.map(({ before, after }) => [after.account, after.used - after.refunded - before.used + before.refunded]),
  )
  const noted = { since: shortSince(now, deps.terms), until: now }
  const recalls = new Map<AccountId, Micro>()
  const found = await tx.edge.shortages.recallsFrom(device.id, epoch.number, noted, RELEASES_MAX)
  for (const { account, available, above } of found.aboveCaps) {
    recalls.set(account, available > above ? available - above : 0n)
  }
  for (const { account, keep, available } of found.recalls) {
    const used = spent.get(account) ?? 0n
    const level = used <= 0n ? keep : used < keep ? keep - used : 0n
    const other = recalls.get(account)
    if (available > level) recalls.set(account, other === undefined || level < other ? level : other)
  }
  return [...recalls].slice(0, RELEASES_MAX).map(([account, keep]) => ({ account, keep }))
}

interface Asking {
  readonly isInUse: boolean
  readonly wanted: Micro
  readonly share: Micro
  readonly usable: Micro
  readonly noted: Shortages
}

/** With a recent shortage, a device that does not use the account gets some in advance only if everyone could. */
export function spareFor({ isInUse, wanted, share, usable, noted }: Asking, now: number): Micro {
  const { othersLacking, othersRecalledAt } = noted
  const isRebalanced = othersRecalledAt !== null && othersRecalledAt > now - REBALANCE_MS
  if (isRebalanced && !isInUse && share < wanted) return 0n
  return usable - othersLacking
}

interface ShortageContext {
  readonly deps: { readonly terms: Terms }
  readonly tx: ShortageTransaction
  readonly now: number
}

export interface Lack {
  readonly pool: Pool
  readonly who: string
  readonly deviceId: string | null
  /** Missing free tokens; 0n: only needed in advance. */
  readonly lacking: Micro
  readonly recalled: Micro
  readonly usable: Micro
  readonly share: Micro
  readonly returnable: Returnable
  readonly noted: Shortages
}

/** Notes a shortage, and recalls tokens of other devices if they can end it. The account is locked. */
export async function noteLack(context: ShortageContext, lack: Lack): Promise<void> {
  const { deps, tx, now } = context
  const { pool, who, lacking, recalled, usable, returnable } = lack
  const before = lack.noted.own
  const isRecalled = recalled > 0n && returnable.all > 0n && lacking <= usable + returnable.all
  const enough = countable(free(pool) - usable + (lacking > 0n ? lacking : 1n))
  const isSame = before !== undefined && before.lacking > 0n && lacking > 0n && isShortNow(before, now, deps.terms)
  const since = isSame ? before.since : now
  const notifiedAt = before?.notifiedAt ?? null
  const note = { account: pool.account, who, lacking: countable(lacking), enough, since, at: now, notifiedAt }
  if (isRecalled) return recall(context, lack, note)
  // Nothing to recall: do not rewrite the note with every sync.
  if (before?.enough === enough && before.keep === null && before.at > now - REBALANCE_MS / 2) return
  await tx.edge.shortages.save({ ...note, keep: null, recalledAt: before?.recalledAt ?? null })
}

/** Saves how much each device may keep, and notifies those with more, until they can return what is missing. */
async function recall(
  { deps: { terms }, tx, now }: ShortageContext,
  { deviceId, lacking, recalled, share, noted }: Lack,
  note: Omit<Shortage, 'keep' | 'recalledAt'>,
): Promise<void> {
  const others = await tx.edge.deviceAccounts.availableOfOthers(
    note.account,
    deviceId ?? '',
    overdueBefore(now, terms),
    RECALLS_NOTIFIED_MAX,
  )
  const missing = recalled + noted.othersLacking
  const balances = others.map(({ available }) => available)
  // Returned tokens did not suffice, because devices had spent more than was known: recall everything.
  const isLate = now - note.since >= terms.syncEveryMs
  const keep = lacking === 0n ? share : isLate ? 0n : recallLevel(balances, share, missing)
  const againMs = lacking > 0n ? RECALL_AGAIN_MS : terms.syncEveryMs
  const notifiedLast = noted.own?.recalledAt ?? null
  const isNews = notifiedLast === null || notifiedLast <= now - againMs
  await tx.edge.shortages.save({ ...note, keep, recalledAt: isNews ? now : notifiedLast })
  if (!isNews) return
  const notifications: ChangeNotification[] = []
  let hoped = 0n
  for (const other of others) {
    if (hoped >= missing || other.available <= keep) break
    notifications.push({ kind: 'device', deviceId: other.deviceId, reason: 'sync' })
    hoped += other.available - keep
  }
  if (notifications.length > 0) await tx.outbox.append(notifications, now)
}

export async function noteServed(tx: ShortageTransaction, before: Shortage, now: number): Promise<void> {
  if (before.lacking === 0n && before.keep === null) return
  await tx.edge.shortages.save({ ...before, lacking: 0n, keep: null, notifiedAt: now })
}

export function isShortNow({ keep, at }: Shortage, now: number, terms: Terms): boolean {
  return keep !== null && at > shortSince(now, terms)
}

/** What other devices could return; devices with tokens of a fenced epoch cannot. @param except device id */
export function returnableOf(
  { deps, tx, now }: ShortageContext,
  accounts: readonly AccountId[],
  except: string,
): Promise<ReadonlyMap<AccountId, Returnable>> {
  return tx.edge.deviceAccounts.returnable(accounts, except, overdueBefore(now, deps.terms))
}

function shortSince(now: number, { syncEveryMs }: Terms): number {
  return now - SHORT_FOR_SYNCS * syncEveryMs
}
