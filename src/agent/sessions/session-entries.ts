/**
 * Ledger entries of a session besides its access requests: refunds, and changes that move no tokens. A refund names
 * exactly the accounts that were charged.
 */
import type { AccountId, Posting } from '../../core/accounts/account.ts'
import { parseAccount } from '../../core/accounts/account.ts'
import { formatDecimal } from '../../core/pricing/amount.ts'
import type { ClockReading } from '../../core/rules/decision.ts'
import type { ReservedItem, ReservedShare } from '../../core/sessions/session.ts'
import type { EntryBodyWire } from '../../protocol/edge/sync.ts'

export interface SessionEntry {
  readonly n: number
  readonly reading: ClockReading
  readonly instanceId: string
  readonly policyRevision: number
  readonly correlationId: string
  readonly session: NonNullable<EntryBodyWire['session']>
  readonly requester: { readonly type: string; readonly value: string } | null
}

export function sessionEntryText(entry: SessionEntry): string {
  return JSON.stringify({ ...head(entry, 'session'), items: [], postings: [] } satisfies EntryBodyWire)
}

/** @param refund as {@link refundable} returns it */
export function refundEntryText(entry: SessionEntry, refund: readonly ReservedItem[]): string {
  return JSON.stringify({
    ...head(entry, 'refund'),
    items: refund.map(({ item, shares }) => ({
      item: item.name,
      version: item.version,
      count: formatDecimal(item.count),
      outcome: 'REFUNDED',
      total: String(shares.reduce((sum, { charged }) => sum + charged, 0n)),
      parts: shares.map((share) => ({
        lineItemId: share.lineItemId,
        rate: share.rate === undefined ? '0' : formatDecimal(share.rate),
        actionId: actionOf(share),
        charged: String(share.charged),
      })),
      ...(item.metaData === null ? {} : { metaData: JSON.parse(item.metaData) as Record<string, unknown> }),
    })),
    postings: refundPostings(refund).map(({ account, amount }) => ({ account, amount: String(amount) })),
  } satisfies EntryBodyWire)
}

/** Omits amounts that round to zero. */
export function refundable(refund: readonly ReservedItem[]): readonly ReservedItem[] {
  return refund
    .map(({ item, shares }) => ({ item, shares: shares.filter(({ charged }) => charged > 0n) }))
    .filter(({ shares }) => shares.length > 0)
}

export function refundPostings(refund: readonly ReservedItem[]): readonly Posting[] {
  const back = new Map<AccountId, bigint>()
  for (const { accounts, charged } of refund.flatMap(({ shares }) => shares)) {
    for (const account of accounts) back.set(account, (back.get(account) ?? 0n) + charged)
  }
  return [...back].map(([account, amount]) => ({ account, amount }))
}

function head(entry: SessionEntry, kind: EntryBodyWire['kind']): Omit<EntryBodyWire, 'items' | 'postings'> {
  const { n, reading, instanceId, policyRevision, correlationId, session, requester } = entry
  const { now: at, earliest, latest } = reading
  const who = requester === null ? { type: '', value: '' } : { type: requester.type, value: requester.value }
  return { n, kind, at, earliest, latest, instanceId, policyRevision, correlationId, session, requester: who }
}

function actionOf({ accounts }: ReservedShare): string | null {
  for (const account of accounts) {
    const parsed = parseAccount(account)
    if (parsed?.kind === 'action') return parsed.actionId
  }
  return null
}
