/**
 * The text of the ledger entries that a session adds to those of its access requests: what goes back to the accounts, and
 * changes that move no tokens. A refund names exactly the accounts that were charged, each with what it gets back.
 */
import type { AccountId, Posting } from '../../../core/account.ts'
import { parseAccount } from '../../../core/account.ts'
import { formatDecimal } from '../../../core/amount.ts'
import type { ClockReading } from '../../../core/decision.ts'
import type { HeldItem, HeldPart } from '../../../core/session.ts'
import type { EntryBodyWire } from '../../../protocol/edge/sync.ts'

/** What every entry of a session says. */
export interface SessionEntry {
  readonly n: number
  readonly reading: ClockReading
  readonly instanceId: string
  readonly policyRevision: number
  readonly correlationId: string
  readonly session: NonNullable<EntryBodyWire['session']>
  readonly requester: { readonly type: string; readonly value: string } | null
}

/** A change that moves no tokens. */
export function sessionEntryText(entry: SessionEntry): string {
  return JSON.stringify({ ...head(entry, 'session'), items: [], postings: [] } satisfies EntryBodyWire)
}

/** @param refund as {@link refundable} gives it */
export function refundEntryText(entry: SessionEntry, refund: readonly HeldItem[]): string {
  return JSON.stringify({
    ...head(entry, 'refund'),
    items: refund.map(({ item, parts }) => ({
      item: item.name,
      version: item.version,
      count: formatDecimal(item.count),
      outcome: 'REFUNDED',
      total: String(parts.reduce((sum, { charged }) => sum + charged, 0n)),
      parts: parts.map((part) => ({
        lineItemId: part.lineItemId,
        rate: part.rate === undefined ? '0' : formatDecimal(part.rate),
        actionId: actionOf(part),
        charged: String(part.charged),
      })),
      ...(item.metaData === null ? {} : { metaData: JSON.parse(item.metaData) as Record<string, unknown> }),
    })),
    postings: refundPostings(refund).map(({ account, amount }) => ({ account, amount: String(amount) })),
  } satisfies EntryBodyWire)
}

/** Without what rounds to nothing. */
export function refundable(refund: readonly HeldItem[]): readonly HeldItem[] {
  return refund
    .map(({ item, parts }) => ({ item, parts: parts.filter(({ charged }) => charged > 0n) }))
    .filter(({ parts }) => parts.length > 0)
}

/** Per account. */
export function refundPostings(refund: readonly HeldItem[]): readonly Posting[] {
  const back = new Map<AccountId, bigint>()
  for (const { accounts, charged } of refund.flatMap(({ parts }) => parts)) {
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

function actionOf({ accounts }: HeldPart): string | null {
  for (const account of accounts) {
    const parsed = parseAccount(account)
    if (parsed?.kind === 'action') return parsed.actionId
  }
  return null
}
