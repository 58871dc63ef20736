/**
 * What the link needs from the rest of the agent: the parts of the journal and the ledger that a sync round touches,
 * time, timers and randomness. The adapters of the outside world (cloud, keys, push) stand in files of their own.
 */
import type { AccountId, Posting } from '../../core/accounts/account.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import type { CompiledPolicy } from '../../core/rules/compile.ts'
import type { ClockReading } from '../../core/rules/decision.ts'
import type { TopUpRequest } from '../../core/accounts/grant.ts'
import type { Policy } from '../../core/rules/policy.ts'
import type { DeviceSuspension } from '../../protocol/edge/device-suspension.ts'
import type { PolicyDocument } from '../../protocol/edge/policy-document.ts'
import type { Confirmation, GrantedAccount, Journal, StoredGrant, ReceivedGrant } from '../ledger/journal.ts'

/** What the link does with the journal; it never appends entries. */
export type LinkJournal = Pick<
  Journal,
  'seal' | 'sealed' | 'sealedEarlier' | 'proofs' | 'acknowledge' | 'fence' | 'attach' | 'saveIdentity' | 'savePolicy'
>

/** What came with an acknowledged segment, as the journal has just stored it. */
export type AppliedGrant = StoredGrant & { readonly accounts: readonly GrantedAccount[] }

/**
 * What the link does with the ledger in memory. Only what returns a promise waits. A ledger
 * without an epoch, or with a fenced one, is frozen from its beginning.
 */
export interface LinkLedger {
  /** Number of the last entry decided in this epoch, durable or on its way to the journal; 0 for none. */
  lastEntry(): number
  /** Top-ups: accounts at or below low water, and what would be comfortable. Waiting requests come by `requestGrant`. */
  topUpRequests(): readonly TopUpRequest[]
  /** Accounts of which the cloud has said that the pool has nothing left: it is asked whether that still holds. */
  exhaustedAccounts(): readonly AccountId[]
  /** Resolves when what was answered before stands in the journal, or when the journal does not take it. */
  flushed(): Promise<void>
  /**
   * Stops recording anything (charges, refunds, refusals) at once and resolves when every entry decided before stands in
   * the journal. It ends with {@link LinkLedger.begin}: an entry after the final segment could never be delivered.
   */
  freeze(): Promise<void>
  /**
   * Gives up all room at once, of as many accounts as one segment can name: raises `returned` in memory and says by how
   * much; empty when there is none.
   */
  returnUnused(): readonly Posting[]
  /**
   * Gives up what others need and this device can spare, at most the figure beside each account is kept; and of other
   * accounts what is far above the target balance.
   *
   * @param needed by waiting requests: none of it is given up
   */
  giveUpSpare(recalled: ReadonlyMap<AccountId, Micro>, needed: ReadonlyMap<AccountId, Micro>): readonly Posting[]
  /** Whether there is anything to spare that others need. */
  holdsSpare(recalled: ReadonlyMap<AccountId, Micro>, needed: ReadonlyMap<AccountId, Micro>): boolean
  /** Undoes {@link LinkLedger.returnUnused} when the journal did not take it. */
  takeBackUnused(returns: readonly Posting[]): void
  /** Something is used above its grant. */
  owes(): boolean
  /** The cloud has heard of what was used above grants, and its grants hold it. */
  settleAboveGrant(): void
  /** What the rules in force allow of a grant that is about to be stored; what it limits is limited from here on, durably. */
  prepareGrant(grant: AppliedGrant): Promise<AppliedGrant>
  /** What these rules limit, which are about to come into force, is limited from here on, durably. */
  prepareRules(policy: Policy): Promise<void>
  /** The newest grant, and which entries were decided before it; null where there is none. */
  takenGrant(): ReceivedGrant | null
  /** The grant is durable: its tokens may be spent. */
  applyGrant(grant: AppliedGrant): void
  /** A new epoch stands in the journal: all counters 0, entries count from 1, recording may begin. */
  begin(epoch: number): void
}

/** A policy in force: verified, complete, durable. */
export interface ActivePolicy {
  readonly document: PolicyDocument
  readonly compiled: CompiledPolicy
}

/** Where the access path reads the rules in force; the link swaps them one instance at a time. */
export interface LinkPolicies {
  put(policy: ActivePolicy): void
  /** In force for the next decision; null: nobody holds the device back. */
  suspend(suspension: DeviceSuspension | null): void
  /** The cloud has signed which revisions are its newest; stands in the journal. */
  confirm(confirmation: Confirmation): void
}

export interface LinkClock {
  /** What the device knows of the time; decides, and goes into segments. */
  reading(): ClockReading
  /** Time since boot, suspend included, in ms. Only differences mean something. */
  sinceBoot(): number
  /** What the wall clock shows, POSIX ms; anybody can set it, so it only dates tokens. */
  wall(): number
  /** The cloud signed `time` (POSIX ms) between these two readings of {@link LinkClock.sinceBoot}. */
  learn(evidence: { readonly time: number; readonly sentAt: number; readonly receivedAt: number }): void
  readonly bootId: string
}

export interface Timers {
  /** Calls once after `ms`; the returned function prevents it. */
  after(ms: number, call: () => void): () => void
}

export interface Randomness {
  /** Uniform in [0, 1). */
  fraction(): number
  /** 128 bits as text of 16 to 64 characters, never repeated: nonces and salts. */
  token(): string
}

/** Structured log: a constant message, the data in fields. */
export interface LinkLog {
  info(fields: Record<string, unknown>, message: string): void
  warn(fields: Record<string, unknown>, message: string): void
}
