/**
 * One node of the cloud over a shared store, with the product's use cases, SQL and group commits. The process may die
 * before or after a commit.
 */
import type { HttpAnswer, HttpRequest } from '../../src/agent/platform/http/exchange.ts'
import { CloudShortages } from '../../src/cloud/sync/grants/cloud-shortages.ts'
import { Authenticator } from '../../src/cloud/service-api/authenticate.ts'
import { CLOCK_LOOK_EVERY_MS, ClockGuard } from '../../src/cloud/runtime/clock-guard.ts'
import { takeNextKey } from '../../src/cloud/devices/change-device-key.ts'
import { NotificationPublisher } from '../../src/cloud/devices/publish-notifications.ts'
import { CLOUD } from '../../src/cloud/storage/audit-records.ts'
import type { Settlement } from '../../src/cloud/storage/device-records.ts'
import { expireNextInactive } from '../../src/cloud/sync/grants/expire-inactive.ts'
import { notifyServable, recallForCloud } from '../../src/cloud/sync/grants/watch-shortages.ts'
import type { EdgeTerms } from '../../src/cloud/devices/terms.ts'
import { Policies } from '../../src/cloud/policy/load-policy.ts'
import { renewDuePolicy } from '../../src/cloud/policy/bump-policy-revision.ts'
import type { CreateLoadedSyncs } from '../../src/cloud/sync/loaded-syncs.ts'
import type { SyncDeps } from '../../src/cloud/sync/merge-context.ts'
import { endRecoveries } from '../../src/cloud/sync/recovery/recovery.ts'
import { Sales } from '../../src/cloud/sync/recovery/sales.ts'
import { SyncBatcher } from '../../src/cloud/sync/sync-batcher.ts'
import type { Defer } from '../../src/cloud/runtime/batcher.ts'
import { forgetAnswers } from '../../src/cloud/service-api/idempotency-key.ts'
import { AccessBatcher } from '../../src/cloud/service-api/request-access.ts'
import { heartbeatOfDevice, sweepNextSession } from '../../src/cloud/sessions/session-life.ts'
import type { Engine } from '../../src/core/engine.ts'
import type { Store } from '../../src/cloud/storage/store.ts'
import { CodedError } from '../../src/protocol/errors.ts'
import { Violation, wordsOf } from '../audit/violation.ts'
import type { TwinDefects } from '../defects/twin-defects.ts'
import type { Broker } from '../world/broker.ts'
import type { Random } from '../world/random.ts'
import type { Scheduler } from '../world/scheduler.ts'
import type { KeyPair } from '../world/signatures.ts'
import { CellsOfNode } from './cells-of-node.ts'
import { HttpInterface } from './http-interface.ts'
import { MarkDisk } from './mark-disk.ts'
import type { TwinProcess } from './twin-process.ts'

export interface NodeDeps {
  readonly name: string
  readonly scheduler: Scheduler
  readonly random: Random
  readonly key: KeyPair
  readonly terms: EdgeTerms
  readonly undecidedClock: 'allow' | 'refuse'
  readonly settlement: { readonly afterMs: number; readonly as: Settlement }
  readonly defects: TwinDefects
  readonly nodes: number
  /** Whether clients use idempotency keys: a commit more would move the others. */
  readonly hasKeys: boolean
  /** Null: no push. */
  readonly broker: Broker | null
  readonly now: () => number
  readonly engine: () => Engine
  readonly waitMs: () => number
  readonly percentMax: () => number
  readonly note: (what: string) => void
  readonly onViolation: (violation: Violation) => void
  readonly onFault: (kind: string) => void
}

const SWEEP_EVERY_MS = 60_000
const SETTLE_EVERY_MS = 240_000
/** Longer than in the product, so that a power cut loses more. */
const MARK_EVERY_MS = 60_000
/** Longer than in the product, for fewer events per run. */
const TURN_EVERY_MS = { shared: 20_000, alone: 60_000 }
const POLICIES_EVERY_MS = 180_000
const NOTIFICATIONS_EVERY_MS = 60_000
/** Longer than in the product, for fewer events per run. */
const FORGET_EVERY_MS = 180_000
const NOTIFY_EVERY_MS = 10_000
const RECALL_EVERY_MS = 60_000
/** Longer than in the product, for fewer events per run. */
const CELLS_EVERY_MS = 60_000

/** A transaction that several syncs share, in the counts of a run. */
export const SYNCS_SHARED = 'syncs shared a transaction'

type Open = (alive: () => boolean) => Store

