/**
 * The link's picture of the device: what is durable, as of the last commit, and what it has heard since the start. Each
 * step changes it only after the journal has committed the same change; the planner sees nothing else.
 */
import type { AccountId } from '../../core/accounts/account.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import type { LinkState } from '../../core/sync/plan.ts'
import type { Identity, SealedSegment, SegmentPlace, Snapshot } from '../ledger/journal.ts'
import type { PublicJwk } from '../../protocol/signing.ts'
import { extentOf } from './segment-extent.ts'
import { NO_SESSION, type Session, keptSession } from './session-state.ts'
import { Trust } from '../keys/trust.ts'

export interface PolicyMemory {
  /** Revision in force; 0 for none. */
  applied: number
  /** Only a revision above this may come into force. */
  floor: number
  /** Newest revision that the cloud has named; 0 when it has not. */
  newest: number
  /** Signed the revision in force; null for none. */
  signedBy: PublicJwk | null
  /** The revision in force as the cloud has signed it: what shows it to a cloud that has forgotten it. Null for none. */
  document: string | null
  /** It was shown, once is enough. */
  shown: boolean
  tried: boolean
}

export interface SessionMemory {
  session: Session
  /** The cloud may have done something to it, and was not asked yet. */
  looking: boolean
  tried: boolean
}

export interface KeyMemory {
  /** The cloud's administrator wants another key. */
  isAsked: boolean
  /** The cloud did not take the next key. */
  isRefused: boolean
  /** Announced in this round already. */
  isTried: boolean
  /** The cloud seems to know an earlier key only. */
  isUnknown: boolean
  /** It was shown in this round already how the device came to its key. */
  isShown: boolean
}

export interface LinkMemory {
  identity: Identity | null
  trust: Trust
  /** What is under way about the key of the device; that another one is wanted for good stands in the identity. */
  readonly key: KeyMemory
  /** The enrollment token that was refused, or has served, so that it is not tried again. */
  refusedToken: string | null

  /** Of the attach that has no accepted answer yet; never stored. */
  attachNonce: { readonly text: string; repeated: boolean } | null
  epoch: number
  highestEpoch: number
  fence: LinkState['fence']
  unacknowledged: SealedSegment | null
  lastSeq: number
  lastSealedEntry: number
  /** Last entry that the cloud has acknowledged in this epoch. */
  lastAcknowledgedEntry: number
  /** Entries of earlier epochs that the cloud does not have yet: how many all undelivered ranges hold. */
  undeliveredRanges: number
  /** Of the last grant taken in this epoch; 0 for none. */
  grantTerm: number
  /** The cloud has lost this acknowledged segment and all after it; null when it has not. */
  resendFrom: number | null
  /** It has lost segments: of earlier epochs those behind this one are still to be sent again; null when none are. */
  earlier: SegmentPlace | null
  /** It has lost segments that this device no longer keeps: the chain cannot be made whole. */
  lost: boolean
  /** The segment that the cloud cannot read, how often it has said so, and the boot-time reading of the first time, ms. */
  refused: { readonly hash: string; readonly times: number; readonly since: number } | null
  /** What the cloud has signed, answers that prove what is granted and rules in force, still to be shown to a cloud that has lost it. */
  proofs: readonly string[]

  /** The last segment left entries behind because it was full. */
  moreToSend: boolean
  releasing: boolean
  /** What this device may keep at most of accounts that others are short of; until it has given back the rest. */
  keeps: ReadonlyMap<AccountId, Micro>
  looking: boolean
  /** The cloud wants the device to come again: for the next round. */
  lookAgain: boolean
  /** A segment that was sealed in this round has carried the wants. */
  topUpsCarried: boolean

  readonly policies: Map<string, PolicyMemory>
  readonly sessions: Map<string, SessionMemory>

