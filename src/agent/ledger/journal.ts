/**
 * The device's durable memory, as the use cases need it. Every method resolves after its one transaction would survive
 * a power cut, and rejects with CodedError NOT_RECORDED (nothing of it happened) or, when the outcome is unknown, with
 * any other error: then the process must stop and open again. Calls take effect in the order in which they were made.
 */
import type { AccountId, Posting } from '../../core/accounts/account.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import type { Counters, Need, TopUpRequest } from '../../core/accounts/grant.ts'
import type { DeviceSuspension } from '../../protocol/edge/device-suspension.ts'
import type { KeyLink } from '../../protocol/edge/device-key.ts'
import type { EntryBodyWire, SegmentWire } from '../../protocol/edge/sync.ts'

/** Who this device is, from enrollment. The private key is not in here and not in the database. */
export interface Identity {
  readonly deviceId: string
  /** Thumbprint of the key of this device. */
  readonly keyId: string
  /** Since when it has this key, best estimate, POSIX ms. Absent: not known. */
  readonly keySince?: number
  /** How it came to this key, oldest first: the newest links. Absent: it has had no other. */
  readonly keyLinks?: readonly KeyLink[]
  /** The key that shall take its place, and since when that is ordered, POSIX ms. Null or absent: none shall. */
  readonly nextKey?: { readonly id: string; readonly since: number } | null
  readonly instanceIds: readonly string[]
  /** Public signing keys of the cloud as JWK text, pinned at enrollment or named by a later trusted policy. */
  readonly trustedKeys: readonly string[]
  readonly edgeUrl: string
  readonly serviceUrl: string
  readonly pushUrl: string | null
  /** How the cloud holds this device back, as it last signed; null: it does not. */
  readonly suspension: DeviceSuspension | null
  /** The agent's own sessions at the cloud, at most one for each instance. Absent: none. */
  readonly sessions?: readonly CloudSession[]
}

/** A session that the agent has opened at the cloud, or was about to: a restart takes it up again. */
export interface CloudSession {
  readonly instanceId: string
  /** What this opening is called: asked with it again, the cloud gives the same session. */
  readonly opening: string
  /** Null: the answer has not come. */
  readonly sessionId: string | null
}

export interface StoredPolicy {
  readonly instanceId: string
  readonly revision: number
  /** The signed document as received; verified again at each start. */
  readonly document: string
  /** When the cloud last said, in a signed answer, that this revision is its newest, POSIX ms; 0 when it has not yet. */
  readonly confirmedAt: number
}

/** The cloud's signed word, with an acknowledgement, on the policies that it knows. */
export interface Confirmation {
  /** Of the answer, POSIX ms. */
  readonly time: number
  /** Newest revision in the cloud, per instance. A stored policy of the same revision is confirmed by it. */
  readonly policies: readonly { readonly instanceId: string; readonly revision: number }[]
}

export interface StoredGrant {
  readonly term: number
  readonly lifetimeMs: number
  readonly expiresAt: number
  /** Powered-on time already counted against the lifetime at the last write, ms. */
  readonly agedMs: number
}

/** What the ledger holds of one account in the current epoch. */
export interface AccountState extends Counters {
  /** The cloud's word that the pool has no more to grant. */
  readonly exhausted: boolean
  /** Not counted down: granted without limit, which the rules in force allow. */
  readonly unlimited: boolean
  /**
   * What may be used above `granted` until the cloud has heard of it: by the offline policy, or while it was unlimited. Absent:
   * nothing.
   */
  readonly allowance?: Micro
  /** At most so many tokens, the last of `granted`, are overdraft of the line item, by the cloud's word. Absent: none. */
  readonly overdraft?: Micro
}

/** What is known of the time, tied to a reading of the boot-time clock, so that a restart in the same boot goes on from it. */
export interface StoredClock {
  readonly bootId: string
  /** Reading of the boot-time clock, suspend included, for which the interval holds, ms. */
  readonly sinceBoot: number
  /** POSIX ms; the true time was surely not before this. Never falls from one write to the next, except by signed time. */
  readonly earliest: number
  /** Null: nothing bounded it. */
  readonly latest: number | null
}

/** What every transaction that spends also keeps, so that setting the clock back or cutting the power gains nothing. */
export interface ClockStamp {
  readonly clock: StoredClock
  readonly grantAgedMs: number
}

/** The last answer given to one application session: what makes an application's retry harmless. */
export interface IdempotencyRecord {
  readonly session: string
  readonly n: number
  /** SHA-256 of the request, so that the same number with another request is refused. */
  readonly requestHash: string
  /** Body of the answer as sent. */
  readonly answer: string
  /** HTTP status of the answer; 200 where there is none. */
  readonly status?: number
  readonly policyRevision: number
}

