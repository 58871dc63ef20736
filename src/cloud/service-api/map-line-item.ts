/**
 * Maps a line item to an instance or replaces its terms; usage counts stay. After a deletion, a new mapping starts with
 * zero usage. Source: interface, Line items.
 */
import { recordChange } from '../storage/audit.ts'
import { wholeTokens } from '../../core/pricing/amount.ts'
import { type LineItemBody, type LineItemProblem, problemAt, stateProblem } from '../../protocol/service/line-items.ts'
import { changedCalendar, newCalendar, unlistedPeriod } from '../accounts/calendar.ts'
import { lockRules, bumpPolicyRevision } from '../policy/bump-policy-revision.ts'
import type { Calendar, LineItemRecord, PolicyRevision } from '../storage/records.ts'
import { refuseTooLarge } from '../policy/refuse-too-large.ts'
import { retargetAccounts } from '../policy/retarget-accounts.ts'
import { type LineItemUse, lineItemUse } from './show-line-items.ts'
import type { Store } from '../storage/store.ts'

export type Mapped =
  | { readonly outcome: 'MAPPED' | 'REPLACED'; readonly use: LineItemUse }
  /** The stored state does not permit the requested one; worded as a validation error. */
  | { readonly outcome: 'REFUSED'; readonly problems: readonly LineItemProblem[] }

/** @throws CodedError NOT_FOUND for an unknown instance, BAD_REQUEST */
export async function mapLineItem(store: Store, instanceId: string, body: LineItemBody, now: number): Promise<Mapped> {
  return store.transaction(async (tx): Promise<Mapped> => {
    const revision = await lockRules(tx, instanceId)
    const stored = await tx.lineItems.get(instanceId, body.activationId)
    const isNew = stored?.deleted !== null
    const problem = stateProblem(isNew ? null : stored.state, body.state)
    if (problem !== undefined) return { outcome: 'REFUSED', problems: [problemAt(['state'], problem)] }
    const record = lineItemRecord(revision, body, stored, now)
    if (stored === undefined) await tx.lineItems.insert(record)
    else await tx.lineItems.update(record)
    if (stored === undefined || !onlyEnds(record, stored)) await refuseTooLarge(tx, instanceId, now)
    await retargetAccounts(tx, record, now)
    await bumpPolicyRevision(tx, revision, now)
    const { activationId: lineItemId, state, quantity, start, end, attributes, given } = body
    const detail = { state, quantity, start, end, attributes, given }
    await recordChange(tx, now, { action: 'MAP_LINE_ITEM', instanceId, lineItemId, detail })
    return { outcome: isNew ? 'MAPPED' : 'REPLACED', use: await lineItemUse(tx, record, now) }
  })
}

/** OBSOLETE line items can be deleted, so a line item may become one while the rules are too large. */
function onlyEnds({ state, calendar, rateTableSeries }: LineItemRecord, stored: LineItemRecord): boolean {
  return state === 'OBSOLETE' && calendar === stored.calendar && rateTableSeries === stored.rateTableSeries
}

/** @param stored also a deleted one: its period numbers are not used again */
export function lineItemRecord(
  { instanceId, listedAt }: Pick<PolicyRevision, 'instanceId' | 'listedAt'>,
  body: LineItemBody,
  stored: LineItemRecord | undefined,
  now: number,
): LineItemRecord {
  const { attributes } = body
  return {
    instanceId,
    id: body.activationId,
    state: body.state,
    quantity: wholeTokens(body.quantity),
    start: body.start,
    end: body.end,
    elastic: attributes.elastic ?? false,
    rateTableSeries: attributes.rateTableSeries ?? null,
    overdraftType: attributes.overdraftType ?? null,
    overdraftLimit: attributes.overdraftLimit === undefined ? null : wholeTokens(attributes.overdraftLimit),
    resetFrequency: attributes.resetFrequency ?? null,
    given: body.given ?? {},
    calendar: calendarOf(body, stored, listedAt, now),
    created: stored?.deleted !== null ? now : stored.created,
    modified: now,
    deleted: null,
  }
}

function calendarOf(
  { start, attributes }: LineItemBody,
  stored: LineItemRecord | undefined,
  listedAt: number,
  now: number,
): Calendar {
  const frequency = attributes.resetFrequency ?? 'NONE'
  if (stored === undefined) return newCalendar(frequency, start, now)
  if (stored.deleted === null) return changedCalendar(stored, { frequency, start }, now, listedAt)
  return newCalendar(frequency, start, now, unlistedPeriod(stored.calendar, stored.start, listedAt))
}
