/**
 * The twin as a process over a database that outlives it. The use cases, the SQL and the shared commits are the product's;
 * simulated is that the process may die before or after a commit, that it is down for a time, and that somebody puts an old
 * backup in the place of its database.
 */
import type { HttpAnswer, HttpRequest } from '../../src/agent/adapters/cloud-http/exchange.ts'
import { ALONE, type Sql } from '../../src/cloud/adapters/sql/sql.ts'
import { readerOf, runWork } from '../../src/cloud/adapters/sql/transaction.ts'
import type { Database } from '../../src/cloud/adapters/sqlite/database.ts'
import { inOneHand } from '../../src/cloud/adapters/sqlite/dialect.ts'
import { GroupCommit } from '../../src/cloud/adapters/sqlite/group-commit.ts'
import { Authenticator } from '../../src/cloud/app/authenticate.ts'
import { takeNextKey } from '../../src/cloud/app/edge/change-device-key.ts'
import { beginLearning, endLearning } from '../../src/cloud/app/edge/learning.ts'
import type { Settlement } from '../../src/cloud/app/edge/records.ts'
import { settleNextSilent } from '../../src/cloud/app/edge/settle-silent.ts'
import type { EdgeTerms } from '../../src/cloud/app/edge/terms.ts'
import { Policies } from '../../src/cloud/app/load-policy.ts'
import { carryOnCalendar } from '../../src/cloud/app/raise-policy.ts'
import { AccessDesk } from '../../src/cloud/app/request-access.ts'
import { sweepNextSession } from '../../src/cloud/app/session-life.ts'
import type { Store, Transaction } from '../../src/cloud/app/store.ts'
import { CodedError } from '../../src/protocol/errors.ts'
import { Violation, wordsOf } from '../audit/violation.ts'
import { query } from '../audit/query.ts'
import type { TwinDefects } from '../defects/twin-defects.ts'
import type { Random } from '../world/random.ts'
import type { Scheduler } from '../world/scheduler.ts'
import type { KeyPair } from '../world/signatures.ts'
import { answerAtTheDoor } from './door.ts'
import type { TwinProcess } from './twin-process.ts'
import { emptyTwin, openImage } from './twin-database.ts'

export interface CommitTrap {
  /** Commits that pass before it. */
  skip: number
  readonly when: 'BEFORE' | 'AFTER'
  readonly downMs: number
}

export interface TwinParts {
  readonly scheduler: Scheduler
  readonly random: Random
  readonly key: KeyPair
  readonly terms: EdgeTerms
  readonly undecidedClock: 'allow' | 'refuse'
  readonly settlement: { readonly afterMs: number; readonly as: Settlement }
  readonly defects: TwinDefects
  readonly note: (what: string) => void
  readonly onCommit: () => void
  readonly onViolation: (violation: Violation) => void
  readonly onFault: (kind: string) => void
}

const SWEEP_EVERY_MS = 60_000
const SETTLE_EVERY_MS = 240_000
const CALENDARS_EVERY_MS = 180_000

/** The simulated machine has no event loop whose turn could bring more. */
const atOnce = (call: () => void): void => call()

class Dead extends Error {}

export class Twin {
  readonly parts: TwinParts
  database: Database
  traps: CommitTrap[] = []
  #process: (TwinProcess & { alive: boolean }) | null = null
  #pending = 0
  /** The next start is told that its database comes from a backup. */
  #isRestored = false
  /** What it does before it listens. */
  #ready: Promise<unknown> = Promise.resolve()
  #cancelStart: () => void = () => undefined

  constructor(parts: TwinParts) {
    this.parts = parts
    this.database = openImage(emptyTwin())
    this.start()
  }

  get process(): TwinProcess | null {
    return this.#process
  }

  /** Something of it is under way that needs no event. */
  get busy(): boolean {
    return this.#pending > 0
  }

  start(): void {
    if (this.#process !== null) return
    this.parts.note('the twin starts')
    const { scheduler, random, key, terms, undecidedClock, settlement, defects } = this.parts
    const alive = (): boolean => process.alive
    const store = defects.store(this.#store(alive), this.database)
    const policies = new Policies({ max: 10, undecidedClock })
    const process: TwinProcess & { alive: boolean } = {
      alive: true,
      store,
      policies,
      desk: new AccessDesk(store, policies, atOnce),
      authenticator: new Authenticator(store, atOnce, (deviceId, used) =>
        takeNextKey({ store, now: () => scheduler.now, onKeyReplaced: () => undefined }, deviceId, used),
      ),
      keys: {
        signer: key.signer,
        trusted: [{ keyId: key.signer.keyId, jwk: key.publicJwk, publicKey: key.publicKey }],
      },
      terms,
      defects,
      now: () => scheduler.now,
      newId: () => random.uuid(),
    }
    this.#process = process
    this.#repeat(process, SWEEP_EVERY_MS, () =>
      sweepNextSession({ ...process, sessionIntervalMs: terms.sessionIntervalMs }, scheduler.now),
    )
    this.#repeat(process, SETTLE_EVERY_MS, async () => {
      const settled = await settleNextSilent({ ...process, ...settlement })
      if (settled) this.parts.onFault(`settled as ${settlement.as.toLowerCase()}`)
      return settled
    })
    this.#repeat(process, SETTLE_EVERY_MS, () => endLearning(store))
    this.#ready = this.#isRestored ? this.run(process, () => beginLearning(store, scheduler.now)) : Promise.resolve()
    this.#isRestored = false
    this.#repeat(process, CALENDARS_EVERY_MS, () => store.transaction((tx) => carryOnCalendar(tx, scheduler.now)))
    defects.begin(process, (ms, work) => this.#repeat(process, ms, work))
  }