/** A session that this device keeps, as it stands after an entry. */
export interface StoredSession {
  readonly id: string
  readonly ended: boolean
  /** When it came into its state, POSIX ms: one that ended is kept for a time. */
  readonly since: number
  /** JSON text for the device itself. */
  readonly document: string
  /** JSON text of a `sessionSnapshot` of the edge protocol, for the next segment. */
  readonly snapshot: string
}

/** A journal before this one that was damaged and put aside. */
export interface SalvageRecord {
  /** POSIX ms by the wall clock of then. */
  readonly at: number
  /** Where it is. */
  readonly file: string
  readonly why: string
  /** Entries that the cloud did not have: those that were salvaged, and those that could not be read (null: unknown). */
  readonly salvagedEntries: number
  readonly lostEntries: number | null
}

/** Everything that a start needs, read once. */
export interface Snapshot {
  readonly identity: Identity | null
  /** 0: not attached yet. */
  readonly epoch: number
  /** Fenced by the cloud: no spending, until the final segment is delivered and the device attached anew. */
  readonly fenced: boolean
  readonly accounts: ReadonlyMap<AccountId, AccountState>
  readonly grant: StoredGrant | null
  readonly policies: readonly StoredPolicy[]
  readonly lastEntry: number
  /** Hash chain over the entries of this epoch. */
  readonly entryHead: string
  readonly lastSealedEntry: number
  /** Accounts with a block that is reserved beyond their use, and the value of `used` up to which it reaches. */
  readonly openReservations: ReadonlyMap<AccountId, Micro>
  /** Of `used`, what was burned by power cuts in this epoch; accounts that burned nothing are not named. */
  readonly burned: ReadonlyMap<AccountId, Micro>
  /** Entries of earlier epochs that the cloud does not have yet: how many all undelivered ranges hold. */
  readonly undeliveredRanges: number
  /** The cloud has lost segments of them, and has not been sent those that are kept. Absent: it has not. */
  readonly resendsEarlier?: boolean
  readonly idempotencyCache: readonly IdempotencyRecord[]
  readonly sessions: readonly StoredSession[]
  /** The sealed segment that is not acknowledged, if any. */
  readonly unacknowledged: SealedSegment | null
  readonly lastSeq: number
  /** Of all epochs that this device ever had. */
  readonly highestEpoch: number
  readonly clock: StoredClock | null
  /** Those whose file is still there. Absent: none. */
  readonly salvages?: readonly SalvageRecord[]
}

export interface PendingEntry {
  /** lastEntry + 1, + 2 ...; the journal checks it and adds the hash chain. */
  readonly n: number
  /** Text of an entry body, as it is hashed and sent. */
  readonly body: string
  /** Whether the postings raise `used` or `refunded`; a burn raises `used`, and is counted apart as well. */
  readonly moves: 'used' | 'refunded' | 'burned'
  readonly postings: readonly Posting[]
  /** For accounts of essential line items: how far their use may be above what is granted. Absent: not at all. */
  readonly allowances?: ReadonlyMap<AccountId, Micro>
  readonly idempotencyRecord: IdempotencyRecord | null
  /** What the decision was made by, besides rules and body: kept beside the entry, never sent. Absent, or null: nothing is kept. */
  readonly facts?: string | null
  /** The session that it changes, as it stands afterwards: durable with the entry, or not at all. */
  readonly session?: StoredSession
}

/** Up to which value of `used` an account may be charged with no further flush; 0 or below its use: no further. */
export interface Reservation {
  readonly account: AccountId
  readonly usedUpTo: Micro
}

/** An entry with what it was decided by, as far as it is kept. */
export interface RecordedEntry {
  /** Text of the entry body. */
  readonly body: string
  /** As {@link PendingEntry.facts}; null where none were kept. */
  readonly facts: string | null
  /** The signed rules of its instance at its revision; null where they are kept no more. */
  readonly rules: string | null
  /** Public keys of the cloud as JWK text, as they are pinned by now. */
  readonly trustedKeys: readonly string[]
}

export interface SealedSegment {
  readonly epoch: number
  readonly seq: number
  /** SHA-256 of the payload text. */
  readonly hash: string
  /** Compact JWS, sent byte for byte. */
  readonly document: string
  readonly final: boolean
  /** The cloud's signed answer; null while there is none that acknowledges it. */
  readonly answer: string | null
}

/** Where a segment stands among all that the device has sealed. */
export interface SegmentPlace {
  readonly epoch: number
  readonly seq: number
}

/** The cloud's signed answer to a segment, as received: the receipt for it. */
export interface StoredAnswer {
  readonly document: string
  /** The segment is kept until then by the cloud's clock, POSIX ms; null where the cloud has not said so. */
  readonly retainUntil: number | null
}

/** The newest grant, and the last entry that was decided before it was taken. */
export interface ReceivedGrant {
  readonly term: number
  readonly lastEntry: number
}

