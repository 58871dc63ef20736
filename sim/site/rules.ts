/**
 * Rules set by administrators, and the caps that the auditor must expect. A cloud that dies or is restored may not know
 * them.
 */
import { ENGINE } from '../../src/core/engine.ts'
import { setCloudReserve } from '../../src/cloud/policy/cloud-reserve.ts'
import { changeConfiguration } from '../../src/cloud/service-api/change-configuration.ts'
import { createConditions } from '../../src/cloud/service-api/change-conditions.ts'
import { createInstance } from '../../src/cloud/service-api/create-instance.ts'
import { setOfflinePolicy } from '../../src/cloud/policy/offline-policy.ts'
import type { Database } from '../../src/cloud/storage/sqlite/database.ts'
import { query } from '../audit/query.ts'
import { Violation } from '../audit/violation.ts'
import { CONDITIONS, type ConditionName, NESTED_NAMES } from '../conditions.ts'
import { BEGIN, HOUR, type Happening, type LineItemPlan } from '../plan.ts'
import { changeShared } from '../twin/change-shared.ts'
import type { TwinProcess } from '../twin/twin-process.ts'
import { type InstanceMade, MICRO, allocationsOf, map, setActions, setLimit, setRates } from './rule-calls.ts'
import { wordsOfPlan, wordsOfPublished } from './published-rules.ts'
import type { Stage } from './stage.ts'

type RulePart = 'line' | 'actions' | 'limit' | 'overspend'

const PARTS: readonly RulePart[] = ['line', 'actions', 'limit', 'overspend']

type Changing =
  | 'quantity'
  | 'overdraft'
  | 'frequency'
  | 'series'
  | 'audience'
  | 'actions'
  | 'end'
  | 'state'
  | 'obsolete'
  | 'allocation'
  | 'limit'
  | 'rates'
  | 'overspend-cap'
  | 'cloud-reserve'
  | 'configuration'
  | 'twin-engine-upgrade'

/** What the control cell has for all cells and the simulation changes. */
const SHARED_TABLES = [
  'SELECT series, version, effective_from, created, items FROM rate_tables',
  'SELECT * FROM configuration',
]

export interface RulesMade {
  readonly lineItems: readonly LineItemPlan[]
  /** Of the actions with allocations, by line item. */
  readonly actionIds: readonly (readonly string[])[]
}

interface RuleChange {
  readonly index: number
  /** Of the counter; null: part of a counted change. */
  readonly name: string | null
  readonly part: RulePart
  readonly changes: Partial<LineItemPlan>
  /** Required state of the line item; undefined: still served. */
  readonly from: LineItemPlan['state'] | undefined
}

export class Rules {
  readonly #stage: Stage
  #lineItems: LineItemPlan[]
  #actionIds: (readonly string[])[] = []
  readonly #instances: InstanceMade[] = []
  #rateVersions = 0
  readonly #versions: (readonly LineItemPlan[] | undefined)[] = []
  hasEnteredAgain = false

  constructor(stage: Stage) {
    this.#stage = stage
    this.#lineItems = [...stage.plan.site.lineItems]
  }

  get instanceIds(): readonly string[] {
    return this.#instances.map(({ id }) => id)
  }

  instanceId(index = 0): string {
    return this.#instance(index).id
  }

  async setUp(twin: TwinProcess): Promise<void> {
    const { store, newId, now } = twin
    for (let index = 0; index < this.#stage.plan.site.instances; index += 1) {
      const id = newId()
      await createInstance(store, { id, shortName: `site-${index}`, accountId: 'customer' }, now())
      const names = this.#conditionNames()
      const inputs = names.map((name) => CONDITIONS[name])
      const made = await createConditions({ store, newId }, id, inputs, now())
      this.#instances.push({ id, conditionIds: new Map(names.map((name, at) => [name, made[at]?.id ?? ''])) })
    }
    await changeShared(twin, async (shared) => {
      await setRates(shared, 'v1', { factor: 1, inMs: -HOUR })
      await setRates(shared, 'v1', { factor: 1.5, inMs: -HOUR, series: 'S', areFormulas: true })
    })
    for (const [index, item] of this.#lineItems.entries()) {
      for (const part of PARTS) if (part !== 'overspend' || item.overspendCap > 0) await this.#make(twin, index, part)
      if (item.frequency === 'DAILY') this.#stage.faultIn('period began', item.startsAt + 24 * HOUR - BEGIN)
    }
  }

