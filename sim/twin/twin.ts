/**
 * The cloud: nodes over a database that outlives them. Nodes die around commits, the clock may be wrong, and a backup
 * may replace the database.
 */
import type { HttpAnswer, HttpRequest } from '../../src/agent/platform/http/exchange.ts'
import { ENGINE } from '../../src/core/engine.ts'
import type { Policy } from '../../src/core/rules/policy.ts'
import { FleetFigures } from '../../src/cloud/storage/sql/fleet-figures.ts'
import { ALONE, type Sql } from '../../src/cloud/storage/sql/sql.ts'
import { readerOf, workOn } from '../../src/cloud/storage/sql/transaction.ts'
import type { Database } from '../../src/cloud/storage/sqlite/database.ts'
import { withoutQueue } from '../../src/cloud/storage/sqlite/dialect.ts'
import { GroupCommit } from '../../src/cloud/storage/sqlite/group-commit.ts'
import type { UsageRecord } from '../../src/cloud/storage/records.ts'
import type { Store, Transaction } from '../../src/cloud/storage/store.ts'
import { query } from '../audit/query.ts'
import type { Random } from '../world/random.ts'
import { respondingUnless } from './cells-of-node.ts'
import { Dead, type NodeDeps, TwinNode } from './node.ts'
import { RulesSeen } from './rules-seen.ts'
import type { TwinProcess } from './twin-process.ts'
import { emptyTwin, openImage } from './twin-database.ts'

export interface CommitTrap {
  skip: number
  readonly when: 'BEFORE' | 'AFTER'
  /** Unflushed writes are lost. */
  readonly power: boolean
  readonly downMs: number
}

export interface TwinDeps extends Omit<NodeDeps, 'name' | 'now' | 'engine' | 'waitMs' | 'percentMax'> {
  /** The site is in a cell beside the control cell. */
  readonly hasCells: boolean
  readonly onCommit: () => void
  /** @param errors of the nodes' wall clocks, ms */
  readonly onClocks: (errors: readonly number[]) => void
  /** A transaction, which may fail, records a decision. */
  readonly onDecided: (correlationId: string, rules: Policy, records: readonly UsageRecord[]) => void
}

export class Twin {
  readonly deps: TwinDeps
  /** Of the site. */
  database: Database
  /** Of the control cell; null: the cloud has no cells. */
  readonly control: Database | null
  isControlDown = false
  /** Of the software that all nodes run. */
  engine = ENGINE
  traps: CommitTrap[] = []
  /** How long requests wait for others before a transaction begins. 0: not at all. */
  waitMs = 0
  /** How many silent devices are settled a day without a confirmation: on a small site, any number may be silent at once. */
  settledPercentMax = 100
  readonly #nodes: readonly TwinNode[]
  readonly #balancer: Random
  #pending = 0
  readonly #lastTurns = new WeakMap<Database, Promise<unknown>>()
  readonly #listeners = new Set<() => void>()
  readonly #rules: RulesSeen
  readonly #queriesOf = new WeakMap<Database, Sql['db']>()
  /** By node, ms. */
  readonly #wallErrors: number[]
  /** The next start declares a restore. */
  #isRestored = false

  constructor(deps: TwinDeps) {
    this.deps = deps
    this.database = openImage(emptyTwin())
    this.control = deps.hasCells ? openImage(emptyTwin()) : null
    this.#balancer = deps.random.stream('balancer')
    this.#rules = new RulesSeen(deps)
    this.#wallErrors = Array.from({ length: deps.nodes }, () => 0)
    this.#nodes = Array.from({ length: deps.nodes }, (_, index) => {
      const now = (): number => deps.scheduler.now + (this.#wallErrors[index] ?? 0)
      const current = {
        now,
        engine: () => this.engine,
        waitMs: () => this.waitMs,
        percentMax: () => this.settledPercentMax,
      }
      return new TwinNode({ ...deps, name: `node ${index}`, ...current })
    })
    for (const node of this.#nodes) this.#start(node)
  }

  /** Of a serving node; null: none. */
  get process(): TwinProcess | null {
    return this.#someNode()?.process ?? null
  }

  /** Work is in progress without a scheduled event. */
  get busy(): boolean {
    return this.#pending > 0
  }

