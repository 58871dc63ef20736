/** Calls of the journal and their answers: one for each call, in order. */
import type { AccountId } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import type {
  ClockStamp,
  IdempotencyRecord,
  JournalOperations,
  PendingEntry,
  RecordedEntry,
  Reservation,
  SealedSegment,
  SealRequest,
  StoredSession,
} from '../../ledger/journal.ts'
import type { BootLog } from '../../ledger/volatile-log.ts'

export interface JournalLimits {
  readonly pagesMax: number
  /** Extra pages for seals, acknowledgements and cleanup, which must succeed on a full disk. */
  readonly diskReservePages: number
  /** At most SEGMENT_ENTRIES_MAX of the protocol. */
  readonly segmentEntriesMax: number
  readonly retentionMs: number
  readonly retainedBytesMax: number
  /** Application sessions of each caller whose last response is kept. */
  readonly answersMax: number
  readonly recentEntries: number
  readonly pastRulesBytesMax: number
}

export interface AccountMove {
  readonly account: AccountId
  readonly used: Micro
  readonly refunded: Micro
  readonly burned: Micro
  /** How far usage may exceed the grant; 0n: not at all. */
  readonly allowance: Micro
}

export interface Batch {
  readonly firstN: number
  readonly entries: readonly Pick<PendingEntry, 'body' | 'inputs'>[]
  readonly moves: readonly AccountMove[]
  readonly answers: readonly IdempotencyRecord[]
  readonly sessions: readonly StoredSession[]
  readonly reservations: readonly Reservation[]
  /** These entries were already answered, so they may use the disk space reserved for deliveries. */
  readonly answered: boolean
  /** Exactly one caller waits for it. */
  readonly isAwaitedByOne: boolean
  readonly stamp: ClockStamp
}

export interface PreparedSeal {
  readonly text: string
}

/** One step of a search; `next` is where to continue, null at the end. */
export interface FoundEntry {
  readonly found: RecordedEntry | null
  readonly next: number | null
}

export interface RunnerOptions {
  readonly path: string
  readonly limits: JournalLimits
  /** Files that exist only once the journal has content: beside one of them, an empty database is damaged. */
  readonly later: readonly string[]
  /** Entries that an earlier process answered but did not write to the journal, which they continue; null: none. */
  readonly left: BootLog | null
}

export interface JournalMethods extends JournalOperations {
  append(batch: Batch): string
  prepareSeal(request: SealRequest): PreparedSeal
  /** The caller has the document already. */
  storeSeal(document: string): Omit<SealedSegment, 'document'>
  findStep(correlationId: string, before: number | null): FoundEntry
  close(): void
}

export type JournalCall = {
  readonly [M in keyof JournalMethods]: {
    readonly method: M
    readonly args: Parameters<JournalMethods[M]>
    /** The agent's time, POSIX ms, to date records with a retention time. */
    readonly now: number
  }
}[keyof JournalMethods]

/** An error without a code: a broken invariant. */
export type JournalAnswer =
  { readonly ok: true; readonly value: unknown } | { readonly ok: false; readonly error: Error }

/** Takes calls and answers them in the order in which they are posted. */
export interface JournalRunner {
  post(call: JournalCall, onAnswer: OnAnswer): void
}

export type OnAnswer = (answer: JournalAnswer) => void

export type StartRunner = (options: RunnerOptions) => JournalRunner
