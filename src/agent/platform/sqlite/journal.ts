/**
 * The journal in SQLite. Calls are answered in order; while a segment is being signed, later calls wait. After a failure
 * of unknown outcome, all calls fail.
 *
 * Each method makes a {@link JournalCall}. A runner takes them one by one, has {@link JournalHandler} run their work on the
 * {@link JournalStore}, and flushes what they commit.
 */
import { CodedError } from '../../../protocol/errors.ts'
import {
  type Journal,
  JournalLost,
  type NewSegment,
  type RecordedEntry,
  type SealRequest,
} from '../../ledger/journal.ts'
import type { HealthCondition } from '../../runtime/health.ts'
import type { AgentLog } from '../../sync/ports.ts'
import { type Batch, batchOf } from './batch.ts'
import type { CallTraits, JournalCall } from './journal-handler.ts'
import { type JournalRunner, runInThisThread, type StartRunner } from './journal-runner.ts'
import type { FoundEntry, JournalStore } from './journal-store.ts'
import type { StoreOptions } from './salvage-journal.ts'

export interface JournalOptions
  extends Pick<StoreOptions, 'path' | 'limits'>, Partial<Pick<StoreOptions, 'later' | 'left'>> {
  readonly sign: (payload: string) => Promise<string>
  readonly now: () => number
  readonly log: AgentLog
  readonly onBroken: (error: Error) => void
}

/** @throws CodedError STATE_IN_USE, STATE_UNWRITABLE, DATABASE_NEWER or DATABASE_CORRUPT */
export async function openJournal(options: JournalOptions, start: StartRunner = runInThisThread): Promise<Journal> {
  const client = new JournalClient(options, start)
  try {
    await client.open()
  } catch (error) {
    await client.close()
    throw error
  }
  return {
    read: () => client.call('read', (store) => store.read(), { fillsDiskReserve: 'BEFORE' }),
    acknowledge: (...args) =>
      client.call('acknowledge', (store) => store.acknowledge(...args), { fillsDiskReserve: 'AFTER' }),
    sealed: (seq) => client.call('sealed', (store) => store.sealed(seq)),
    sealedEarlier: (after) => client.call('sealedEarlier', (store) => store.sealedEarlier(after)),
    proofs: () => client.call('proofs', (store) => store.proofs()),
    fence: () => client.call('fence', (store) => store.fence()),
    attach: (...args) => client.call('attach', (store) => store.attach(...args)),
    limit: (accounts) => client.call('limit', (store) => store.limit(accounts)),
    saveIdentity: (identity) => client.call('saveIdentity', (store) => store.saveIdentity(identity)),
    savePolicy: (...args) => client.call('savePolicy', (store) => store.savePolicy(...args)),
    saveClock: (stamp) => client.call('saveClock', (store) => store.saveClock(stamp), { sparesDiskReserve: true }),
    recent: (limit) => client.call('recent', (store) => store.recent(limit)),
    append: async (entries, stamp, isForAll = false) => {
      if (entries.length === 0) return
      await client.append(batchOf(entries, [], stamp, false), isForAll)
    },
    appendWriteBehind: (...args) => client.append(batchOf(...args), false),
    seal: (request) => client.seal(request),
    find: (correlationId) => client.find(correlationId),
    condition: () => client.condition,
    close: () => client.close(),
  }
}

class JournalClient {
  readonly #options: JournalOptions
  readonly #runner: JournalRunner
  /** Calls made while a segment is being signed; null otherwise. */
  #afterSeal: JournalCall[] | null = null
  #isOpen = false
  #isClosing = false
  #broken: Error | null = null
  #condition: HealthCondition | null = null