  #conditionNames(): readonly ConditionName[] {
    const { site, events } = this.#stage.plan
    const isNested = events.some(({ what }) => what.kind === 'actions') || site.lineItems.some(({ actions }) => actions)
    return ['gold', 'others', ...(isNested ? NESTED_NAMES : [])]
  }

  get lineItems(): readonly LineItemPlan[] {
    return this.#lineItems
  }

  async raise(index: number, tokens: number): Promise<void> {
    const item = this.#item(index)
    this.#stage.byTwin((twin) => this.#enter(twin, index, { ...item, quantity: item.quantity + tokens }, 'line'))
    await this.#stage.settle()
  }

  made(): RulesMade {
    return { lineItems: [...this.#lineItems], actionIds: [...this.#actionIds] }
  }

  /** The cloud was restored to a backup with these rules. */
  putBack({ lineItems, actionIds }: RulesMade): void {
    this.#lineItems = [...lineItems]
    this.#actionIds = [...actionIds]
  }

  happen(what: Extract<Happening, { kind: Changing }>): void {
    switch (what.kind) {
      case 'quantity':
        this.#change(what.lineItem, 'quantity', 'line', { quantity: what.quantity })
        return
      case 'overdraft':
        this.#change(what.lineItem, this.#overdraftChange(what), 'line', { overdraft: what.overdraft })
        return
      case 'frequency':
        this.#change(what.lineItem, 'reset frequency', 'line', { frequency: what.frequency })
        return
      case 'series':
        this.#change(what.lineItem, 'series', 'line', { series: what.series })
        return
      case 'audience':
        this.#change(what.lineItem, 'DENY', 'actions', { audience: what.audience })
        return
      case 'actions':
        this.#change(what.lineItem, 'actions', 'actions', { actions: what.actions })
        return
      case 'end':
        this.#change(what.lineItem, 'end', 'line', { endsAt: this.#stage.time.now + what.inMs })
        this.#stage.faultIn('line item ended', what.inMs)
        return
      case 'state':
        this.#change(what.lineItem, 'state', 'line', { state: what.state })
        return
      case 'obsolete':
        this.#obsolete(what)
        return
      case 'allocation':
        this.#change(what.lineItem, 'allocation', 'actions', { goldAllocation: what.allocation })
        return
      case 'limit':
        this.#change(what.lineItem, 'limit', 'limit', { limit: what.limit })
        return
      case 'overspend-cap':
        this.#change(what.lineItem, 'overspend cap', 'overspend', { overspendCap: what.cap })
        return
      case 'cloud-reserve':
        this.#reserve(what)
        return
      case 'rates':
        this.#rates(what)
        return
      case 'twin-engine-upgrade':
        this.#upgradeEngine(what)
        return
      case 'configuration':
        this.#stage.changeShared(async ({ store, now }) => {
          this.#stage.fault(what.name)
          await changeConfiguration(store, [what], 'administrator', now())
        })
        return
    }
  }

  /** The new engine finds rules of an older one. Strict: it supports no older agents, until a later release. */
  #upgradeEngine(what: Extract<Happening, { kind: 'twin-engine-upgrade' }>): void {
    const { isStrict, forMs } = what
    const { twin } = this.#stage
    this.#stage.byTwin(async ({ store }) => {
      this.#stage.fault(isStrict ? 'strict engine of the twin' : 'engine of the twin')
      const version = twin.engine.version + 1
      twin.engine = { version, oldest: isStrict ? version : ENGINE.oldest }
      const relaxed = { ...what, isStrict: false }
      if (isStrict) this.#stage.later(forMs, () => this.#upgradeEngine(relaxed))
      await store.transaction(async (tx) => {
        for (const instanceId of this.instanceIds.toSorted()) {
          const revision = await tx.policyRevisions.lock(instanceId)
          if (revision !== undefined) await tx.policyRevisions.save({ ...revision, engine: ENGINE.version - 1 })
        }
      })
    })
  }

  #rates(what: Extract<Happening, { kind: 'rates' }>): void {
    this.#stage.changeShared(async (twin) => {
      this.#rateVersions += 1
      await setRates(twin, `w${this.#rateVersions}`, what)
    })
    this.#stage.faultIn(what.areFormulas === true ? 'formulas took effect' : 'rates took effect', what.inMs)
  }

  #reserve({ lineItem, tokens }: Extract<Happening, { kind: 'cloud-reserve' }>): void {
    const { id, instance } = this.#item(lineItem)
    const reserve = { instanceId: this.instanceId(instance), lineItemId: id, tokens: BigInt(tokens) * MICRO }
    // The line item may be deleted.
    this.#stage.byTwinOrRefused(['NOT_FOUND'], async (twin) => {
      this.#stage.fault('changed: reserve of the cloud')
      await setCloudReserve(twin, reserve)
    })
  }

  #overdraftChange({ lineItem, overdraft }: Extract<Happening, { kind: 'overdraft' }>): string {
    const before = this.#item(lineItem).overdraft
    if (before === overdraft) return 'overdraft'
    if (overdraft === 'UNLIMITED') return 'overdraft becomes unlimited'
    return before === 'UNLIMITED' ? 'unlimited overdraft withdrawn' : 'overdraft'
  }

  #obsolete({ lineItem, deleteInMs, mapInMs }: Extract<Happening, { kind: 'obsolete' }>): void {
    const { time } = this.#stage
    const { limit } = this.#item(lineItem)
    this.#change(lineItem, 'OBSOLETE', 'line', { state: 'OBSOLETE' })
    time.at(time.now + deleteInMs, () => {
      this.#change(lineItem, 'deleted', 'line', { state: 'DELETED', limit: null }, 'OBSOLETE')
    })
    time.at(time.now + deleteInMs + mapInMs, () => {
      this.#stage.byTwin(async (twin) => {
        for (const part of PARTS) {
          const from = part === 'line' ? ('DELETED' as const) : ('DEPLOYED' as const)
          // A deleted line item has lost its limit: the cloud may die before it has the limit again.
          const changes = { state: 'DEPLOYED', ...(part === 'limit' ? { limit } : {}) } as const
          const change = { index: lineItem, name: part === 'line' ? 'mapped again' : null, part, changes, from }
          await this.#changeBy(twin, change)
        }
      })
    })
  }

  #change(
    index: number,
    name: string,
    part: RulePart,
    changes: Partial<LineItemPlan>,
    from?: LineItemPlan['state'],
  ): void {
    this.#stage.byTwin((twin) => this.#changeBy(twin, { index, name, part, changes, from }))
  }

  async #changeBy(twin: TwinProcess, { index, name, part, changes, from }: RuleChange): Promise<void> {
    const item = this.#item(index)
    const isServed = item.state === 'DEPLOYED' || item.state === 'INACTIVE'
    if (from === undefined ? !isServed : item.state !== from) return
    if (name !== null) this.#stage.fault(`changed: ${name}`)
    await this.#enter(twin, index, { ...item, ...changes }, part)
  }

  /**
   * Recorded before the call: a cloud that dies after its commit cannot respond. If it dies before, nothing changed.
   */
  async #enter(twin: TwinProcess, index: number, item: LineItemPlan, part: RulePart): Promise<void> {
    const before = this.#item(index)
    const revision = this.#revision(index)
    const caps = this.#stage.auditor.shared.caps.get(item.id)
    this.#lineItems[index] = item
    const versions = this.#versions[index] ?? [before]
    this.#versions[index] = [...versions, item]
    try {
      await this.#make(twin, index, part)
    } finally {
      if (!twin.alive && this.#revision(index) === revision) {
        this.#lineItems[index] = before
        this.#versions[index] = versions
        if (caps !== undefined) this.#stage.auditor.pools.setCaps(item.id, caps)
      } else if (!twin.alive && part === 'actions') this.#readActions(index)
    }
  }

  async #make(twin: TwinProcess, index: number, part: RulePart): Promise<void> {
    const item = this.#item(index)
    const instance = this.#instance(item.instance)
    if (item.state === 'DELETED') this.#actionIds[index] = []
    if (part !== 'overspend') this.#setCaps(index)
    if (part === 'line') await map(twin, instance, item)
    else if (part === 'limit') await setLimit(twin, instance, item)
    else if (part === 'actions') {
      this.#actionIds[index] = await setActions(twin, instance, item, this.#actionIds[index] ?? [])
      this.#setCaps(index)
    } else {
      const cap = BigInt(item.overspendCap) * MICRO
      this.#stage.auditor.pools.setOverspendCap(item.id, cap)
      await setOfflinePolicy(twin, instance.id, item.id, cap)
    }
  }

  /** After a lost response: reads the new actions' ids. */
  #readActions(index: number): void {
    const item = this.#item(index)
    const sql = 'SELECT id FROM actions WHERE line_item_id = ? AND allocation IS NOT NULL ORDER BY position'
    this.#actionIds[index] = query(this.#stage.twin.database, sql).pluck().all(item.id) as string[]
    this.#setCaps(index)
  }

  #revision(index: number): unknown {
    const { id } = this.#instance(this.#item(index).instance)
    const sql = 'SELECT revision FROM policy_revisions WHERE instance_id = ?'
    return query(this.#stage.twin.database, sql).pluck().get(id)
  }

  /** At rest, devices have the rules that administrators have set. */
  checkPublished(): void {
    const { published, shared } = this.#stage.auditor
    for (const [index, item] of this.#lineItems.entries()) {
      // The last one with this number, which no device may have got.
      const policy = published.rulesOf(this.instanceId(item.instance), Number(this.#revision(index))).at(-1)
      if (policy === undefined) continue
      shared.look('DECISION')
      const set = wordsOfPlan(item)
      const found = wordsOfPublished(
        policy.lineItems.find(({ id }) => id === item.id),
        policy,
      )
      if (found !== set) throw new Violation('DECISION', `the rules ${set} are published as ${found}`)
    }
  }

  /** At rest, the cell of the site has what the control cell has for all cells. */
  checkCopied(): void {
    const { twin, auditor } = this.#stage
    if (twin.control === null) return
    auditor.shared.look('DECISION')
    for (const sql of SHARED_TABLES) {
      const [wanted, found] = [rowsOf(twin.control, sql), rowsOf(twin.database, sql)]
      const different = [...wanted.symmetricDifference(found)]
      if (different.length === 0) continue
      throw new Violation('DECISION', `only one of the two cells has ${different.join(', ')}`)
    }
  }

  /** Enters rules forgotten since the backup, so that a restored cloud accepts the usage. */
  enterAgain(): void {
    this.hasEnteredAgain = true
    this.#stage.trace.note('plan', 'an administrator enters again what the twin has forgotten')
    for (const [index, item] of this.#lineItems.entries()) {
      if (item.state === 'DELETED') continue
      const highest = [item, ...(this.#versions[index] ?? [])].reduce(mostOf)
      this.#stage.byTwin(async (twin) => {
        for (const part of PARTS) await this.#enter(twin, index, highest, part)
      })
    }
  }

  #item(index: number): LineItemPlan {
    const item = this.#lineItems[index]
    if (item === undefined) throw new Error('the plan names a line item of the site')
    return item
  }

  #instance(index: number): InstanceMade {
    const instance = this.#instances[index]
    if (instance === undefined) throw new Error('the plan names an instance of the site')
    return instance
  }

  #setCaps(index: number): void {
    const item = this.#item(index)
    const { id, quantity, overdraft, limit } = item
    const isGone = item.state === 'DELETED'
    const allocations = allocationsOf(item)
    const line = overdraft === 'UNLIMITED' ? null : BigInt(quantity + overdraft) * MICRO
    this.#stage.auditor.pools.setCaps(id, {
      line: isGone ? 0n : line,
      allocations: new Map((this.#actionIds[index] ?? []).map((actionId, at) => [actionId, allocations[at] ?? 0n])),
      limit: limit === null || isGone ? null : BigInt(limit) * MICRO,
    })
  }
}

function rowsOf(database: Database, sql: string): ReadonlySet<string> {
  return new Set((query(database, sql).raw().all() as unknown[][]).map((row) => row.join(' ')))
}

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
    overspendCap: Math.max(a.overspendCap, b.overspendCap),
  }
}