interface Stores {
  readonly site: Open
  /** Null: the cloud has no cells. */
  readonly control: Open | null
}

/** There is no event loop turn to wait for. */
const atOnce = (call: () => void): void => call()

/** Thrown by work of an ended process. */
export class Dead extends Error {}

export class TwinNode {
  readonly #deps: NodeDeps
  readonly #mark = new MarkDisk()
  #process: (TwinProcess & { alive: boolean }) | null = null
  #http: HttpInterface | null = null
  /** Resolves when the node can listen. */
  #ready: Promise<unknown> = Promise.resolve()
  #cancelStart: () => void = () => undefined

  constructor(deps: NodeDeps) {
    this.#deps = deps
  }

  get process(): TwinProcess | null {
    return this.#process
  }

  /**
   * @param open the stores for this process
   * @param isRestored start with a declared restore
   */
  start(open: Stores, isRestored: boolean): void {
    const { scheduler, random, key, terms, undecidedClock, settlement, defects, now, onFault, engine, nodes } =
      this.#deps
    const { broker } = this.#deps
    const policies = new Policies({ max: 10, undecidedClock })
    const sales = this.#sales(open.site, () => process.alive, policies, isRestored)
    const { store } = sales
    const clock = new ClockGuard({
      store,
      clocks: { now, sinceBoot: () => scheduler.now, bootId: this.#deps.name, comparesDatabase: false },
      log: { warn: ({ code }) => onFault(`the clock of the twin: ${String(code)}`), info: () => undefined },
      settleAfterMs: () => settlement.afterMs,
    })
    const shortages = new CloudShortages(terms)
    const syncs = {
      store,
      policies,
      terms,
      now,
      keys: {
        signer: key.signer,
        trusted: [{ keyId: key.signer.keyId, jwk: key.publicJwk, publicKey: key.publicKey }],
      },
      present: () => (defects.trustsClock(clock.isTrusted()) ? now() : clock.present()),
      trustsClock: () => clock.isTrusted(),
      heartbeat: (tx, { id }, ...rest) => heartbeatOfDevice(tx, id, ...rest),
    } satisfies SyncDeps
    const control = open.control?.(() => process.alive)
    const newId = (): string => random.uuid()
    const cells =
      control === undefined ? null : new CellsOfNode({ control, site: store, keys: syncs.keys, now, newId, defects })
    const defer = this.#defer(() => process.alive)
    const process: TwinProcess & { alive: boolean } = {
      alive: true,
      ...syncs,
      syncBatcher: new SyncBatcher(syncs, defer, this.#createLoadedSyncs),
      batcher: new AccessBatcher({ store, policies, shortages, defer }),
      shortages,
      authenticator: new Authenticator({
        store,
        defer: atOnce,
        takeNextKey: (deviceId, used) => takeNextKey({ store, now, onKeyReplaced: () => undefined }, deviceId, used),
        signIn: null,
      }),
      confirmClock: async () => {
        // The time that one node confirms counts for all of them.
        if (clock.doubt === null || (nodes > 1 && now() !== scheduler.now)) return
        await clock.confirm(CLOUD)
        onFault('the clock of the twin is confirmed')
      },
      newId,
      get engine() {
        return engine()
      },
      cells,
    }
    this.#process = process
    this.#http = new HttpInterface(process, defects, broker !== null)
    this.#ready = this.run(process, async () => {
      await sales.start()
      await clock.look()
      await cells?.start()
    })
    if (cells !== null) this.#repeat(process, CELLS_EVERY_MS, () => cells.look())
    this.#repeat(process, MARK_EVERY_MS, () => sales.flush())
    this.#repeat(process, TURN_EVERY_MS[this.#deps.nodes > 1 ? 'shared' : 'alone'], () => sales.turn())
    this.#work(process, clock)
    this.#publish(process)
  }

