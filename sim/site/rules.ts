/**
 * The rules of access as an administrator makes and changes them at the twin, and what the auditor must expect of them. A
 * twin that dies, or is put back to a backup, knows no more of them.
 */
import { createConditions } from '../../src/cloud/app/change-conditions.ts'
import { replaceActions } from '../../src/cloud/app/change-actions.ts'
import { createInstance } from '../../src/cloud/app/create-instance.ts'
import { createRateTable } from '../../src/cloud/app/change-rate-tables.ts'
import { setOfflinePolicy } from '../../src/cloud/app/edge/offline-policy.ts'
import { mapLineItem } from '../../src/cloud/app/map-line-item.ts'
import { removeConsumptionLimit, setConsumptionLimit } from '../../src/cloud/app/set-consumption-limit.ts'
import { parseDecimal } from '../../src/core/amount.ts'
import { CodedError } from '../../src/protocol/errors.ts'
import { query } from '../audit/query.ts'
import { BEGIN, type Happening, ITEMS, type LineItemPlan, RATES } from '../plan.ts'
import type { TwinProcess } from '../twin/twin-process.ts'
import { MICRO, type Stage } from './stage.ts'

type RulePart = 'line' | 'actions' | 'limit' | 'arrears'
type State = 'DEPLOYED' | 'INACTIVE'
type Changing = 'quantity' | 'end' | 'state' | 'allocation' | 'limit' | 'rates' | 'arrears-cap'

/** The rules at one moment. */
export interface RulesMade {
  readonly lineItems: readonly LineItemPlan[]
  readonly states: readonly State[]
  readonly actionIds: readonly (string | null)[]
}

export class Rules {
  readonly #stage: Stage
  #lineItems: LineItemPlan[]
  #states: State[]
  #actionIds: (string | null)[] = []
  #conditionId = ''
  #instanceId = ''
  #rateVersions = 0
  /** Every rule that a line item ever had, the first one too. */
  readonly #versions: (readonly LineItemPlan[] | undefined)[] = []
  /** The administrator has entered again what a restored twin had forgotten. */
  hasEnteredAgain = false

  constructor(stage: Stage) {
    this.#stage = stage
    this.#lineItems = [...stage.plan.site.lineItems]
    this.#states = this.#lineItems.map(() => 'DEPLOYED')
  }

  get instanceId(): string {
    return this.#instanceId
  }

