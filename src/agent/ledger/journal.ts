/**
 * The device's durable storage. Every method resolves when its one transaction would survive a power cut. It rejects
 * with CodedError NOT_RECORDED if nothing was recorded, and with {@link JournalLost} if the outcome is unknown: the
 * process must then stop and reopen. Calls take effect in call sequence.
 */
import type { AccountId, Posting } from '../../core/accounts/account.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import type { Counters, TopUps } from '../../core/accounts/grant.ts'
import type { DeviceSuspension } from '../../protocol/edge/device-suspension.ts'
import type { KeyLink } from '../../protocol/edge/device-key.ts'
import type { EntryBodyWire, SegmentWire } from '../../protocol/edge/sync.ts'
import type { Confirmation } from '../policy/active-policies.ts'
import type { StoredClock } from '../runtime/clock.ts'
import type { HealthCondition } from '../runtime/health.ts'

/** The private key is not stored in the database. */
export interface Identity {
  readonly deviceId: string
  readonly name?: string
  readonly keyId: string
  readonly keySince?: number
  /** The newest links between the device's keys, oldest first. Absent: it has had one key. */
  readonly keyLinks?: readonly KeyLink[]
  /** The next key and when it was requested, POSIX ms. Null or absent: no rotation. */
  readonly nextKey?: { readonly id: string; readonly since: number } | null
  readonly instanceIds: readonly string[]
  /** Public signing keys of the cloud as JWK text, pinned at enrollment or named by a trusted policy. */
  readonly trustedKeys: readonly string[]
  /** Keys that the cloud has replaced: they prove what it signed before, nothing new. Absent: none. */
  readonly formerKeys?: readonly string[]
  readonly edgeUrl: string
  readonly serviceUrl: string
  readonly pushUrl: string | null
  readonly suspension: DeviceSuspension | null
  /** The agent's own sessions in the cloud, at most one per instance. Absent: none. */
  readonly sessions?: readonly CloudSession[]
}

export interface CloudSession {
  readonly instanceId: string
  /** Idempotency key of the request to open it. */
  readonly opening: string
  readonly sessionId: string | null
}

export interface StoredPolicy {
  readonly instanceId: string
  readonly revision: number
  /** The signed document as received; verified again at each start. */
  readonly document: string
  /** When the cloud last signed that this revision is the newest, POSIX ms; 0: not yet. */
  readonly confirmedAt: number
}

export interface StoredGrant {
  readonly term: number
  readonly lifetimeMs: number
  readonly expiresAt: number
  /** Powered-on time counted against the lifetime at the last write, ms. */
  readonly agedMs: number
}

export interface AccountState extends Counters {
  /** The cloud reported an empty pool. */
  readonly exhausted: boolean
  readonly unlimited: boolean
  /** How far use may exceed `granted` until it is reported: by the offline policy, or while it was unlimited. */
  readonly allowance?: Micro
  /** At most this many tokens, the last of `granted`, are overdraft of the line item. Absent: none. */
  readonly overdraft?: Micro
}

/** Stored with every charge, so that setting the clock back or cutting the power gains nothing. */
export interface ClockStamp {
  readonly clock: StoredClock
  readonly grantAgedMs: number
}

/** The last answer in one application session; makes a retry harmless. */
export interface IdempotencyRecord {
  readonly session: string
  readonly n: number
  readonly requestHash: string
  readonly answer: string
  /** HTTP status; absent: 200. */
  readonly status?: number
  readonly policyRevision: number
}

export interface StoredSession {
  readonly id: string
  readonly ended: boolean
  readonly since: number
  /** JSON text for the device itself. */
  readonly document: string
  /** JSON text of a `sessionSnapshot` of the edge protocol. */
  readonly snapshot: string
}

export interface SalvageRecord {
  readonly at: number
  readonly file: string
  readonly why: string
  /** Entries unknown to the cloud: salvaged, and unreadable (null: number unknown). */
  readonly salvagedEntries: number
  readonly lostEntries: number | null
}

