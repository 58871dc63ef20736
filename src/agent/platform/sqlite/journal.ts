/**
 * The journal in SQLite. Calls are answered in order; while a segment is being signed, later calls wait. After a failure
 * of unknown outcome, all calls fail.
 */
import type { AccountId } from '../../../core/accounts/account.ts'
import { CodedError } from '../../../protocol/errors.ts'
import {
  type ClockStamp,
  type IdempotencyRecord,
  type Journal,
  JournalLost,
  type PendingEntry,
  type RecordedEntry,
  type Reservation,
  type SealRequest,
  type SealedSegment,
  type StoredSession,
} from '../../ledger/journal.ts'
import type { HealthCondition } from '../../sync/health.ts'
import type { LinkLog } from '../../sync/ports.ts'
import type {
  AccountMove,
  Batch,
  FoundEntry,
  JournalCall,
  JournalMethods,
  JournalRunner,
  RunnerOptions,
  StartRunner,
} from './journal-calls.ts'
import { runInThisThread } from './journal-runner.ts'

export interface JournalOptions
  extends Pick<RunnerOptions, 'path' | 'limits'>, Partial<Pick<RunnerOptions, 'later' | 'left'>> {
  readonly sign: (payload: string) => Promise<string>
  readonly now: () => number
  readonly log: LinkLog
  readonly onBroken: (error: Error) => void
}

type Method = keyof JournalMethods
type Args<M extends Method> = Parameters<JournalMethods[M]>
type Result<M extends Method> = ReturnType<JournalMethods[M]>

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
    read: () => client.call('read'),
    acknowledge: (...args) => client.call('acknowledge', ...args),
    sealed: (seq) => client.call('sealed', seq),
    sealedEarlier: (after) => client.call('sealedEarlier', after),
    proofs: () => client.call('proofs'),
    fence: () => client.call('fence'),
    attach: (...args) => client.call('attach', ...args),
    limit: (accounts) => client.call('limit', accounts),
    saveIdentity: (identity) => client.call('saveIdentity', identity),
    savePolicy: (policy, keys) => client.call('savePolicy', policy, keys),
    saveClock: (stamp) => client.call('saveClock', stamp),
    recent: (limit) => client.call('recent', limit),
    append: async (entries, stamp) => {
      if (entries.length === 0) return
      const isAwaitedByOne = entries.length === 1 && entries[0]?.isDenial !== true
      await client.call('append', { ...batchOf(entries, [], stamp, false), isAwaitedByOne })
    },
    appendWriteBehind: (entries, reservations, stamp, answered) =>
      client.call('append', { ...batchOf(entries, reservations, stamp, answered), isAwaitedByOne: false }),
    seal: (request) => client.seal(request),
    find: (correlationId) => find(client, correlationId),
    condition: () => client.condition,
    close: () => client.close(),
  }
}

/** Searches in small steps, newest first, so that commits wait only briefly. */
async function find(client: JournalClient, correlationId: string): Promise<RecordedEntry | null> {
  let before: number | null = null
  do {
    const { found, next }: FoundEntry = await client.call('findStep', correlationId, before)
    if (found !== null) return found
    before = next
  } while (before !== null)
  return null
}

class JournalClient {
  readonly #options: JournalOptions
  readonly #runner: JournalRunner
  /** Calls made while a segment is being signed; null otherwise. */
  #afterSeal: (() => void)[] | null = null
  #isOpen = false
  #isClosing = false
  #broken: Error | null = null
  #condition: HealthCondition | null = null

  constructor(options: JournalOptions, start: StartRunner) {
    this.#options = options
    const { path, limits, later = [], left = null } = options
    this.#runner = start({ path, limits, later, left })
  }

  get condition(): HealthCondition | null {
    return this.#condition
  }

  async open(): Promise<void> {
    await this.call('recent', 0)
    this.#isOpen = true
  }

  call<M extends Method>(method: M, ...args: Args<M>): Promise<Result<M>> {
    if (this.#isClosing) {
      return Promise.reject(new CodedError('NOT_RECORDED', 'The agent stops, and its ledger is closed.'))
    }
    return this.#send(method, args, this.#afterSeal)
  }

  /** Later calls wait until the segment is signed and stored. */
  async seal(request: SealRequest): Promise<SealedSegment> {
    if (this.#afterSeal !== null) throw new Error('invariant: one segment is sealed at a time')
    const prepared = this.call('prepareSeal', request)
    const queue: (() => void)[] = []
    this.#afterSeal = queue
    try {
      const { text } = await prepared
      const document = await this.#options.sign(text)
      return { ...(await this.#send('storeSeal', [document], null)), document }
    } finally {
      this.#afterSeal = null
      for (const post of queue) post()
    }
  }

  /** A broken database stays open: to close it would flush again, which could succeed without what was lost. */
  async close(): Promise<void> {
    if (this.#isClosing || this.#broken !== null) return
    const closed = this.call('close')
    this.#isClosing = true
    await closed.catch(() => undefined)
  }

  /** @param queue the calls behind which this one waits; null: it does not wait */
  #send<M extends Method>(method: M, args: Args<M>, queue: (() => void)[] | null): Promise<Result<M>> {
    const call = { method, args, now: this.#options.now() } as unknown as JournalCall
    return new Promise((resolve, reject) => {
      const post = (): void => this.#post(call, resolve as (value: unknown) => void, reject)
      if (queue === null) post()
      else queue.push(post)
    })
  }

  #post(call: JournalCall, resolve: (value: unknown) => void, reject: (error: Error) => void): void {
    if (this.#broken !== null) {
      reject(this.#broken)
      return
    }
    this.#runner.post(call, (answer) => {
      if (this.#broken !== null) {
        reject(this.#broken)
        return
      }
      if (!answer.ok) {
        reject(this.#failure(answer.error))
        return
      }
      // These two could not use reserved disk space.
      if (call.method === 'saveClock' || (call.method === 'append' && !call.args[0].answered)) this.#clear()
      resolve(answer.value)
    })
  }

  #clear(): void {
    if (this.#condition === null) return
    this.#options.log.info({ since: this.#condition.since }, 'the ledger takes entries again')
    this.#condition = null
  }

  #raise({ code, message, details }: CodedError): void {
    if (this.#condition === null) this.#options.log.warn({ code, ...details }, 'the ledger takes no entries')
    const since = this.#condition?.since ?? this.#options.now()
    this.#condition = { subject: 'ledger', code, message, since, details }
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

function batchOf(
  entries: readonly PendingEntry[],
  reservations: readonly Reservation[],
  stamp: ClockStamp,
  answered: boolean,
): Omit<Batch, 'isAwaitedByOne'> {
  const moves = new Map<AccountId, { used: bigint; refunded: bigint; burned: bigint; allowance: bigint }>()
  const answers: IdempotencyRecord[] = []
  const sessions = new Map<string, StoredSession>()
  for (const { moves: counter, postings, allowances, idempotencyRecord, session } of entries) {
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
    entries,
    moves: [...moves].map(([account, sum]): AccountMove => ({ account, ...sum })),
    answers,
    sessions: [...sessions.values()],
    reservations,
    answered,
    stamp,
  }
}
