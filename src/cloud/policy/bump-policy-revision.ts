/**
 * A change of an instance's rules: whoever makes one raises the policy's revision in the same transaction, which also
 * writes the change notification that tells devices to look.
 */
import { TOLERANCE_MS } from '../../core/rules/policy.ts'
import { CodedError } from '../../protocol/errors.ts'
import { LISTED_BACK_MS, limitPeriods, lineItemPeriods } from '../accounts/calendar.ts'
import type { ConsumptionLimitRecord, LineItemRecord, PolicyRevision } from '../storage/records.ts'
import type { Transaction } from '../storage/store.ts'

/**
 * Runs a change of the rules of one instance alone, and raises the revision after it.
 * @throws CodedError NOT_FOUND when there is no such instance
 */
export async function changeRules<T>(
  tx: Transaction,
  instanceId: string,
  now: number,
  change: (before: PolicyRevision) => Promise<T>,
): Promise<T> {
  const revision = await lockRules(tx, instanceId)
  const result = await change(revision)
  await bumpPolicyRevision(tx, revision, now)
  return result
}

/** Takes the right to change the rules. @throws CodedError NOT_FOUND when there is no such instance */
export async function lockRules(tx: Transaction, instanceId: string): Promise<PolicyRevision> {
  const revision = await tx.policyRevisions.lock(instanceId)
  if (revision === undefined) throw new CodedError('NOT_FOUND', `There is no instance ${instanceId}.`)
  return revision
}

/**
 * Runs a change of what all instances share alone, and raises the revision of each. Every decision waits for it, so the
 * work is the same few statements however many instances there are. When a calendar is due stays as it was: one that is
 * listed from a later instant reaches farther, so it is carried on too early at worst.
 */
export async function changeSharedRules<T>(tx: Transaction, now: number, change: () => Promise<T>): Promise<T> {
  await tx.policyRevisions.lockAll()
  const result = await change()
  await tx.policyRevisions.raiseAll(now)
  await tx.outbox.appendPolicies(now)
  return result
}

/**
 * Raises the revision of one instance beyond all that a twin restored from a backup can have forgotten: a number that is
 * given again would stand for other rules, and devices that had it would keep the old ones. It rises with time, so that the
 * same backup can be restored again.
 *
 * @param proven the highest that the twin is known to have signed; 0 for none
 */
export async function passForgottenRevisions(
  tx: Transaction,
  instanceId: string,
  now: number,
  proven = 0,
): Promise<void> {
  const known = await lockRules(tx, instanceId)
  await bumpPolicyRevision(tx, { ...known, revision: Math.max(known.revision, now, proven) }, now)
}

/** The revision must be locked, and what it stands for written. */
export async function bumpPolicyRevision(
  tx: Transaction,
  before: PolicyRevision,
  now: number,
): Promise<PolicyRevision> {
  const { instanceId } = before
  const bumpedAt = isAhead(before, now) ? now : Math.max(now, before.bumpedAt)
  const lineItems = await tx.lineItems.list(instanceId)
  const limits = await tx.consumptionLimits.list(instanceId)
  const raised: PolicyRevision = {
    instanceId,
    revision: before.revision + 1,
    bumpedAt,
    listedAt: Math.max(before.listedAt, bumpedAt),
    calendarDue: calendarDue(lineItems, limits, bumpedAt),
  }
  await tx.policyRevisions.save(raised)
  await tx.outbox.append([{ kind: 'policy', instanceId, revision: raised.revision }], now)
  return raised
}

/**
 * Raises the revision of one instance whose listed periods are half over, or lie ahead. Returns whether there was one: call again until
 * there is none.
 */
export async function carryOnCalendar(tx: Transaction, now: number): Promise<boolean> {
  const [instanceId] = await tx.policyRevisions.calendarDue(now, now + LISTED_BACK_MS, 1)
  if (instanceId === undefined) return false
  const revision = await lockRules(tx, instanceId)
  if (needsNewRevision(revision, now)) await bumpPolicyRevision(tx, revision, now)
  return true
}

/**
 * Whether the calendars of a policy must be carried on, or were listed by a clock that was ahead: then they may not reach back
 * to the present, nor the rate tables.
 */
export function needsNewRevision(revision: Pick<PolicyRevision, 'calendarDue' | 'bumpedAt'>, now: number): boolean {
  return (revision.calendarDue !== null && revision.calendarDue <= now) || isAhead(revision, now)
}

function isAhead({ bumpedAt }: Pick<PolicyRevision, 'bumpedAt'>, now: number): boolean {
  return now < bumpedAt - LISTED_BACK_MS
}

/** When the calendars in the policy of an instance must be carried on, for a policy issued at `at`; null: never. */
function calendarDue(
  lineItems: readonly LineItemRecord[],
  limits: readonly ConsumptionLimitRecord[],
  at: number,
): number | null {
  let earliest: number | null = null
  const ends = new Map<string, number>()
  const consider = (due: number | null, lineItemId: string): void => {
    if (due === null || due > (ends.get(lineItemId) ?? 0)) return
    if (earliest === null || due < earliest) earliest = due
  }
  for (const lineItem of lineItems) {
    if (lineItem.state === 'OBSOLETE') continue
    ends.set(lineItem.id, lineItem.end + TOLERANCE_MS)
    consider(lineItemPeriods(lineItem.calendar, lineItem.start, at).due, lineItem.id)
  }
  for (const limit of limits) {
    if (limit.limit !== null) consider(limitPeriods(limit, at).due, limit.lineItemId)
  }
  return earliest
}
