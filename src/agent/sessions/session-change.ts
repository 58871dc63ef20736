/** A change of a session, with the entries that record it. A refund names exactly the accounts that were charged. */
import { parseAccount } from '../../core/accounts/account.ts'
import { formatDecimal } from '../../core/pricing/amount.ts'
import { type AccessRequest, type ClockReading, type Decision, allGranted } from '../../core/rules/decision.ts'
import {
  type ReservedItem,
  type ReservedShare,
  type SessionEvent,
  type SessionItem,
  refundsByAccount,
  reservedItems,
  step,
} from '../../core/sessions/session.ts'
import type { EntryBodyWire } from '../../protocol/edge/sync.ts'
import type { MetaData, SessionEntryOf } from '../access/access.ts'
import type { Attempt } from '../access/local-decisions.ts'
import type { PendingEntry } from '../ledger/journal.ts'
import type { KeptSession } from './kept-session.ts'

export interface Change {
  readonly next: KeptSession
  readonly entries: readonly ((n: number) => PendingEntry)[]
}

export interface Moment {
  readonly reading: ClockReading
  /** The current epoch: charges of others cannot be refunded. */
  readonly epoch: number
  readonly engine: number
  readonly newCorrelationId: () => string
}

type EventName = NonNullable<EntryBodyWire['session']>['event']

export function changeBy(
  kept: KeptSession,
  event: SessionEvent,
  moment: Moment,
  correlationId: string = moment.newCorrelationId(),
): Change {
  const { session, refund } = step(kept.session, event, moment.reading.earliest)
  const next: KeptSession = { ...kept, session, epoch: session.charge === null ? 0 : kept.epoch }
  const fields = commonFields(kept, event.kind, moment, correlationId)
  const refunded = refundable(kept, moment.epoch, refund)
  return { next, entries: [refunded.length > 0 ? refundEntry(fields, refunded) : plainEntry(fields)] }
}

export function changeByCharge(
  latest: KeptSession,
  event: SessionEvent,
  attempt: Attempt,
  { epoch, engine, newCorrelationId, entryOf }: Omit<Moment, 'reading'> & { readonly entryOf: SessionEntryOf },
): Change {
  const { reading } = attempt
  const kept = { ...latest, policyRevision: attempt.policy.document.revision }
  const { session: charged, refund } = step(kept.session, event, reading.earliest)
  // The open connection counts as a heartbeat.
  const isBeating = event.kind === 'RENEWED' && kept.bound
  const session = isBeating ? step(charged, { kind: 'HEARTBEAT' }, reading.earliest).session : charged
  const chargedIn = event.kind === 'GRANTED' || event.kind === 'RENEWED' ? epoch : kept.epoch
  const next: KeptSession = { ...kept, session, epoch: session.charge === null ? 0 : chargedIn }
  const entry = (n: number): PendingEntry => entryOf(n, { id: session.id, event: event.kind })
  const refunded = refundable(kept, epoch, refund)
  if (refunded.length === 0) return { next, entries: [entry] }
  const fields = commonFields(kept, event.kind, { reading, engine }, newCorrelationId())
  return { next, entries: [refundEntry(fields, refunded), entry] }
}

export function openingOf(next: KeptSession, moment: Moment): Change {
  return { next, entries: [plainEntry(commonFields(next, 'OPENED', moment, moment.newCorrelationId()))] }
}

/** The charged items; null unless all were granted. */
export function chargedItems(
  items: AccessRequest['items'],
  metaData: MetaData,
  decision: Decision,
): readonly ReservedItem[] | null {
  if (!allGranted(decision)) return null
  const withMetaData = items.map((item, index): SessionItem => {
    const more = metaData[index]
    return { ...item, metaData: more === undefined ? null : JSON.stringify(more) }
  })
  return reservedItems(withMetaData, decision)
}

/** The fields that all entries of a session have. */
type CommonFields = Omit<EntryBodyWire, 'n' | 'kind' | 'items' | 'postings'>

function commonFields(
  { session, policyRevision }: KeptSession,
  event: EventName,
  { reading: { now: at, earliest, latest }, engine }: Pick<Moment, 'reading' | 'engine'>,
  correlationId: string,
): CommonFields {
  const { id, instanceId } = session
  const requester = { type: session.requester?.type ?? '', value: session.requester?.value ?? '' }
  return { at, earliest, latest, instanceId, policyRevision, engine, correlationId, session: { id, event }, requester }
}

function plainEntry(fields: CommonFields): (n: number) => PendingEntry {
  return (n) => {
    const body = JSON.stringify({ n, kind: 'session', ...fields, items: [], postings: [] } satisfies EntryBodyWire)
    return { n, body, moves: 'used', postings: [], idempotencyRecord: null }
  }
}

function refundEntry(fields: CommonFields, refund: readonly ReservedItem[]): (n: number) => PendingEntry {
  const postings = [...refundsByAccount(refund)].map(([account, amount]) => ({ account, amount }))
  return (n) => {
    const body = JSON.stringify({
      n,
      kind: 'refund',
      ...fields,
      items: refund.map(refundedItem),
      postings: postings.map(({ account, amount }) => ({ account, amount: String(amount) })),
    } satisfies EntryBodyWire)
    return { n, body, moves: 'refunded', postings, idempotencyRecord: null }
  }
}

function refundedItem({ item, shares }: ReservedItem): EntryBodyWire['items'][number] {
  return {
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
  }
}

/** Without amounts that round to zero. A charge of an earlier epoch is not refunded. */
function refundable(kept: KeptSession, epoch: number, refund: readonly ReservedItem[]): readonly ReservedItem[] {
  if (kept.epoch !== epoch) return []
  return refund
    .map(({ item, shares }) => ({ item, shares: shares.filter(({ charged }) => charged > 0n) }))
    .filter(({ shares }) => shares.length > 0)
}

function actionOf({ accounts }: ReservedShare): string | null {
  for (const account of accounts) {
    const parsed = parseAccount(account)
    if (parsed?.kind === 'action') return parsed.actionId
  }
  return null
}
