/** A policy depends only on the store and the instant of the bump, so it serves all decisions at that revision. */
import { type AccountId, lineAccount, parseAccount } from '../../core/accounts/account.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import { type CompiledPolicy, compilePolicy, periodAt } from '../../core/rules/compile.ts'
import type { LineItem, Policy, RateTable } from '../../core/rules/policy.ts'
import { lineItemOf } from './line-item-of.ts'
import { hasBumped, needsNewRevision, bumpPolicyRevision } from './bump-policy-revision.ts'
import type { PolicyRevision, RateTableRecord } from '../storage/records.ts'
import type { Reader, Transaction } from '../storage/store.ts'

export interface LoadedPolicy {
  readonly revision: number
  /** When its calendars must be extended; null: never. */
  readonly calendarDue: number | null
  readonly bumpedAt: number
  readonly engine: number
  readonly accountId: string
  readonly instanceName: string
  readonly policy: Policy
  readonly compiled: CompiledPolicy
  readonly lineItems: ReadonlyMap<string, LineItem>
  readonly cloudReserves: ReadonlyMap<string, Micro>
  /** Of line items with a reserve, in the period of the bump. */
  readonly importedUse: ReadonlyMap<AccountId, Micro>
  /** The highest caps that rules on devices may contain, by line item. */
  readonly overspendCapsMax: ReadonlyMap<string, Micro>
  /** Restored from a backup with unknown sales: nothing that is limited is sold. */
  readonly unproven: boolean
  /** Number of the newest recovery; 0: none. */
  readonly recovery: number
}

/** Devices are not granted these tokens until the account has charged as many: imported use is a charge of another service. */
export function reserveOf(
  account: AccountId,
  { cloudReserves, importedUse }: Pick<LoadedPolicy, 'cloudReserves' | 'importedUse'>,
): Micro {
  const parsed = parseAccount(account)
  const reserve = parsed?.kind === 'line' ? (cloudReserves.get(parsed.lineItemId) ?? 0n) : 0n
  return reserve === 0n ? 0n : reserve + (importedUse.get(account) ?? 0n)
}

/** Superseded rate tables stay in the policy this long: a device may decide for a past instant. */
const SUPERSEDED_KEPT_MS = 30 * 24 * 60 * 60 * 1000

/** What follows the locks of rules: some stores do it in the same round trip. */
interface Following {
  /** Accounts that will probably be locked next. */
  readonly likely?: Iterable<AccountId>
  /** Begins reads that need the locks. */
  readonly beginReads?: () => void
}

export class Policies {
  readonly #options: Pick<Policy, 'undecidedClock'> & { readonly max: number }
  readonly #kept = new Map<string, LoadedPolicy>()

  constructor(options: Pick<Policy, 'undecidedClock'> & { readonly max: number }) {
    this.#options = options
  }

  /**
   * Locks the rules of the instance against a change. If a new revision is due, the lock is exclusive and the revision is
   * bumped first. Undefined: unknown instance.
   */
  async lockShared(tx: Transaction, instanceId: string, now: number): Promise<LoadedPolicy | undefined> {
    return (await this.lockSomeShared(tx, [instanceId], now)).get(instanceId)
  }

  /** As {@link Policies.lockShared}, of several instances. Those that are unknown are left out. */
  async lockSomeShared(
    tx: Transaction,
    instanceIds: readonly string[],
    now: number,
    { likely = [], beginReads = () => undefined }: Following = {},
  ): Promise<ReadonlyMap<string, LoadedPolicy>> {
    // Before any lock: two transactions that share the rules and both need them exclusively would deadlock.
    const due = new Map<string, boolean>()
    for (const instanceId of [...new Set(instanceIds)].sort()) {
      const known = this.#kept.get(instanceId) ?? (await tx.policyRevisions.get(instanceId))
      if (known !== undefined) due.set(instanceId, needsNewRevision(known, now))
    }
    const isAnyDue = [...due.values()].includes(true)
    const revisions = isAnyDue
      ? await lockEach(tx, due)
      : await tx.policyRevisions.lockSomeShared([...due.keys()], [...likely], beginReads)
    const unexpected = revisions.filter((each) => needsNewRevision(each, now) && due.get(each.instanceId) === false)
    if (unexpected.length > 0) await this.#upgrade(tx, unexpected)
    const all = new Map<string, LoadedPolicy>()
    for (const revision of revisions) {
      const loaded = needsNewRevision(revision, now)
        ? this.#load(tx, await bumpPolicyRevision(tx, revision, now))
        : this.at(tx, revision)
      all.set(revision.instanceId, await loaded)
    }
    if (isAnyDue) beginReads()
    return all
  }

