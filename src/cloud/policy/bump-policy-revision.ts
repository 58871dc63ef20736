/** The transaction that changes rules also bumps the policy's revision and writes the change notification. */
import { ENGINE } from '../../core/engine.ts'
import { TOLERANCE_MS } from '../../core/rules/policy.ts'
import { retargetAccounts } from './retarget-accounts.ts'
import { LISTED_BACK_MS, limitPeriods, lineItemPeriods } from '../accounts/calendar.ts'
import type { ConsumptionLimitRecord, LineItemRecord, PolicyRevision } from '../storage/records.ts'
import { noInstance } from '../storage/require-record.ts'
import type { Reader, Store, Transaction } from '../storage/store.ts'
import { withTransactions } from '../storage/with-transactions.ts'

export interface RuleDeps {
  readonly store: Store
  readonly newId: () => string
}

/** One transaction: an exclusive change, and the next revision. @throws CodedError NOT_FOUND for an unknown instance */
export function changeRules<T>(
  store: Pick<Store, 'transaction'>,
  instanceId: string,
  now: number,
  change: (tx: Transaction, before: PolicyRevision) => Promise<T>,
): Promise<T> {
  return store.transaction(async (tx) => {
    const revision = await lockRules(tx, instanceId)
    const result = await change(tx, revision)
    await bumpPolicyRevision(tx, revision, now)
    return result
  })
}

/**
 * The store for changes by a caller who has read the rules of an instance: they would overwrite what was changed since.
 * @param requireRead throws if the caller has not read this revision
 */
export function ofRevision(store: Store, instanceId: string, requireRead: (revision: number) => void): Store {
  return withTransactions(store, (work) =>
    store.transaction(async (tx) => {
      const { revision } = await lockRules(tx, instanceId)
      requireRead(revision)
      return work(tx)
    }),
  )
}

/** Locks the rules for a change. @throws CodedError NOT_FOUND for an unknown instance */
export async function lockRules(tx: Transaction, instanceId: string): Promise<PolicyRevision> {
  const revision = await tx.policyRevisions.lock(instanceId)
  if (revision === undefined) throw noInstance(instanceId)
  return revision
}

/**
 * All decisions wait, so it runs a constant number of statements. Due dates of calendars stay: at
 * worst, one is extended too early.
 */
export async function changeSharedRules<T>(tx: Transaction, now: number, change: () => Promise<T>): Promise<T> {
  await tx.policyRevisions.lockAll()
  const result = await change()
  await tx.policyRevisions.bumpAll(now, ENGINE.version)
  await tx.outbox.appendPolicies(now)
  return result
}

/**
 * A restored cloud may have forgotten revisions; a reused number would mean different rules to some devices.
 * It grows with time: the same backup can be restored again. @param proven the highest signed one; 0: none
 */
export async function passForgottenRevisions(
  tx: Transaction,
  instanceId: string,
  now: number,
  proven: number,
): Promise<void> {
  const known = await lockRules(tx, instanceId)
  await bumpPolicyRevision(tx, { ...known, revision: Math.max(known.revision, now, proven) }, now)
}

const bumping = new WeakSet<Reader>()

/** If its transaction rolls back, other rules may get the number of its revision: what it loads must not be cached. */
export function hasBumped(reader: Reader): boolean {
  return bumping.has(reader)
}

/** The caller has locked the revision and written the rules. */
export async function bumpPolicyRevision(
  tx: Transaction,
  before: PolicyRevision,
  now: number,
): Promise<PolicyRevision> {
  bumping.add(tx)
  const { instanceId } = before
  const wasAhead = isAhead(before, now)
  const bumpedAt = wasAhead ? now : Math.max(now, before.bumpedAt)
  const lineItems = await tx.lineItems.list(instanceId)
  const limits = await tx.consumptionLimits.list(instanceId)
  const bumped: PolicyRevision = {
    instanceId,
    revision: before.revision + 1,
    bumpedAt,
    listedAt: Math.max(before.listedAt, bumpedAt),
    calendarDue: calendarDue(lineItems, limits, bumpedAt),
    engine: ENGINE.version,
  }
  await tx.policyRevisions.save(bumped)
  // Caps that were changed by the clock ahead: the present period was over for it.
  if (wasAhead) for (const lineItem of lineItems) await retargetAccounts(tx, lineItem, now)
  await tx.outbox.append([{ kind: 'policy', instanceId, revision: bumped.revision }], now)
  return bumped
}

/** Bumps one instance whose policy is due, or of an older engine. Returns false if no policy was due. */
export async function renewDuePolicy(tx: Transaction, now: number): Promise<boolean> {
  const terms = { now, bumpedAfter: now + LISTED_BACK_MS, engine: ENGINE.version }
  const [instanceId] = await tx.policyRevisions.due(terms, 1)
  if (instanceId === undefined) return false
  const revision = await lockRules(tx, instanceId)
  if (needsNewRevision(revision, now)) await bumpPolicyRevision(tx, revision, now)
  return true
}

/** Calendars that a clock ahead has listed may not reach the present; another engine may make other rules. */
export function needsNewRevision(
  revision: Pick<PolicyRevision, 'calendarDue' | 'bumpedAt' | 'engine'>,
  now: number,
): boolean {
  const isCalendarDue = revision.calendarDue !== null && revision.calendarDue <= now
  // An older one of several nodes keeps a newer engine's revision: they would bump in turns.
  return isCalendarDue || isAhead(revision, now) || revision.engine < ENGINE.version
}

function isAhead({ bumpedAt }: Pick<PolicyRevision, 'bumpedAt'>, now: number): boolean {
  return now < bumpedAt - LISTED_BACK_MS
}

/** When the calendars of a policy issued at `at` must be extended; null: never. */
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