  /** The rules with which the site begins. */
  async setUp(twin: TwinProcess): Promise<void> {
    const { store, newId, now } = twin
    this.#instanceId = newId()
    await createInstance(store, { id: this.#instanceId, shortName: 'site', accountId: 'customer' }, now())
    const [condition] = await createConditions(
      store,
      this.#instanceId,
      [{ operator: 'IN', property: 'tier', values: ['gold'] }],
      newId,
      now(),
    )
    this.#conditionId = condition?.id ?? ''
    await this.#setRates(twin, 1, -3_600_000)
    for (let index = 0; index < this.#lineItems.length; index += 1) {
      await this.#mapLineItem(twin, index)
      await this.#setActions(twin, index)
      await this.#setLimit(twin, index)
      if (this.#item(index).arrearsCap > 0) await this.#setArrearsCap(twin, index)
    }
    for (const { daily, startsAt } of this.#lineItems) {
      if (daily) this.#stage.faultIn('period began', startsAt + 86_400_000 - BEGIN)
    }
  }

  made(): RulesMade {
    return { lineItems: [...this.#lineItems], states: [...this.#states], actionIds: [...this.#actionIds] }
  }

  /** The twin has been put back to a backup that knows these. */
  putBack({ lineItems, states, actionIds }: RulesMade): void {
    this.#lineItems = [...lineItems]
    this.#states = [...states]
    this.#actionIds = [...actionIds]
  }

  happen(what: Extract<Happening, { kind: Changing }>): void {
    switch (what.kind) {
      case 'quantity':
        this.#change(what.lineItem, { quantity: what.quantity }, 'line')
        return
      case 'end':
        this.#change(what.lineItem, { endsAt: this.#stage.time.now + what.inMs }, 'line')
        this.#stage.faultIn('line item ended', what.inMs)
        return
      case 'state':
        this.#change(what.lineItem, {}, 'line', what.state)
        return
      case 'allocation':
        this.#change(what.lineItem, { goldAllocation: what.allocation }, 'actions')
        return
      case 'limit':
        this.#change(what.lineItem, { limit: what.limit }, 'limit')
        return
      case 'rates':
        this.#stage.byTwin((twin) => this.#setRates(twin, what.factor, what.inMs))
        this.#stage.faultIn('rates took effect', what.inMs)
        return
      case 'arrears-cap':
        this.#change(what.lineItem, { arrearsCap: what.cap }, 'arrears')
        return
    }
  }

  #change(
    index: number,
    changes: Partial<LineItemPlan>,
    what: RulePart,
    state: State = this.#states[index] ?? 'DEPLOYED',
  ): void {
    this.#stage.byTwin(async (twin) => {
      this.#stage.fault('rule changed')
      await this.#enter(twin, index, { ...this.#item(index), ...changes }, what, state)
    })
  }

  /** Known before it is done: a twin that dies after its commit cannot say so. One that dies before it has changed nothing. */
  async #enter(twin: TwinProcess, index: number, item: LineItemPlan, what: RulePart, state: State): Promise<void> {
    const before = this.#item(index)
    const known = {
      caps: this.#stage.auditor.facts.caps.get(item.id),
      state: this.#states[index],
      revision: this.#revision(),
    }
    this.#lineItems[index] = item
    this.#states[index] = state
    const versions = this.#versions[index] ?? [before]
    this.#versions[index] = [...versions, item]
    try {
      if (what === 'line') await this.#mapLineItem(twin, index)
      else if (what === 'actions') await this.#setActions(twin, index)
      else if (what === 'limit') await this.#setLimit(twin, index)
      else await this.#setArrearsCap(twin, index)
    } finally {
      if (!twin.alive && this.#revision() === known.revision) {
        this.#lineItems[index] = before
        this.#states[index] = known.state ?? 'DEPLOYED'
        this.#versions[index] = versions
        if (known.caps !== undefined) this.#stage.auditor.pools.setCaps(item.id, known.caps)
      } else if (!twin.alive && what === 'actions') this.#readActions(index)
    }
  }

  /** The answer that would have named the action is lost. */
  #readActions(index: number): void {
    const { id, goldAllocation } = this.#item(index)
    const sql = 'SELECT id FROM actions WHERE line_item_id = ? AND allocation IS NOT NULL'
    const made = query(this.#stage.twin.database, sql).pluck().get(id) as string | undefined
    this.#actionIds[index] = goldAllocation === null ? null : (made ?? null)
    this.#setCaps(index)
  }

  /** Of the rules, as it stands in the twin's database. */
  #revision(): unknown {
    return query(this.#stage.twin.database, 'SELECT revision FROM policy_revisions').pluck().get()
  }

  /** What devices were allowed since the backup, where the restored twin cannot believe in what they used. */
  enterAgain(): void {
    this.hasEnteredAgain = true
    this.#stage.trace.note('plan', 'an administrator enters again what the twin has forgotten')
    for (const [index, item] of this.#lineItems.entries()) {
      const highest = [item, ...(this.#versions[index] ?? [])].reduce(mostOf)
      for (const what of ['line', 'actions', 'limit', 'arrears'] as const) {
        this.#stage.byTwin((twin) => this.#enter(twin, index, highest, what, this.#states[index] ?? 'DEPLOYED'))
      }
    }
  }

  async #mapLineItem({ store, now }: TwinProcess, index: number): Promise<void> {
    const item = this.#item(index)
    this.#setCaps(index)
    await mapLineItem(
      store,
      this.#instanceId,
      {
        activationId: item.id,
        state: this.#states[index] ?? 'DEPLOYED',
        quantity: item.quantity,
        start: item.startsAt,
        end: item.endsAt,
        attributes: {
          elastic: true,
          ...(item.overdraft === 0 ? {} : { overdraftType: item.overdraft === 'UNLIMITED' ? 'Unlimited' : 'Number' }),
          ...(typeof item.overdraft === 'number' && item.overdraft > 0 ? { overdraftLimit: item.overdraft } : {}),
          ...(item.daily ? { resetFrequency: 'DAILY' } : {}),
        },
      },
      now(),
    )
  }

  async #setActions({ store, newId, now }: TwinProcess, index: number): Promise<void> {
    const { id, goldAllocation } = this.#item(index)
    const place = { instanceId: this.#instanceId, lineItemId: id }
    const actionId = this.#actionIds[index] ?? null
    const gold = {
      ...(actionId === null || goldAllocation === null ? {} : { id: actionId }),
      conditionId: this.#conditionId,
      action: 'ALLOW' as const,
      allocation: BigInt(goldAllocation ?? 0) * MICRO,
    }
    const everybody = { action: 'ALLOW' as const }
    const made = await replaceActions(
      store,
      place,
      goldAllocation === null ? [everybody] : [gold, everybody],
      newId,
      now(),
    )
    this.#actionIds[index] = goldAllocation === null ? null : (made[0]?.action.id ?? null)
    this.#setCaps(index)
  }

  async #setLimit({ store, now }: TwinProcess, index: number): Promise<void> {
    const { id, limit } = this.#item(index)
    this.#setCaps(index)
    if (limit === null) {
      await removeConsumptionLimit(store, this.#instanceId, id, now()).catch((error: unknown) => {
        if (!(error instanceof CodedError) || error.code !== 'NOT_FOUND') throw error
      })
      return
    }
    const nextReset = BEGIN + 2 * 3_600_000
    const days = Math.max(0, Math.ceil((now() + 1 - nextReset) / 86_400_000))
    await setConsumptionLimit(
      store,
      this.#instanceId,
      id,
      { limit: BigInt(limit) * MICRO, frequency: 'DAILY', nextReset: nextReset + days * 86_400_000 },
      now(),
    )
  }