  /** A clock ahead, or an older engine, has bumped them since they were cached. If the transaction restarts, it reads them first. */
  async #upgrade(tx: Transaction, revisions: readonly PolicyRevision[]): Promise<void> {
    for (const { instanceId } of revisions) this.#kept.delete(instanceId)
    await tx.policyRevisions.upgrade(revisions.map(({ instanceId }) => instanceId))
  }

  /** The last cached policy; only for guesses. */
  lastOf(instanceId: string): LoadedPolicy | undefined {
    return this.#kept.get(instanceId)
  }

  /** The newest policy visible to the reader. Undefined: unknown instance. */
  async of(reader: Reader, instanceId: string): Promise<LoadedPolicy | undefined> {
    const revision = await reader.policyRevisions.get(instanceId)
    return revision === undefined ? undefined : this.at(reader, revision)
  }

  async at(reader: Reader, revision: PolicyRevision): Promise<LoadedPolicy> {
    if (hasBumped(reader)) return this.#load(reader, revision)
    const { instanceId } = revision
    const kept = this.#kept.get(instanceId)
    if (kept?.revision === revision.revision) return kept
    const loaded = await this.#load(reader, revision)
    this.#kept.delete(instanceId)
    if (this.#kept.size >= this.#options.max) {
      const [oldest] = this.#kept.keys()
      if (oldest !== undefined) this.#kept.delete(oldest)
    }
    this.#kept.set(instanceId, loaded)
    return loaded
  }

  async #load(reader: Reader, revision: PolicyRevision): Promise<LoadedPolicy> {
    const { instanceId, calendarDue, bumpedAt, engine } = revision
    const offline = await reader.edge.offlinePolicies.list(instanceId)
    const policy = await assemblePolicy(reader, revision, offline, this.#options.undecidedClock)
    const instance = await reader.instances.get(instanceId)
    if (instance === undefined) throw new Error('invariant: a policy has an instance')
    const recovery = await reader.edge.recoveries.get(instanceId)
    const reserves = await reader.edge.cloudReserves.list(instanceId)
    const reserved = new Set(reserves.map(({ lineItemId }) => lineItemId))
    const accounts = policy.lineItems.flatMap(({ id, periods }) => {
      const period = reserved.has(id) ? periodAt(periods, bumpedAt) : undefined
      return period === undefined ? [] : [lineAccount(instanceId, id, period.index)]
    })
    return {
      revision: revision.revision,
      calendarDue,
      bumpedAt,
      engine,
      accountId: instance.accountId,
      instanceName: instance.shortName,
      policy,
      compiled: compilePolicy(policy),
      lineItems: new Map(policy.lineItems.map((lineItem) => [lineItem.id, lineItem])),
      cloudReserves: new Map(reserves.map(({ lineItemId, tokens }) => [lineItemId, tokens])),
      importedUse: await reader.importedUse.of(accounts),
      overspendCapsMax: new Map(offline.map(({ lineItemId, overspendCapMax }) => [lineItemId, overspendCapMax])),
      unproven: recovery?.endedAt === null && recovery.unproven !== null,
      recovery: recovery?.number ?? 0,
    }
  }
}

/** @param due by instance, in the sequence of their ids: whether its rules are locked for a change */
async function lockEach(tx: Transaction, due: ReadonlyMap<string, boolean>): Promise<readonly PolicyRevision[]> {
  const found: PolicyRevision[] = []
  for (const [instanceId, isDue] of due) {
    const { policyRevisions } = tx
    const revision = isDue ? await policyRevisions.lock(instanceId) : await policyRevisions.lockShared(instanceId)
    if (revision !== undefined) found.push(revision)
  }
  return found
}

type OfflinePolicies = Awaited<ReturnType<Reader['edge']['offlinePolicies']['list']>>

async function assemblePolicy(
  reader: Reader,
  { instanceId, revision, bumpedAt }: PolicyRevision,
  offline: OfflinePolicies,
  undecidedClock: Policy['undecidedClock'],
): Promise<Policy> {
  const configuration = await reader.configuration.list()
  return {
    instanceId,
    revision,
    ...(await rulesOf(reader, instanceId, offline, bumpedAt)),
    rateTables: relevantTables(await reader.rateTables.list(), bumpedAt),
    timezoneTolerant: configuration.some(({ name, value }) => name === 'timezone.tolerant' && value === 'true'),
    undecidedClock,
  }
}

/** @param at from when calendars are listed */
export async function rulesOf(
  reader: Reader,
  instanceId: string,
  offline: OfflinePolicies,
  at: number,
): Promise<Pick<Policy, 'lineItems' | 'conditions'>> {
  const lineItems = await reader.lineItems.list(instanceId)
  const actions = new Map(
    (await reader.actions.list(instanceId, 0, Number.MAX_SAFE_INTEGER)).map((each) => [each.lineItemId, each.actions]),
  )
  const limits = new Map((await reader.consumptionLimits.list(instanceId)).map((each) => [each.lineItemId, each]))
  const overspendCaps = new Map(offline.map(({ lineItemId, overspendCap }) => [lineItemId, overspendCap]))
  return {
    lineItems: lineItems.map((record) => {
      const { id } = record
      const rules = { actions: actions.get(id) ?? [], limit: limits.get(id), overspendCap: overspendCaps.get(id) }
      return lineItemOf(record, rules, at)
    }),
    conditions: await reader.conditions.list(instanceId),
  }
}

/** Those that devices need. */
export function relevantTables(records: readonly RateTableRecord[], at: number): readonly RateTable[] {
  const superseded = new Set<RateTableRecord>()
  for (const series of Map.groupBy(records, (record) => record.series).values()) {
    const ordered = series.toSorted((a, b) => a.effectiveFrom - b.effectiveFrom)
    for (const [index, record] of ordered.entries()) {
      const successor = ordered[index + 1]
      if (successor !== undefined && successor.effectiveFrom <= at - SUPERSEDED_KEPT_MS) superseded.add(record)
    }
  }
  return records
    .filter((record) => !superseded.has(record))
    .map(({ series, version, effectiveFrom, items }) => ({ series, version, effectiveFrom, items }))
}
