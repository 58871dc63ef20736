/** By which rules the cloud decides: those of the revision that the transaction of the decision sees. */
import { Policies } from '../../src/cloud/policy/load-policy.ts'
import type { UsageRecord } from '../../src/cloud/storage/records.ts'
import type { Transaction } from '../../src/cloud/storage/store.ts'
import type { Policy } from '../../src/core/rules/policy.ts'

interface Deps extends Pick<Policy, 'undecidedClock'> {
  /** Within the transaction. */
  readonly onDecided: (correlationId: string, rules: Policy, records: readonly UsageRecord[]) => void
}

export class RulesSeen {
  readonly #deps: Deps
  readonly #kept = new Map<string, Policy>()

  constructor(deps: Deps) {
    this.#deps = deps
  }

  /** A restored database uses its numbers again. */
  forget(): void {
    this.#kept.clear()
  }

  watch(tx: Transaction): Transaction {
    const append: Transaction['usage']['append'] = async (records) => {
      const own = records.filter(({ source }) => source.kind !== 'device')
      for (const [correlationId, decided] of Map.groupBy(own, (record) => record.correlationId)) {
        const [first] = decided
        if (first !== undefined) this.#deps.onDecided(correlationId, await this.#rulesOf(tx, first.instanceId), decided)
      }
      await tx.usage.append(records)
    }
    return { ...tx, usage: { ...tx.usage, append } }
  }

  async #rulesOf(tx: Transaction, instanceId: string): Promise<Policy> {
    const revision = await tx.policyRevisions.get(instanceId)
    if (revision === undefined) throw new Error('a decision is one of an instance')
    // A transaction that fails may give the same number to other rules.
    const name = `${instanceId} ${revision.revision} ${revision.bumpedAt}`
    const rules = this.#kept.get(name) ?? (await new Policies({ ...this.#deps, max: 1 }).at(tx, revision)).policy
    this.#kept.set(name, rules)
    return rules
  }
}
