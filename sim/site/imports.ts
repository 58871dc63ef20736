/**
 * An administrator imports line items that another service has too. Clients there use tokens meanwhile, or the service
 * refunds some. After an import that failed, the next one has all that is used there.
 */
import { importInstance } from '../../src/cloud/service-api/import-instance.ts'
import type { ImportedAction } from '../../src/protocol/edge/import.ts'
import { query } from '../audit/query.ts'
import type { Happening } from '../plan.ts'
import { MICRO, lineItemBody } from './rule-calls.ts'
import type { Rules } from './rules.ts'
import type { Stage } from './stage.ts'

interface ActionRow {
  readonly id: string
  readonly name: string | null
  readonly condition_id: string | null
  readonly effect: 'ALLOW' | 'DENY'
  readonly allocation: bigint | null
}

export class Imports {
  readonly #stage: Stage
  readonly #rules: Rules
  /** Whole tokens used at the source, by line item. */
  readonly #used = new Map<number, number>()

  constructor(stage: Stage, rules: Rules) {
    this.#stage = stage
    this.#rules = rules
  }

  happen({ lineItem: index, more, addUsed, lowerUsed }: Extract<Happening, { kind: 'import' }>): void {
    const item = this.#rules.lineItems[index]
    if (item === undefined || (item.state !== 'DEPLOYED' && item.state !== 'INACTIVE')) return
    const { id, instance, state } = item
    const tokens = Math.max(0, (this.#used.get(index) ?? 0) + more)
    this.#used.set(index, tokens)
    const used = BigInt(tokens) * MICRO
    const { auditor, twin } = this.#stage
    this.#stage.byTwin(async ({ store, newId, now }) => {
      const body = {
        ...{ source: 'another service', apply: true, addUsed, lowerUsed, conditions: [] },
        instance: { shortName: `site-${instance}`, accountId: 'customer', defaultInstance: false },
        lineItems: [{ lineItem: lineItemBody({ ...item, state }), used, actions: this.#actions(id, used) }],
      }
      auditor.shared.importsRepeat = !addUsed
      const { applied } = await importInstance({ store, newId }, this.#rules.instanceId(instance), body, now())
      this.#stage.fault(applied ? 'import' : 'import with conflicts')
      if (applied) this.#stage.judge(() => auditor.bill.cloud.imported(twin.database, id, used))
    })
  }

  /** The source has the same ones. Each of its allocations has paid for all that is used there. */
  #actions(lineItemId: string, used: bigint): ImportedAction[] {
    const sql = 'SELECT * FROM actions WHERE line_item_id = ? ORDER BY position'
    const rows = query(this.#stage.twin.database, sql).all(lineItemId) as readonly ActionRow[]
    return rows.map(({ id, name, condition_id: conditionId, effect: action, allocation }) => ({
      ...{ id, action },
      ...(name === null ? {} : { name }),
      ...(conditionId === null ? {} : { conditionId }),
      ...(allocation === null ? {} : { allocation, used }),
    }))
  }
}