  async #setArrearsCap({ store, now }: TwinProcess, index: number): Promise<void> {
    const { id, arrearsCap } = this.#item(index)
    const cap = BigInt(arrearsCap) * MICRO
    this.#stage.auditor.pools.setArrearsCap(id, cap)
    await setOfflinePolicy({ store, now }, this.#instanceId, id, cap)
  }

  async #setRates({ store, now }: TwinProcess, factor: number, inMs: number): Promise<void> {
    this.#rateVersions += 1
    const items = ITEMS.map((name) => {
      const rate = parseDecimal(Number((RATES[name] * factor).toFixed(6)))
      if (rate === undefined) throw new Error('a rate is a decimal')
      return { name, version: '', rate }
    })
    await createRateTable(store, { version: `v${this.#rateVersions}`, effectiveFrom: now() + inMs, items }, now())
  }

  #item(index: number): LineItemPlan {
    const item = this.#lineItems[index]
    if (item === undefined) throw new Error('the plan names a line item of the site')
    return item
  }

  /** What the auditor must expect of the caps of a line item. */
  #setCaps(index: number): void {
    const { id, quantity, overdraft, goldAllocation, limit } = this.#item(index)
    const actionId = this.#actionIds[index] ?? null
    this.#stage.auditor.pools.setCaps(id, {
      line: overdraft === 'UNLIMITED' ? null : BigInt(quantity + overdraft) * MICRO,
      allocations: new Map(
        actionId === null || goldAllocation === null ? [] : [[actionId, BigInt(goldAllocation) * MICRO]],
      ),
      limit: limit === null ? null : BigInt(limit) * MICRO,
    })
  }
}

/** What either of the two allows. */
function mostOf(a: LineItemPlan, b: LineItemPlan): LineItemPlan {
  const most = (one: number | null, other: number | null): number | null =>
    one === null || other === null ? (one ?? other) : Math.max(one, other)
  return {
    ...a,
    quantity: Math.max(a.quantity, b.quantity),
    overdraft:
      a.overdraft === 'UNLIMITED' || b.overdraft === 'UNLIMITED' ? 'UNLIMITED' : Math.max(a.overdraft, b.overdraft),
    goldAllocation: most(a.goldAllocation, b.goldAllocation),
    limit: most(a.limit, b.limit),
    arrearsCap: Math.max(a.arrearsCap, b.arrearsCap),
  }
}
