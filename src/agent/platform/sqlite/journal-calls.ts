/** Messages between the journal and its worker: one per call and one per response, in order, all structured-cloneable. */
import type { AccountId } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import type { ErrorCode } from '../../../protocol/errors.ts'
import type {
  ClockStamp,
  IdempotencyRecord,
  JournalOperations,
  RecordedEntry,
  Reservation,
  SealedSegment,
  SealRequest,
  StoredSession,
} from '../../ledger/journal.ts'
import type { BootLog } from '../../ledger/volatile-log.ts'
import type { EntryTexts } from './entry-texts.ts'

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
  readonly returned: Micro
  readonly burned: Micro
  /** How far usage may exceed the grant; 0n: not at all. */
  readonly allowance: Micro
}

export interface Batch {
  readonly firstN: number
  readonly texts: EntryTexts
  readonly moves: readonly AccountMove[]
  readonly answers: readonly IdempotencyRecord[]
  readonly sessions: readonly StoredSession[]
  readonly reservations: readonly Reservation[]
  /** These entries were already answered, so they may use the disk space reserved for deliveries. */
  readonly answered: boolean
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

export interface WorkerOptions {
  readonly path: string
  readonly limits: JournalLimits
  /** Files that exist only once the journal has content. */
  readonly later: readonly string[]
  /** Entries that an earlier process answered but did not write to the journal; null: none. */
  readonly left: BootLog | null
}

/** What the journal's thread runs; the store implements it. */
export interface JournalThreadMethods extends JournalOperations {
  append(batch: Batch): string
  prepareSeal(request: SealRequest): PreparedSeal
  /** The caller has the document already. */
  storeSeal(document: string): Omit<SealedSegment, 'document'>
  findStep(correlationId: string, before: number | null): FoundEntry
  close(): void
}

export type JournalCall = {
  readonly [M in keyof JournalThreadMethods]: {
    readonly method: M
    readonly args: Parameters<JournalThreadMethods[M]>
    /** The agent's time, POSIX ms, to date records with a retention time. */
    readonly now: number
  }
}[keyof JournalThreadMethods]

/** `code` null: a broken invariant. */
export interface CallFailure {
  readonly code: ErrorCode | null
  readonly message: string
  readonly details: Readonly<Record<string, unknown>>
}

export type JournalAnswer =
  { readonly ok: true; readonly value: unknown } | { readonly ok: false; readonly failure: CallFailure }