/** Everything that a start needs, read in one transaction. */
export interface Snapshot {
  readonly identity: Identity | null
  readonly epoch: number
  /** Fenced by the cloud: no spending until the final segment is delivered and the device attached again. */
  readonly fenced: boolean
  readonly accounts: ReadonlyMap<AccountId, AccountState>
  readonly grant: StoredGrant | null
  readonly policies: readonly StoredPolicy[]
  readonly signedAnswers: readonly string[]
  readonly lastEntry: number
  readonly entryHead: string
  readonly lastSealedEntry: number
  /** Open reservations: the value of `used` up to which they reach. */
  readonly openReservations: ReadonlyMap<AccountId, Micro>
  /** The part of `used` that power cuts burned in this epoch; accounts without burns are absent. */
  readonly burned: ReadonlyMap<AccountId, Micro>
  readonly undeliveredRanges: number
  /** The cloud lost segments of them that have not been sent again. Absent: false. */
  readonly resendsEarlier?: boolean
  readonly idempotencyCache: readonly IdempotencyRecord[]
  readonly sessions: readonly StoredSession[]
  readonly unacknowledged: SealedSegment | null
  readonly lastSeq: number
  readonly highestEpoch: number
  readonly clock: StoredClock | null
  /** Only those whose file still exists. Absent: none. */
  readonly salvages?: readonly SalvageRecord[]
}

export interface PendingEntry {
  /** Consecutive, starting at lastEntry + 1; the journal checks it and adds the hash chain. */
  readonly n: number
  readonly body: string
  /** Whether the postings raise `used` or `refunded`; a burn raises `used` and is also counted separately. */
  readonly moves: 'used' | 'refunded' | 'burned'
  readonly postings: readonly Posting[]
  /** For accounts of essential line items: how far use may exceed the grant. Absent: not at all. */
  readonly allowances?: ReadonlyMap<AccountId, Micro>
  readonly idempotencyRecord: IdempotencyRecord | null
  /** Grants nothing, so its answer need not wait for the journal. Absent: it may charge. */
  readonly isDenial?: boolean
  /** Decision inputs besides rules and body; never sent. Absent or null: none are kept. */
  readonly inputs?: string | null
  readonly session?: StoredSession
}

/** How far `used` may rise without another flush; 0 or below `used`: closed. */
export interface Reservation {
  readonly account: AccountId
  readonly usedUpTo: Micro
}

export interface RecordedEntry {
  readonly body: string
  readonly inputs: string | null
  /** The signed rules at the entry's revision; null: no longer kept. */
  readonly rules: string | null
  readonly trustedKeys: readonly string[]
}

export interface SealedSegment {
  readonly epoch: number
  readonly seq: number
  readonly hash: string
  readonly document: string
  readonly final: boolean
  readonly answer: string | null
}

export interface NewSegment extends SealedSegment {
  /** It leaves entries, sessions or returned tokens for the next segment. */
  readonly isMoreToFollow: boolean
}

export interface SegmentPlace {
  readonly epoch: number
  readonly seq: number
}

export interface StoredAnswer {
  readonly document: string
  /** Keep the segment until then by the cloud's clock, POSIX ms; null: the cloud has not sent a time. */
  readonly retainUntil: number | null
  /** The cloud asks for the kept segments of earlier epochs, which are sent before the next segment. Absent: it does not. */
  readonly resendsEarlier?: boolean
}

export interface ReceivedGrant {
  readonly term: number
  readonly lastEntry: number
}

export interface ChainEnd {
  readonly entry: number
  readonly head: string
}

/** The epoch that an attach ends. */
export interface LeftEpoch {
  /** No other writer and no loss here: the cloud is notified when it has every entry. */
  readonly isWhole: boolean
  /** End of the entries in a restored cloud, which gets the kept segments again; null: the cloud was not restored. */
  readonly cloudEnd: ChainEnd | null
}

export const NOTHING_KNOWN: LeftEpoch = { isWhole: false, cloudEnd: null }

/** Entries, counters, seq and hashes come from the journal. */
export interface SealRequest extends TopUps {
  readonly salt: string
  readonly bootId: string
  readonly clock: SegmentWire['clock']
  readonly policies: SegmentWire['policies']
  /** Raises `returned` by these amounts in the same transaction. */
  readonly returns: readonly Posting[]
  readonly grant: ReceivedGrant | null
  readonly final: boolean
}