  constructor(options: JournalOptions, start: StartRunner) {
    this.#options = options
    const { path, limits, later = [], left = null } = options
    const onRemoved = (error: Error): void => {
      if (this.#broken === null) this.#failure(error)
    }
    this.#runner = start({ path, limits, later, left, onRemoved })
  }

  get condition(): HealthCondition | null {
    return this.#condition
  }

  async open(): Promise<void> {
    await this.call('recent', (store) => store.recent(0))
    this.#isOpen = true
  }

  call<T>(name: JournalCall['name'], work: (store: JournalStore) => T, traits: CallTraits = {}): Promise<T> {
    if (this.#isClosing) {
      return Promise.reject(new CodedError('NOT_RECORDED', 'The agent stops, and its ledger is closed.'))
    }
    return this.#send(name, work, traits, this.#afterSeal)
  }

  append(batch: Batch, isForAll: boolean): Promise<string> {
    return this.call('append', (store) => store.append(batch), { sparesDiskReserve: !batch.answered, isForAll })
  }

  /** Searches in small steps, newest first, so that commits wait only briefly. */
  async find(correlationId: string): Promise<RecordedEntry | null> {
    let step: FoundEntry = { found: null, next: null }
    do {
      const { next } = step
      step = await this.call('findStep', (store) => store.findStep(correlationId, next))
    } while (step.found === null && step.next !== null)
    return step.found
  }

  /** Later calls wait until the segment is signed and stored. */
  async seal(request: SealRequest): Promise<NewSegment> {
    if (this.#afterSeal !== null) throw new Error('invariant: one segment is sealed at a time')
    const prepared = this.call('prepareSeal', (store) => store.prepareSeal(request))
    const queue: JournalCall[] = []
    this.#afterSeal = queue
    try {
      const document = await this.#options.sign(await prepared)
      return await this.#send('storeSeal', (store) => store.storeSeal(document), {}, null)
    } finally {
      this.#afterSeal = null
      for (const call of queue) this.#post(call)
    }
  }

  /** A broken database stays open: to close it would flush again, which could succeed without what was lost. */
  async close(): Promise<void> {
    if (this.#isClosing || this.#broken !== null) return
    const closed = this.call('close', (store) => store.close(), { isLast: true })
    this.#isClosing = true
    await closed.catch(() => undefined)
  }

  /** @param queue the calls behind which this one waits; null: it does not wait */
  #send<T>(
    name: JournalCall['name'],
    work: (store: JournalStore) => T,
    traits: CallTraits,
    queue: JournalCall[] | null,
  ): Promise<T> {
    const now = this.#options.now()
    return new Promise((resolve, reject) => {
      let value: T
      const call: JournalCall = {
        name,
        traits,
        now,
        work: (store) => {
          value = work(store)
        },
        done: (cause) => {
          const error = this.#outcome(traits, cause)
          if (error === null) resolve(value)
          else reject(error)
        },
      }
      if (queue === null) this.#post(call)
      else queue.push(call)
    })
  }

  #post(call: JournalCall): void {
    if (this.#broken === null) this.#runner.post(call)
    else call.done(this.#broken)
  }

  /** The error for the caller; null: none. */
  #outcome({ sparesDiskReserve }: CallTraits, error: Error | null): Error | null {
    if (this.#broken !== null) return this.#broken
    if (error !== null) return this.#failure(error)
    if (sparesDiskReserve === true) this.#clear()
    return null
  }

  #clear(): void {
    if (this.#condition === null) return
    this.#options.log.warn({ since: this.#condition.since }, 'the ledger takes entries again')
    this.#condition = null
  }

  #raise({ code, message, details }: CodedError): void {
    if (this.#condition === null) this.#options.log.warn({ code, ...details }, 'the ledger takes no entries')
    const since = this.#condition?.since ?? this.#options.now()
    this.#condition = { subject: 'ledger', code, message, since }
  }

  /** Returns the error of the failed call, and also of all later ones unless it was refused. */
  #failure(error: Error): Error {
    if (error instanceof CodedError && error.code === 'NOT_RECORDED') {
      this.#raise(error)
      return error
    }
    if (!this.#isOpen) return error
    this.#broken = new JournalLost(error)
    this.#options.onBroken(error)
    return this.#broken
  }
}