  /** While the cloud is busy, requests wait for others. Calls of an ended process are dropped. */
  #defer(alive: () => boolean): Defer {
    const { scheduler, waitMs } = this.#deps
    return (call) => {
      const ms = waitMs()
      if (ms === 0) call()
      else
        scheduler.at(scheduler.now + ms, () => {
          if (alive()) call()
        })
    }
  }

  /** Counts transactions that several syncs share. */
  readonly #createLoadedSyncs: CreateLoadedSyncs = (...loaded) => {
    const { defects, onFault } = this.#deps
    const batch = defects.createLoadedSyncs(...loaded)
    let decided = 0
    return {
      decide: async (order) => {
        const judged = await batch.decide(order)
        decided += 1
        return judged
      },
      write: () => {
        if (decided > 1) onFault(SYNCS_SHARED)
        return batch.write()
      },
    }
  }

  #sales(open: Open, alive: () => boolean, policies: Policies, restored: boolean): Sales {
    const { scheduler, random, nodes, now, note, onViolation } = this.#deps
    return new Sales({
      store: open(alive),
      file: this.#mark.file(() => {
        if (!alive()) throw new Dead('it is down')
      }),
      policies,
      shared: nodes > 1,
      restored,
      now,
      newId: () => random.uuid(),
      pause: (ms) => new Promise((resolve) => scheduler.at(scheduler.now + ms, () => resolve(undefined))),
      onRecovery: (reason) => note(`recovery begins: ${reason}`),
      onBroken: (error) => onViolation(new Violation('ASSERTION', wordsOf(error))),
    })
  }

  /** Unflushed writes are lost. */
  powerCut(): void {
    this.#mark.powerCut()
  }

  #work(process: TwinProcess, clock: ClockGuard): void {
    const { terms, settlement, percentMax, defects, now, onFault } = this.#deps
    const { store } = process
    this.#repeat(process, SWEEP_EVERY_MS, () =>
      sweepNextSession({ ...process, sessionIntervalMs: terms.sessionIntervalMs }, now()),
    )
    this.#repeat(process, SETTLE_EVERY_MS, async () => {
      const settled =
        defects.trustsClock(clock.isTrusted()) &&
        (await expireNextInactive({ ...process, ...settlement, percentMax: percentMax() }))
      if (settled) onFault(`settled as ${settlement.as.toLowerCase()}`)
      return settled
    })
    this.#repeat(process, CLOCK_LOOK_EVERY_MS, () => clock.look())
    if (this.#deps.hasKeys) {
      const isTrusted = (): boolean => defects.trustsClock(clock.isTrusted())
      this.#repeat(process, FORGET_EVERY_MS, async () => isTrusted() && forgetAnswers(store, now()))
    }
    this.#repeat(process, SETTLE_EVERY_MS, () => endRecoveries(store, now()))
    this.#repeat(process, NOTIFY_EVERY_MS, () => notifyServable(process))
    this.#repeat(process, RECALL_EVERY_MS, () => recallForCloud(process))
    this.#repeat(process, POLICIES_EVERY_MS, () => store.transaction((tx) => renewDuePolicy(tx, now())))
    defects.begin(process, (ms, work) => this.#repeat(process, ms, work))
  }

  #publish(process: TwinProcess): void {
    const { broker, now } = this.#deps
    if (broker === null) return
    const publisher = new NotificationPublisher({
      store: process.store,
      broker,
      now,
      timers: {
        every: (ms, call) => {
          this.#repeat(process, ms, async () => call())
          return () => undefined
        },
      },
      log: { info: () => undefined, warn: () => undefined },
      lookEveryMs: NOTIFICATIONS_EVERY_MS,
    })
    publisher.start()
  }

  end(): boolean {
    this.#cancelStart()
    if (this.#process === null) return false
    this.#process.alive = false
    this.#process = null
    return true
  }

  startIn(ms: number, start: () => void): void {
    const { scheduler } = this.#deps
    this.#cancelStart()
    this.#cancelStart = scheduler.at(scheduler.now + ms, start)
  }

  async answer(process: TwinProcess, request: HttpRequest): Promise<HttpAnswer | undefined> {
    const http = this.#http
    await this.#ready
    return http === null ? undefined : this.run(process, () => http.answer(request))
  }

  /** Work that only this process can finish. */
  async run<T>(process: TwinProcess, work: () => Promise<T>): Promise<T | undefined> {
    try {
      const result = await work()
      return process.alive ? result : undefined
    } catch (error) {
      if (!process.alive || error instanceof Dead) return undefined
      if (error instanceof CodedError) throw error
      this.#deps.onViolation(new Violation('ASSERTION', `the twin fails: ${wordsOf(error)}`))
      return undefined
    }
  }

  #repeat(process: TwinProcess, ms: number, next: () => Promise<boolean> | Promise<void>): void {
    const { scheduler } = this.#deps
    const round = async (): Promise<void> => {
      for (let done = 0; done < 100 && process.alive && (await next()) === true; done += 1) continue
    }
    const again = (): void => {
      scheduler.at(scheduler.now + ms, () => {
        if (!process.alive) return
        void this.run(process, round).then(again)
      })
    }
    again()
  }
}
