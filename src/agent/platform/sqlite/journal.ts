/**
 * The journal in SQLite, on a separate thread. Calls run and are answered in order; while a segment is being signed, later
 * calls wait. After a failure of unknown outcome, all calls fail and `onBroken` is called once.
 */
import { Worker } from 'node:worker_threads'
import type { AccountId } from '../../../core/accounts/account.ts'
import { CodedError } from '../../../protocol/errors.ts'
import type { EntryBodyWire } from '../../../protocol/edge/sync.ts'
import {
  type ClockStamp,
  type Confirmation,
  type GrantedAccount,
  type Identity,
  type Journal,
  type IdempotencyRecord,
  type Leaving,
  NOTHING_TO_SAY,
  type PendingEntry,
  type RecordedEntry,
  type Reservation,
  type SealRequest,
  type SealedSegment,
  type SegmentPlace,
  type Snapshot,
  type StoredAnswer,
  type StoredGrant,
  type StoredPolicy,
  type StoredSession,
} from '../../ledger/journal.ts'
import type { BootLog } from '../../ledger/volatile-log.ts'
import type {
  AccountMove,
  Batch,
  FoundEntry,
  JournalAnswer,
  JournalCall,
  JournalLimits,
  PreparedSeal,
  WorkerOptions,
} from './journal-calls.ts'

export interface JournalOptions {
  /** Path of the database file; its directory is created if missing. */
  readonly path: string
  readonly limits: JournalLimits
  /** Files that exist only once the journal has content: beside one of them, an empty database is damaged. */
  readonly later?: readonly string[]
  /** Volatile log of an earlier process; it continues a damaged journal. */
  readonly left?: BootLog | null
  /** Signs a segment's payload with the device key; resolves with the document to send. */
  readonly sign: (payload: string) => Promise<string>
  /** POSIX ms, to date records with a retention time. */
  readonly now: () => number
  /** Called once when a write's outcome is unknown or an invariant is broken: the process must end. */
  readonly onBroken: (error: Error) => void
}

interface Waiting {
  readonly resolve: (value: unknown) => void
  readonly reject: (error: Error) => void
}

/** Takes calls and answers them in the order in which they are posted. */
export interface JournalThread {
  post(call: JournalCall): void
  /** Ends the thread without answering pending calls. */
  terminate(): void
}

export interface ThreadEvents {
  onAnswer(answer: JournalAnswer): void
  onError(cause: unknown): void
  /** Called once: after the response to `close`, or on failure or termination. */
  onEnd(): void
}

export type StartThread = (options: WorkerOptions, events: ThreadEvents) => JournalThread

const MODULE = import.meta.url.endsWith('.ts') ? './journal-worker.ts' : './journal-worker.js'

const startWorker: StartThread = (options, events) => {
  const worker = new Worker(new URL(MODULE, import.meta.url), { workerData: options, name: 'journal' })
  worker.on('message', (answer: JournalAnswer) => events.onAnswer(answer))
  worker.on('error', (cause) => events.onError(cause))
  worker.on('exit', () => events.onEnd())
  return { post: (call) => worker.postMessage(call), terminate: () => void worker.terminate() }
}

/** @throws CodedError STATE_IN_USE, STATE_UNWRITABLE, DATABASE_NEWER or DATABASE_CORRUPT */
export async function openJournal(options: JournalOptions, start: StartThread = startWorker): Promise<Journal> {
  const journal = new SqliteJournal(options, start)
  try {
    await journal.open()
    return journal
  } catch (error) {
    await journal.close()
    throw error
  }
}

class SqliteJournal implements Journal {
  readonly #options: JournalOptions
  readonly #thread: JournalThread
  readonly #ended: Promise<void>
  /** In the worker's response order. */
  #waiting: Waiting[] = []
  #answered = 0
  /** Calls made while a segment is being signed; null otherwise. */
  #held: (() => void)[] | null = null
  #isOpen = false
  #isClosing = false
  #broken: Error | null = null

