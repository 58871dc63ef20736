/**
 * The rules of an instance as the engine takes them, put together from the store. A policy is a function of what the store
 * held when its revision was raised, and of that instant (its calendars are listed from there), so one compiled policy
 * serves all decisions at its revision. Only policies of committed revisions are kept.
 */
import type { AccountId } from '../../core/accounts/account.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import { type CompiledPolicy, compilePolicy } from '../../core/rules/compile.ts'
import type { LineItem, Policy, RateTable } from '../../core/rules/policy.ts'
import { lineItemOf } from '../service-api/line-item-terms.ts'
import { needsNewRevision, bumpPolicyRevision } from './bump-policy-revision.ts'
import type { PolicyRevision, RateTableRecord } from '../storage/records.ts'
import type { Reader, Transaction } from '../storage/store.ts'

export interface LoadedPolicy {
  readonly revision: number
  /** When its calendars must be carried on; null: never. */
  readonly calendarDue: number | null
  readonly bumpedAt: number
  /** The customer account that owns the instance. */
  readonly accountId: string
  readonly policy: Policy
  readonly compiled: CompiledPolicy
  readonly lineItems: ReadonlyMap<string, LineItem>
  /** Tokens that devices are never granted, by line item, micro-tokens. */
  readonly cloudReserves: ReadonlyMap<string, Micro>
  /** The twin was restored from a backup and does not know how much it had sold: nothing that is limited is sold. */
  readonly unproven: boolean
}

/** A superseded rate table stays in the policy for this time: a device may decide for an instant that is past. */
const SUPERSEDED_KEPT_MS = 30 * 24 * 60 * 60 * 1000

export interface PoliciesOptions {
  /** Compiled policies kept in memory, one for each instance. */
  readonly max: number
  /** What decides where a clock cannot tell whether a line item's window is open. */
  readonly undecidedClock: Policy['undecidedClock']
}

export class Policies {
  readonly #options: PoliciesOptions
  readonly #kept = new Map<string, LoadedPolicy>()
  /** What a transaction that is under way has raised: it may still roll back, and nobody else may decide by it. */
  readonly #raised = new WeakMap<Transaction, Map<string, LoadedPolicy>>()

  constructor(options: PoliciesOptions) {
    this.#options = options
  }

  /**
   * The policy that decides in this transaction: nobody changes it before the transaction ends. Carries its calendars on
   * first, where that is due. Undefined: there is no such instance.
   * @param likely accounts that will probably be locked next
   */
  async hold(
    tx: Transaction,
    instanceId: string,
    now: number,
    likely: Iterable<AccountId> = [],
  ): Promise<LoadedPolicy | undefined> {
    const raised = this.#raised.get(tx)?.get(instanceId)
    if (raised !== undefined) return raised
    // Found out before anything is locked: of two that share the rules and both want them alone, neither could go on.
    const known = this.#kept.get(instanceId) ?? (await tx.policyRevisions.get(instanceId))
    if (known === undefined) return undefined
    if (!needsNewRevision(known, now)) {
      const held = await tx.policyRevisions.hold(instanceId, [...likely])
      return held === undefined ? undefined : this.at(tx, held)
    }
    const locked = await tx.policyRevisions.lock(instanceId)
    if (locked === undefined) return undefined
    if (!needsNewRevision(locked, now)) return this.at(tx, locked)
    const loaded = await this.#load(tx, await bumpPolicyRevision(tx, locked, now))
    const mine = this.#raised.get(tx) ?? new Map<string, LoadedPolicy>()
    this.#raised.set(tx, mine.set(instanceId, loaded))
    return loaded
  }

  /** The policy that decided last: good for a guess and for nothing else. */
  lastOf(instanceId: string): LoadedPolicy | undefined {
    return this.#kept.get(instanceId)
  }

  /** The newest policy as the reader sees it. Undefined: there is no such instance. */
  async of(reader: Reader, instanceId: string): Promise<LoadedPolicy | undefined> {
    const revision = await reader.policyRevisions.get(instanceId)
    return revision === undefined ? undefined : this.at(reader, revision)
  }

  /** The policy at a revision that is committed. */
  async at(reader: Reader, revision: PolicyRevision): Promise<LoadedPolicy> {
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
    const policy = await assemblePolicy(reader, revision, this.#options.undecidedClock)
    const instance = await reader.instances.get(revision.instanceId)
    if (instance === undefined) throw new Error('invariant: a policy has an instance')
    const recovery = await reader.edge.recoveries.get(revision.instanceId)
    const reserves = await reader.edge.cloudReserves.list(revision.instanceId)
    return {
      revision: revision.revision,
      calendarDue: revision.calendarDue,
      bumpedAt: revision.bumpedAt,
      accountId: instance.accountId,
      policy,
      compiled: compilePolicy(policy),
      lineItems: new Map(policy.lineItems.map((lineItem) => [lineItem.id, lineItem])),
      cloudReserves: new Map(reserves.map(({ lineItemId, tokens }) => [lineItemId, tokens])),
      unproven: recovery?.endedAt === null && recovery.unproven !== null,
    }
  }
}

async function assemblePolicy(
  reader: Reader,
  { instanceId, revision, bumpedAt }: PolicyRevision,
  undecidedClock: Policy['undecidedClock'],
): Promise<Policy> {
  const lineItems = await reader.lineItems.list(instanceId)
  const actions = new Map(
    (await reader.actions.list(instanceId, 0, Number.MAX_SAFE_INTEGER)).map((each) => [each.lineItemId, each.actions]),
  )
  const limits = new Map((await reader.consumptionLimits.list(instanceId)).map((each) => [each.lineItemId, each]))
  const overspendCaps = new Map(
    (await reader.edge.offlinePolicies.list(instanceId)).map(({ lineItemId, overspendCap }) => [
      lineItemId,
      overspendCap,
    ]),
  )
  const configuration = await reader.configuration.list()
  return {
    instanceId,
    revision,
    lineItems: lineItems.map((record) =>
      lineItemOf(
        record,
        actions.get(record.id) ?? [],
        limits.get(record.id),
        overspendCaps.get(record.id) ?? 0n,
        bumpedAt,
      ),
    ),
    conditions: await reader.conditions.list(instanceId),
    rateTables: relevantTables(await reader.rateTables.list(), bumpedAt),
    timezoneTolerant: configuration.some(({ name, value }) => name === 'timezone.tolerant' && value === 'true'),
    undecidedClock,
  }
}

/** Tables without those that were superseded long ago, in the order of their creation. */
function relevantTables(records: readonly RateTableRecord[], at: number): readonly RateTable[] {
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