  /** Whether the last exchange with the cloud got an answer. */
  contact: 'UNKNOWN' | 'UP' | 'DOWN'
  /** Best estimate of when the cloud last answered, POSIX ms. */
  lastContactAt: number | null
  lastSyncAt: number | null
  /** Boot-time reading at the last merged segment whose answer was new, ms. */
  syncedAt: number | null
  /** The cloud wants to hear from the device within this time. */
  nextSyncMs: number | null
}

/** @param closed the last segment of a fenced epoch was final and is acknowledged */
export async function remember(snapshot: Snapshot, closed: boolean): Promise<LinkMemory> {
  const memory: LinkMemory = {
    identity: null,
    trust: await Trust.of([]),
    key: { isAsked: false, isRefused: false, isTried: false, isUnknown: false, isShown: false },
    refusedToken: null,
    attachNonce: null,
    epoch: snapshot.epoch,
    highestEpoch: snapshot.highestEpoch,
    fence: snapshot.fenced ? (closed ? 'CLOSED' : 'FENCED') : 'NONE',
    unacknowledged: snapshot.unacknowledged,
    lastSeq: snapshot.lastSeq,
    lastSealedEntry: snapshot.lastSealedEntry,
    lastAcknowledgedEntry:
      snapshot.unacknowledged === null ? snapshot.lastSealedEntry : extentOf(snapshot.unacknowledged).firstEntry - 1,
    undeliveredRanges: snapshot.undeliveredRanges,
    grantTerm: snapshot.grant?.term ?? 0,
    resendFrom: null,
    earlier: snapshot.resendsEarlier === true ? { epoch: 0, seq: 0 } : null,
    lost: false,
    refused: null,
    proofs: [],
    moreToSend: false,
    releasing: false,
    keeps: new Map(),
    looking: false,
    lookAgain: false,
    topUpsCarried: false,
    policies: new Map(),
    sessions: new Map(),
    contact: 'UNKNOWN',
    lastContactAt: null,
    lastSyncAt: null,
    syncedAt: null,
    nextSyncMs: null,
  }
  if (snapshot.identity !== null) await takeIdentity(memory, snapshot.identity)
  return memory
}

/** The device is known to the cloud under this identity. */
export async function takeIdentity(memory: LinkMemory, identity: Identity): Promise<void> {
  memory.trust = await Trust.of(identity.trustedKeys)
  memory.identity = identity
  for (const instanceId of identity.instanceIds) {
    if (memory.policies.has(instanceId)) continue
    memory.policies.set(instanceId, {
      applied: 0,
      floor: 0,
      newest: 0,
      signedBy: null,
      document: null,
      shown: false,
      tried: false,
    })
    const sessionId = identity.sessions?.find((session) => session.instanceId === instanceId)?.sessionId ?? null
    const session = sessionId === null ? NO_SESSION : keptSession(sessionId)
    memory.sessions.set(instanceId, { session, looking: sessionId !== null, tried: false })
  }
}

/**
 * A new epoch stands in the journal.
 *
 * @param lastEntry of the one before
 */
export function takeEpoch(memory: LinkMemory, epoch: number, lastEntry: number): void {
  memory.undeliveredRanges += lastEntry - memory.lastAcknowledgedEntry
  memory.attachNonce = null
  memory.epoch = epoch
  memory.highestEpoch = epoch
  memory.fence = 'NONE'
  memory.unacknowledged = null
  memory.lastSeq = 0
  memory.lastSealedEntry = 0
  memory.lastAcknowledgedEntry = 0
  memory.grantTerm = 0
  memory.resendFrom = null
  memory.earlier = null
  memory.lost = false
  memory.refused = null
  memory.proofs = []
  memory.moreToSend = false
  memory.releasing = false
  memory.keeps = new Map()
  memory.syncedAt = null
}

/** Who the device is. Throws where a step was planned for a device that is nobody yet. */
export function identityOf(memory: LinkMemory): Identity {
  if (memory.identity === null) throw new Error('invariant: only an enrolled device takes this step')
  return memory.identity
}