/** How far a chain of entries goes. */
export interface ChainEnd {
  /** Number of the last entry. */
  readonly entry: number
  /** Hash of it. */
  readonly head: string
}

/** How an epoch is left. */
export interface Leaving {
  /** Nobody else has written in it, and nothing of it was lost here: the cloud is told when it has all of it. */
  readonly isWhole: boolean
  /** How far the cloud has its entries, when it has lost segments that it had acknowledged; null: it has lost none. */
  readonly cloudEnd: ChainEnd | null
}

export const NOTHING_TO_SAY: Leaving = { isWhole: false, cloudEnd: null }

/** What only the caller knows about a segment to be sealed; entries, counters, seq and hashes come from the journal. */
export interface SealRequest {
  readonly salt: string
  readonly bootId: string
  readonly clock: SegmentWire['clock']
  readonly topUpRequests: readonly TopUpRequest[]
  readonly needs: readonly Need[]
  readonly policies: SegmentWire['policies']
  /** Accounts whose room is given up, with the amount: raises `returned` in the same transaction. */
  readonly returns: readonly Posting[]
  /** Null: the epoch has none. */
  readonly grant: ReceivedGrant | null
  readonly final: boolean
}

export interface GrantedAccount {
  readonly account: AccountId
  readonly granted: Micro
  readonly exhausted: boolean
  readonly unlimited: boolean
  /** At most so many tokens, the last of `granted`, are overdraft. Absent: none. */
  readonly overdraft?: Micro | undefined
}

export interface Journal {
  read(): Promise<Snapshot>
  /** One transaction for all of them, in order. An entry behind one that was not recorded is not recorded either. */
  append(entries: readonly PendingEntry[], stamp: ClockStamp): Promise<void>
  /**
   * The same, with the ends of reserved blocks in the same transaction; there may be no entries. Resolves with the hash chain
   * over all entries of the epoch. A fence, and returns in a segment, shorten blocks by themselves.
   *
   * @param answered somebody relies on these entries already: they may have the space that is set aside for deliveries
   */
  appendWriteBehind(
    entries: readonly PendingEntry[],
    reservations: readonly Reservation[],
    stamp: ClockStamp,
    answered: boolean,
  ): Promise<string>
  /**
   * Makes the next segment durable. At most one may be unacknowledged: throws otherwise. A backlog takes several: the
   * segment is final as ordered only when nothing is left behind it, and says so.
   */
  seal(order: SealRequest): Promise<SealedSegment>
  /**
   * The cloud has merged `seq`; stores the grant that came with it (null: none came), what it confirmed and the signed
   * answer itself in the same transaction. What is acknowledged may be forgotten after the retention time, and not before
   * the receipt says so.
   */
  acknowledge(
    seq: number,
    grant: (StoredGrant & { readonly accounts: readonly GrantedAccount[] }) | null,
    confirmation: Confirmation | null,
    /** Absent: there is none to keep. */
    answer?: StoredAnswer | null,
  ): Promise<void>
  /** A sealed segment of the current epoch, acknowledged or not; null when it was never sealed or is forgotten. */
  sealed(seq: number): Promise<SealedSegment | null>
  /** The next acknowledged segment of an epoch before the current one that is still kept; null when there is none. */
  sealedEarlier(after: SegmentPlace): Promise<SealedSegment | null>
  /** Signed answers of the cloud that together prove what the current epoch was granted; of what is kept, the newest. */
  proofs(): Promise<readonly string[]>
  /** Marks the current epoch as fenced; spending has already stopped in memory. */
  fence(): Promise<void>
  /**
   * Begins a new epoch, above all before it, with all counters 0. A segment that is still unacknowledged stays as
   * evidence and is sent no more; entries that the cloud does not have go up as the undelivered range of their epoch,
   * with the next segments.
   *
   * @param leaving the epoch before. Absent: {@link NOTHING_TO_SAY}
   */
  attach(epoch: number, leaving?: Leaving): Promise<void>
  /**
   * These accounts are counted down from here on. What was used above their grants stays allowed. A block that reaches beyond
   * that is shortened.
   */
  limit(accounts: readonly AccountId[]): Promise<void>
  saveIdentity(identity: Identity): Promise<void>
  savePolicy(policy: Omit<StoredPolicy, 'confirmedAt'>, trustedKeys: readonly string[] | null): Promise<void>
  /** Keeps the clock and the grant's age, for an agent that writes nothing else. */
  saveClock(stamp: ClockStamp): Promise<void>
  /** Entries for the technician, newest first. */
  recent(limit: number): Promise<readonly EntryBodyWire[]>
  /** The newest entry with this correlation id; null when none is kept. Entries may be recorded while it searches. */
  find(correlationId: string): Promise<RecordedEntry | null>
  close(): Promise<void>
}
