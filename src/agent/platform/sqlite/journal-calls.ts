/** Messages between the journal and its worker: one per call and one per response, in order, all structured-cloneable. */
import type { AccountId } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import type { ErrorCode } from '../../../protocol/errors.ts'
import type {
  ClockStamp,
  Confirmation,
  GrantedAccount,
  Identity,
  IdempotencyRecord,
  Leaving,
  RecordedEntry,
  Reservation,
  SealRequest,
  SegmentPlace,
  StoredAnswer,
  StoredGrant,
  StoredPolicy,
  StoredSession,
} from '../../ledger/journal.ts'
import type { BootLog } from '../../ledger/volatile-log.ts'

/** Limits in pages of 4 KiB and in bytes. */
export interface JournalLimits {
  readonly pagesMax: number
  /** Extra pages for seals, acknowledgements and cleanup, which must succeed on a full disk. */
  readonly diskReservePages: number
  readonly retentionMs: number
  /** Limit for acknowledged segments, regardless of age. */
  readonly retainedBytesMax: number
  /** Application sessions of each caller whose last response is kept. */
  readonly answersMax: number
  /** Newest acknowledged entries to keep, with their decision inputs. */
  readonly recentEntries: number
  /** Limit for all documents of replaced rules together. */
  readonly pastRulesBytesMax: number
}

/** Increments of one account's counters. */
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
  /** Number of the first body; the others follow without gaps. */
  readonly firstN: number
  readonly bodies: readonly string[]
  /** Decision inputs per body; null where none are kept. */
  readonly inputs: readonly (string | null)[]
  readonly moves: readonly AccountMove[]
  readonly answers: readonly IdempotencyRecord[]
  /** The latest state of each session. */
  readonly sessions: readonly StoredSession[]
  readonly reservations: readonly Reservation[]
  /** These entries were already answered, so they may use the disk space reserved for deliveries. */
  readonly answered: boolean
  readonly stamp: ClockStamp
}

export interface PreparedSeal {
  /** Exact text to sign. */
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

export type JournalCall =
  | { readonly call: 'read' }
  | { readonly call: 'append'; readonly batch: Batch }
  | { readonly call: 'prepareSeal'; readonly order: SealRequest }
  | { readonly call: 'storeSeal'; readonly document: string; readonly now: number }
  | {
      readonly call: 'acknowledge'
      readonly seq: number
      readonly grant: (StoredGrant & { readonly accounts: readonly GrantedAccount[] }) | null
      readonly confirmation: Confirmation | null
      readonly answer: StoredAnswer | null
      readonly now: number
    }
  | { readonly call: 'sealed'; readonly seq: number }
  | { readonly call: 'sealedEarlier'; readonly after: SegmentPlace }
  | { readonly call: 'proofs' }
  | { readonly call: 'fence' }
  | { readonly call: 'attach'; readonly epoch: number; readonly leaving: Leaving; readonly now: number }
  | { readonly call: 'limit'; readonly accounts: readonly AccountId[] }
  | { readonly call: 'saveIdentity'; readonly identity: Identity }
  | {
      readonly call: 'savePolicy'
      readonly policy: Omit<StoredPolicy, 'confirmedAt'>
      readonly trustedKeys: readonly string[] | null
    }
  | { readonly call: 'saveClock'; readonly stamp: ClockStamp }
  | { readonly call: 'recent'; readonly limit: number }
  | { readonly call: 'find'; readonly correlationId: string; readonly before: number | null }
  | { readonly call: 'close' }

/** `code` null: a broken invariant. */
export interface CallFailure {
  readonly code: ErrorCode | null
  readonly message: string
  readonly details: Readonly<Record<string, unknown>>
}

export type JournalAnswer =
  { readonly ok: true; readonly value: unknown } | { readonly ok: false; readonly failure: CallFailure }