  down(ms: number): void {
    this.#end()
    const { scheduler } = this.parts
    this.#cancelStart()
    this.#cancelStart = scheduler.at(scheduler.now + ms, () => this.start())
  }

  backup(): Buffer {
    return this.database.serialize()
  }

  /** Somebody puts a backup in the place of the database, and says so when he starts the twin again, or does not. */
  restore(image: Buffer, downMs: number, told: boolean): void {
    this.#end()
    this.database.close()
    this.database = openImage(image)
    this.#isRestored = told
    this.parts.onCommit()
    this.down(downMs)
  }

  close(): void {
    this.#end()
    this.#cancelStart()
    this.database.close()
  }

  calmDown(): void {
    this.traps = []
    this.#cancelStart()
    this.start()
  }

  /** Undefined: it is down, or went down before it could answer. */
  async answer(request: HttpRequest): Promise<HttpAnswer | undefined> {
    const process = this.#process
    if (process === null) return undefined
    await this.#ready
    return this.run(process, () => answerAtTheDoor(process, request))
  }

  /** Something that only this life of the twin can finish. */
  async run<T>(process: TwinProcess, work: () => Promise<T>): Promise<T | undefined> {
    try {
      const result = await work()
      return process.alive ? result : undefined
    } catch (error) {
      if (!process.alive || error instanceof Dead) return undefined
      if (error instanceof CodedError) throw error
      this.parts.onViolation(new Violation('ASSERTION', `the twin fails: ${wordsOf(error)}`))
      return undefined
    }
  }

  #end(): void {
    if (this.#process === null) return
    this.#process.alive = false
    this.#process = null
    this.database = this.parts.defects.onTwinEnd(this.database)
  }

  #repeat(process: TwinProcess, ms: number, next: () => Promise<boolean>): void {
    const { scheduler } = this.parts
    const round = async (): Promise<void> => {
      for (let done = 0; done < 100 && process.alive && (await next()); done += 1) continue
    }
    const again = (): void => {
      scheduler.at(scheduler.now + ms, () => {
        if (!process.alive) return
        void this.run(process, round).then(again)
      })
    }
    again()
  }

  #store(alive: () => boolean): Store {
    const { database } = this
    const sql: Sql = {
      db: inOneHand(database),
      lockRows: false,
      rules: ALONE,
      ahead: null,
    }
    const commits = new GroupCommit(this.#guarded(database, alive), () => 0)
    const counted = async <T>(work: () => Promise<T>): Promise<T> => {
      this.#pending += 1
      try {
        return await work()
      } finally {
        this.#pending -= 1
      }
    }
    return {
      transaction: (work) =>
        counted(() => {
          const written = { outbox: false }
          const run = (tx: Transaction) => work(this.parts.defects.transaction(tx, database))
          return commits.run(
            () => runWork(sql, run, () => (written.outbox = true)),
            () => written.outbox,
          )
        }),
      read: (work) =>
        counted(() =>
          commits.run(
            () => work(readerOf(sql)),
            () => false,
          ),
        ),
      onOutbox: () => () => undefined,
      close: () => commits.idle(),
    }
  }

  /** The database as one life of the twin reaches it. */
  #guarded(database: Database, alive: () => boolean): Database {
    const commit = (): void => {
      const [trap] = this.traps
      const due = trap?.skip === 0
      if (trap !== undefined && !due) trap.skip -= 1
      if (due) {
        this.traps.shift()
        this.parts.onFault('twin killed at a commit')
        this.parts.note(`the twin dies ${trap.when} a commit`)
      }
      if (due && trap.when === 'BEFORE') {
        this.down(trap.downMs)
        throw new Dead('before the commit')
      }
      perform(database, 'COMMIT')
      this.parts.defects.onCommit(database)
      this.parts.onCommit()
      if (due) {
        this.down(trap.downMs)
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

/** Transactions are the same few texts again and again: they are prepared once. */
function perform(database: Database, text: string): void {
  query(database, text).run()
}
