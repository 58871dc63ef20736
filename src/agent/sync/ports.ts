/** What the link requires of the rest of the agent: parts of the journal and ledger, time, timers and randomness. */
import type { AccountId, Posting } from '../../core/accounts/account.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import type { CompiledPolicy } from '../../core/rules/compile.ts'
import type { ClockReading } from '../../core/rules/decision.ts'
import type { TopUpRequest } from '../../core/accounts/grant.ts'
import type { Policy } from '../../core/rules/policy.ts'
import type { DeviceSuspension } from '../../protocol/edge/device-suspension.ts'
import type { PolicyDocument } from '../../protocol/edge/policy-document.ts'
import type { Confirmation, GrantedAccount, Journal, StoredGrant, ReceivedGrant } from '../ledger/journal.ts'

export type LinkJournal = Pick<
  Journal,
  'seal' | 'sealed' | 'sealedEarlier' | 'proofs' | 'acknowledge' | 'fence' | 'attach' | 'saveIdentity' | 'savePolicy'
>

export type AppliedGrant = StoredGrant & { readonly accounts: readonly GrantedAccount[] }

/** The ledger in memory. Without an epoch, or with a fenced one, it starts frozen. */
export interface LinkLedger {
  lastEntry(): number
  topUpRequests(): readonly TopUpRequest[]
  exhaustedAccounts(): readonly AccountId[]
  flushed(): Promise<void>
  /**
   * Stops recording at once, until {@link LinkLedger.begin}, and resolves when every earlier entry is in the journal.
   * An entry after the final segment could never be delivered.
   */
  freeze(): Promise<void>
  returnUnused(): readonly Posting[]
  giveUpSpare(recalled: ReadonlyMap<AccountId, Micro>, needed: ReadonlyMap<AccountId, Micro>): readonly Posting[]
  hasSpare(recalled: ReadonlyMap<AccountId, Micro>, needed: ReadonlyMap<AccountId, Micro>): boolean
  takeBackUnused(returns: readonly Posting[]): void
  owes(): boolean
  settleAboveGrant(): void
  /** Applies the current rules to a grant that is about to be stored; accounts that it limits are limited durably. */
  prepareGrant(grant: AppliedGrant): Promise<AppliedGrant>
  prepareRules(policy: Policy): Promise<void>
  takenGrant(): ReceivedGrant | null
  applyGrant(grant: AppliedGrant): void
  begin(epoch: number): void
}

export interface ActivePolicy {
  readonly document: PolicyDocument
  readonly compiled: CompiledPolicy
}

/** The rules in force; the link replaces them per instance. */
export interface LinkPolicies {
  /** @param instanceId in lower case */
  get(instanceId: string): ActivePolicy | undefined
  put(policy: ActivePolicy): void
  /** Effective for the next decision; null: not suspended. */
  suspend(suspension: DeviceSuspension | null): void
  /** Call when the signed confirmation is in the journal. */
  confirm(confirmation: Confirmation): void
}

export interface LinkClock {
  reading(): ClockReading
  /** Boot-time reading, suspend included, ms. */
  sinceBoot(): number
  /** POSIX ms. Unreliable, so it only dates tokens. */
  wall(): number
  learn(evidence: { readonly time: number; readonly sentAt: number; readonly receivedAt: number }): void
  readonly bootId: string
}

export interface Timers {
  /** Calls once after `ms`; the returned function cancels it. */
  after(ms: number, call: () => void): () => void
}

export interface Randomness {
  /** Uniform in [0, 1). */
  fraction(): number
  /** 128 random bits as text of 16 to 64 characters: nonces and salts. */
  token(): string
}

/** A constant message, with the data in fields. */
export interface LinkLog {
  info(fields: Record<string, unknown>, message: string): void
  warn(fields: Record<string, unknown>, message: string): void
}
