/**
 * What goes between the journal and its worker: one message per call, one per answer, in the same order. Everything in
 * here survives a structured clone.
 */
import type { AccountId } from '../../../core/account.ts'
import type { Micro } from '../../../core/amount.ts'
import type { ErrorCode } from '../../../protocol/errors.ts'
import type {
  ClockStamp,
  Confirmation,
  GrantedAccount,
  Identity,
  LastAnswer,
  Leaving,
  RecordedEntry,
  Reservation,
  SealOrder,
  SegmentPlace,
  StoredAnswer,
  StoredGrant,
  StoredPolicy,
  StoredSession,
} from '../../app/journal.ts'
import type { BootLog } from '../../app/volatile-log.ts'

/** Sizes in pages of 4 KiB and in bytes. */
export interface JournalLimits {
  /** How large the database may grow. */
  readonly pagesMax: number
  /** Beyond it, for what must also succeed on a full disk: seals, acknowledgements, clean-ups. */
  readonly slackPages: number
  readonly retentionMs: number
  /** Acknowledged segments that are kept take at most this much, whatever their age. */
  readonly retainedBytesMax: number
  /** Application sessions of each caller whose last answer is kept. */
  readonly answersMax: number
  /** Acknowledged entries that are kept all the same, the newest ones, with what they were decided by. */
  readonly recentEntries: number
  /** Of the documents of replaced rules, all together. */
  readonly pastRulesBytesMax: number
}

/** By how much the counters of one account rise. */
export interface AccountMove {
  readonly account: AccountId
  readonly used: Micro
  readonly refunded: Micro
  readonly returned: Micro
  /** Part of `used`. */
  readonly burned: Micro
  /** How far the use may be above what is granted; 0n: not at all. */
  readonly allowance: Micro
}

/** Entries of one transaction. */
export interface Batch {
  /** Number of the first body; the others follow. */
  readonly firstN: number
  readonly bodies: readonly string[]
  /** Per body; null where nothing is kept. */
  readonly facts: readonly (string | null)[]
  /** Merged by account. */
  readonly moves: readonly AccountMove[]
  readonly answers: readonly LastAnswer[]
  /** The last state of each. */
  readonly sessions: readonly StoredSession[]
  readonly reservations: readonly Reservation[]
  /** Somebody relies on these entries already: they may have the space that is set aside for deliveries. */
  readonly answered: boolean
  readonly stamp: ClockStamp
}

export interface PreparedSeal {
  /** To be signed as it stands. */
  readonly text: string
}

/** A part of a search; `next` is where to go on, null at the end. */
export interface FoundEntry {
  readonly found: RecordedEntry | null
  readonly next: number | null
}

export interface WorkerOrder {
  readonly path: string
  readonly limits: JournalLimits
  /** Files that are made only after the journal holds something. */
  readonly later: readonly string[]
  /** What an earlier process had answered and not brought to the journal; null: nothing. */
  readonly left: BootLog | null
}

export type JournalCall =
  | { readonly call: 'read' }
  | { readonly call: 'append'; readonly batch: Batch }
  | { readonly call: 'prepareSeal'; readonly order: SealOrder }
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
  | { readonly call: 'attach'; readonly incarnation: number; readonly leaving: Leaving; readonly now: number }
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

/** `code` null: a broken invariant, not an expected outcome. */
export interface CallFailure {
  readonly code: ErrorCode | null
  readonly message: string
  readonly facts: Readonly<Record<string, unknown>>
}

export type JournalAnswer =
  { readonly ok: true; readonly value: unknown } | { readonly ok: false; readonly failure: CallFailure }