export interface GrantedAccount {
  readonly account: AccountId
  readonly granted: Micro
  readonly exhausted: boolean
  readonly unlimited: boolean
  readonly overdraft?: Micro | undefined
}

/** Not a CodedError, so that it cannot be handled as a refusal. */
export class JournalLost extends Error {
  constructor(cause: Error) {
    super(`the outcome of a call to the journal is unknown: ${cause.message}`, { cause })
    this.name = 'JournalLost'
  }
}

/** The store runs these methods synchronously; {@link Journal} has them as promises. */
export interface JournalOperations {
  read(): Snapshot
  /**
   * The cloud has merged `seq`: stores everything else (null: not stored) in the same transaction. The segment may be
   * deleted after the retention time, and not before the receipt allows it.
   */
  acknowledge(
    seq: number,
    grant: (StoredGrant & { readonly accounts: readonly GrantedAccount[] }) | null,
    confirmation: Confirmation | null,
    answer?: StoredAnswer | null,
  ): void
  /** A sealed segment of the current epoch, acknowledged or not; null: never sealed, or deleted. */
  sealed(seq: number): SealedSegment | null
  /** The next kept acknowledged segment of an earlier epoch; null: none. */
  sealedEarlier(after: SegmentPlace): SealedSegment | null
  /** The newest kept answers of the cloud that together prove the grants of the current epoch. */
  proofs(): readonly string[]
  /** Spending has already stopped in memory. */
  fence(): void
  /**
   * Starts a new epoch with all counters 0. An unacknowledged segment is kept as evidence and not sent again; its
   * entries are sent as the undelivered range of their epoch.
   * @param left the epoch before. Absent: {@link NOTHING_KNOWN}
   */
  attach(epoch: number, left?: LeftEpoch): void
  /** Counts these accounts from now on. Use above their grants stays allowed; reservations beyond it are shortened. */
  limit(accounts: readonly AccountId[]): void
  saveIdentity(identity: Identity): void
  savePolicy(policy: Omit<StoredPolicy, 'confirmedAt'>, keys: Pick<Identity, 'trustedKeys' | 'formerKeys'> | null): void
  /** Also fails while entries would be refused: so an idle agent learns when it can record again. */
  saveClock(stamp: ClockStamp): void
  /** Newest first. */
  recent(limit: number): readonly EntryBodyWire[]
}

type Remote<T> = {
  readonly [M in keyof T]: T[M] extends (...args: infer A) => infer R ? (...args: A) => Promise<R> : never
}

export interface Journal extends Remote<JournalOperations> {
  /**
   * One transaction for all entries, in sequence. An entry after one that was not recorded is not recorded either.
   * @param isForAll whether all callers that are expected now wait for it: there is nothing else to do meanwhile. Default: false
   */
  append(entries: readonly PendingEntry[], stamp: ClockStamp, isForAll?: boolean): Promise<void>
  /**
   * Like {@link Journal.append}, and moves the ends of reservations; entries may be empty. Resolves with the hash chain
   * over the epoch's entries. Fences and returns shorten reservations without a call.
   *
   * @param answered the entries were answered already, so they may use the disk space reserved for deliveries
   */
  appendWriteBehind(
    entries: readonly PendingEntry[],
    reservations: readonly Reservation[],
    stamp: ClockStamp,
    answered: boolean,
  ): Promise<string>
  /**
   * Seals the next segment durably. Throws if one is unacknowledged. A segment that leaves entries behind is not final,
   * even if `final` was requested, and its result says so.
   */
  seal(request: SealRequest): Promise<NewSegment>
  /** The newest entry with this correlation id; null: none kept. Entries may be recorded during the search. */
  find(correlationId: string): Promise<RecordedEntry | null>
  /**
   * The error that prevents recording; null while entries are accepted. Every refused write raises it. Only writes
   * clear it that could not use reserved disk space: entries, and the clock of an idle agent.
   */
  condition(): HealthCondition | null
  close(): Promise<void>
}