  /** @param node undefined: all of them */
  stepClock(ms: number, node?: number): void {
    for (const [index, error] of this.#wallErrors.entries()) {
      if (node === undefined || node === index) this.#wallErrors[index] = error + ms
    }
    this.deps.onClocks(this.#wallErrors)
  }

  setClockRight(node?: number): void {
    for (const index of this.#wallErrors.keys()) {
      if (node === undefined || node === index) this.#wallErrors[index] = 0
    }
    this.deps.onClocks(this.#wallErrors)
  }

  confirmClocks(): void {
    for (const { process } of this.#nodes) if (process !== null) void this.run(process, () => process.confirmClock())
  }

  #someNode(): TwinNode | undefined {
    const serving = this.#nodes.filter(({ process }) => process !== null)
    return serving.length > 1 ? this.#balancer.pick(serving) : serving[0]
  }

  #start(node: TwinNode): void {
    if (node.process !== null) return
    this.deps.note('the twin starts')
    const { defects } = this.deps
    const isRestored = this.#isRestored
    this.#isRestored = false
    const { control } = this
    const open = {
      site: (alive: () => boolean) => defects.store(this.#store(node, this.database, alive), this.database),
      control:
        control &&
        ((alive: () => boolean) => respondingUnless(this.#store(node, control, alive), () => this.isControlDown)),
    }
    node.start(open, isRestored)
  }

  down(ms: number): void {
    for (const node of this.#nodes) this.#downNode(node, ms)
  }

  /** One node goes down; does nothing with a single node. */
  downOne(ms: number): boolean {
    const node = this.#nodes.length > 1 ? this.#someNode() : undefined
    if (node !== undefined) this.#downNode(node, ms)
    return node !== undefined
  }

  #downNode(node: TwinNode, ms: number): void {
    this.#end(node)
    node.startIn(ms, () => this.#start(node))
  }

  #end(node: TwinNode): void {
    if (!node.end()) return
    if (this.#nodes.every(({ process }) => process === null)) {
      this.#listeners.clear()
      this.database = this.deps.defects.onTwinEnd(this.database)
    }
  }

  backup(): Buffer {
    return this.database.serialize()
  }

  /** Replaces the database by a backup. @param told whether the restart declares the restore */
  restore(image: Buffer, downMs: number, told: boolean): void {
    for (const node of this.#nodes) this.#end(node)
    this.database.close()
    this.database = openImage(image)
    this.#rules.forget()
    this.#isRestored = told
    this.deps.onCommit()
    this.down(downMs)
  }

  close(): void {
    for (const node of this.#nodes) this.#end(node)
    this.database.close()
    this.control?.close()
  }

  calmDown(): void {
    this.traps = []
    this.waitMs = 0
    this.isControlDown = false
    this.setClockRight()
    for (const node of this.#nodes) {
      node.startIn(0, () => undefined)
      this.#start(node)
    }
  }

  /** Undefined: down, or went down before responding. */
  async answer(request: HttpRequest): Promise<HttpAnswer | undefined> {
    const node = this.#someNode()
    const process = node?.process ?? null
    if (node === undefined || process === null) return undefined
    return node.answer(process, request)
  }

  /** Work that only this process can finish. */
  async run<T>(process: TwinProcess, work: () => Promise<T>): Promise<T | undefined> {
    const node = this.#nodes.find((each) => each.process === process)
    return node?.run(process, work)
  }

  /** With several nodes, figures of the fleet are as old as those of a large fleet may be. */
  #fleetFigures(): FleetFigures {
    return this.#nodes.length === 1 ? new FleetFigures() : new FleetFigures({ exactMax: 0, usedMsPerDevice: 1_000 })
  }

  /** Prepares statements once per database: nodes start often. */
  #queries(database: Database): Sql['db'] {
    const known = this.#queriesOf.get(database) ?? withoutQueue(database, () => undefined)
    this.#queriesOf.set(database, known)
    return known
  }

  #store(node: TwinNode, database: Database, alive: () => boolean): Store {
    const db = this.#queries(database)
    const sql: Sql = { db, lockRows: false, rules: ALONE, fleet: this.#fleetFigures(), ahead: null, shrink: null }
    const runWork = workOn(sql)
    const commits = new GroupCommit(
      this.#guarded(node, database, alive),
      () => 0,
      async () => undefined,
    )
    const counted = async <T>(work: () => Promise<T>): Promise<T> => {
      this.#pending += 1
      try {
        return await (this.#nodes.length === 1 ? work() : this.#inTurn(database, work))
      } finally {
        this.#pending -= 1
      }
    }
    return {
      transaction: (work) =>
        counted(async () => {
          const written = { outbox: false, keys: false, requests: 1 }
          const run = (tx: Transaction) => work(this.#rules.watch(this.deps.defects.transaction(tx, database)))
          const result = await commits.run(
            () => runWork(run, written),
            () => written.outbox,
          )
          if (written.outbox) for (const listener of this.#listeners) listener()
          return result
        }),
      read: (work) =>
        counted(() =>
          commits.run(
            () => work(readerOf(sql)),
            () => false,
          ),
        ),
      onOutbox: (listener) => {
        this.#listeners.add(listener)
        return () => this.#listeners.delete(listener)
      },
      close: () => commits.idle(),
    }
  }

  /** Serializes writes of several nodes: each transaction has its own commit. */
  async #inTurn<T>(database: Database, work: () => Promise<T>): Promise<T> {
    const before = this.#lastTurns.get(database)
    const turn = Promise.withResolvers<undefined>()
    this.#lastTurns.set(database, turn.promise)
    await before
    try {
      return await work()
    } finally {
      turn.resolve(undefined)
    }
  }

  #guarded(node: TwinNode, database: Database, alive: () => boolean): Database {
    const commit = (): void => {
      const [trap] = this.traps
      const due = trap?.skip === 0
      if (trap !== undefined && !due) trap.skip -= 1
      if (due) {
        this.traps.shift()
        this.deps.onFault('twin killed at a commit')
        this.deps.note(`the twin dies ${trap.when} a commit${trap.power ? ', and its power with it' : ''}`)
      }
      if (due && trap.when === 'BEFORE') {
        if (trap.power) node.powerCut()
        this.#downNode(node, trap.downMs)
        throw new Dead('before the commit')
      }
      perform(database, 'COMMIT')
      if (database !== this.control) this.deps.defects.onCommit(database)
      this.deps.onCommit()
      if (due) {
        if (trap.power) node.powerCut()
        this.#downNode(node, trap.downMs)
        throw new Dead('after the commit')
      }
    }
    const guarded: Pick<Database, 'exec' | 'inTransaction'> = {
      get inTransaction() {
        return database.inTransaction
      },
      exec: (text) => {
        if (text === 'ROLLBACK') perform(database, text)
        else if (!alive()) throw new Dead('it is down')
        else if (text === 'COMMIT') commit()
        else perform(database, text)
        return database
      },
    }
    return guarded as Database
  }
}

function perform(database: Database, text: string): void {
  query(database, text).run()
}