  constructor(options: JournalOptions, start: StartThread) {
    this.#options = options
    const { path, limits, later = [], left = null } = options
    const ended = Promise.withResolvers<undefined>()
    this.#ended = ended.promise
    this.#thread = start(
      { path, limits, later, left },
      {
        onAnswer: (answer) => this.#answer(answer),
        onError: (cause) => this.#break(new Error('the journal thread failed', { cause })),
        onEnd: () => {
          if (!this.#isClosing) this.#break(new Error('the journal thread ended'))
          ended.resolve(undefined)
        },
      },
    )
  }

  async open(): Promise<void> {
    await this.#call({ call: 'recent', limit: 0 })
    this.#isOpen = true
  }

  read(): Promise<Snapshot> {
    return this.#call({ call: 'read' }) as Promise<Snapshot>
  }

  async append(entries: readonly PendingEntry[], stamp: ClockStamp): Promise<void> {
    if (entries.length > 0) await this.#call({ call: 'append', batch: batchOf(entries, [], stamp, false) })
  }

  async appendWriteBehind(
    entries: readonly PendingEntry[],
    reservations: readonly Reservation[],
    stamp: ClockStamp,
    answered: boolean,
  ): Promise<string> {
    return (await this.#call({ call: 'append', batch: batchOf(entries, reservations, stamp, answered) })) as string
  }

  async seal(order: SealRequest): Promise<SealedSegment> {
    if (this.#held !== null) throw new Error('invariant: one segment is sealed at a time')
    const prepared = this.#call({ call: 'prepareSeal', order })
    const store = this.#suspend()
    try {
      const { text } = (await prepared) as PreparedSeal
      const document = await this.#options.sign(text)
      return (await store.now({ call: 'storeSeal', document, now: this.#options.now() })) as SealedSegment
    } finally {
      store.end()
    }
  }

  async acknowledge(
    seq: number,
    grant: (StoredGrant & { readonly accounts: readonly GrantedAccount[] }) | null,
    confirmation: Confirmation | null,
    answer: StoredAnswer | null = null,
  ): Promise<void> {
    await this.#call({ call: 'acknowledge', seq, grant, confirmation, answer, now: this.#options.now() })
  }

  sealed(seq: number): Promise<SealedSegment | null> {
    return this.#call({ call: 'sealed', seq }) as Promise<SealedSegment | null>
  }

  sealedEarlier(after: SegmentPlace): Promise<SealedSegment | null> {
    return this.#call({ call: 'sealedEarlier', after }) as Promise<SealedSegment | null>
  }

  proofs(): Promise<readonly string[]> {
    return this.#call({ call: 'proofs' }) as Promise<readonly string[]>
  }

  async fence(): Promise<void> {
    await this.#call({ call: 'fence' })
  }

  async attach(epoch: number, leaving: Leaving = NOTHING_TO_SAY): Promise<void> {
    await this.#call({ call: 'attach', epoch, leaving, now: this.#options.now() })
  }

  async limit(accounts: readonly AccountId[]): Promise<void> {
    await this.#call({ call: 'limit', accounts })
  }

  async saveIdentity(identity: Identity): Promise<void> {
    await this.#call({ call: 'saveIdentity', identity })
  }

  async savePolicy(policy: Omit<StoredPolicy, 'confirmedAt'>, trustedKeys: readonly string[] | null): Promise<void> {
    await this.#call({ call: 'savePolicy', policy, trustedKeys })
  }

  async saveClock(stamp: ClockStamp): Promise<void> {
    await this.#call({ call: 'saveClock', stamp })
  }

  recent(limit: number): Promise<readonly EntryBodyWire[]> {
    return this.#call({ call: 'recent', limit }) as Promise<readonly EntryBodyWire[]>
  }

  /** Searches in small steps, newest first, so that commits wait only briefly. */
  async find(correlationId: string): Promise<RecordedEntry | null> {
    let before: number | null = null
    do {
      const { found, next } = (await this.#call({ call: 'find', correlationId, before })) as FoundEntry
      if (found !== null) return found
      before = next
    } while (before !== null)
    return null
  }

  /** Answers earlier calls first. Idempotent. */
  async close(): Promise<void> {
    if (!this.#isClosing) {
      if (this.#broken === null) await this.#call({ call: 'close' }).catch(() => undefined)
      this.#isClosing = true
      if (this.#broken !== null) this.#thread.terminate()
    }
    await this.#ended
  }

  #call(call: JournalCall): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const post = (): void => this.#post(call, { resolve, reject })
      if (this.#held === null) post()
      else this.#held.push(post)
    })
  }

  #post(call: JournalCall, waiting: Waiting): void {
    if (this.#broken !== null) {
      waiting.reject(this.#broken)
      return
    }
    if (call.call === 'close') this.#isClosing = true
    this.#waiting.push(waiting)
    this.#thread.post(call)
  }

  /** Delays later calls until `end`; `now` bypasses them. */
  #suspend(): { readonly now: (call: JournalCall) => Promise<unknown>; readonly end: () => void } {
    this.#held = []
    return {
      now: (call) =>
        new Promise((resolve, reject) => {
          this.#post(call, { resolve, reject })
        }),
      end: () => {
        const held = this.#held ?? []
        this.#held = null
        for (const post of held) post()
      },
    }
  }

  #answer(answer: JournalAnswer): void {
    const waiting = this.#waiting[this.#answered]
    if (waiting === undefined) throw new Error('invariant: one answer for each call')
    this.#answered += 1
    if (this.#answered === this.#waiting.length) {
      this.#waiting = []
      this.#answered = 0
    }
    if (answer.ok) {
      waiting.resolve(answer.value)
      return
    }
    const { code, message, details } = answer.failure
    const error = code === null ? new Error(message) : new CodedError(code, message, { details: { ...details } })
    if (this.#isOpen && code !== 'NOT_RECORDED') this.#break(error)
    waiting.reject(error)
  }

  #break(error: Error): void {
    if (this.#broken !== null) return
    this.#broken = error
    const waiting = this.#waiting.slice(this.#answered)
    this.#waiting = []
    this.#answered = 0
    for (const { reject } of waiting) reject(error)
    if (this.#isOpen) this.#options.onBroken(error)
  }
}

/** Sums counters so that the worker writes each account once per transaction. */
function batchOf(
  entries: readonly PendingEntry[],
  reservations: readonly Reservation[],
  stamp: ClockStamp,
  answered: boolean,
): Batch {
  const moves = new Map<AccountId, { used: bigint; refunded: bigint; burned: bigint; allowance: bigint }>()
  const bodies: string[] = []
  const kept: (string | null)[] = []
  const answers: IdempotencyRecord[] = []
  const sessions = new Map<string, StoredSession>()
  for (const { body, moves: counter, postings, allowances, idempotencyRecord, session, inputs = null } of entries) {
    bodies.push(body)
    kept.push(inputs)
    if (session !== undefined) sessions.set(session.id, session)
    if (idempotencyRecord !== null) answers.push(idempotencyRecord)
    for (const { account, amount } of postings) {
      let sum = moves.get(account)
      if (sum === undefined) {
        sum = { used: 0n, refunded: 0n, burned: 0n, allowance: 0n }
        moves.set(account, sum)
      }
      sum[counter] += amount
      const allowance = allowances?.get(account) ?? 0n
      if (allowance > sum.allowance) sum.allowance = allowance
      if (counter === 'burned') sum.used += amount
    }
  }
  return {
    firstN: entries[0]?.n ?? 0,
    bodies,
    inputs: kept,
    moves: [...moves].map(([account, sum]): AccountMove => ({ account, ...sum, returned: 0n })),
    answers,
    sessions: [...sessions.values()],
    reservations,
    answered,
    stamp,
  }
}
