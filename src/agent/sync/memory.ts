/**
 * The link's state: the durable part as of the last commit, and observations since the start. A step changes it only
 * after the journal has committed the same change; the planner sees nothing else.
 */
import type { AccountId } from '../../core/accounts/account.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import type { LinkState } from '../../core/sync/plan.ts'
import type { Identity, SealedSegment, SegmentPlace, Snapshot } from '../ledger/journal.ts'
import type { PublicJwk } from '../../protocol/signing.ts'
import type { LinkJournal } from './ports.ts'
import { extentOf } from './segment-extent.ts'
import { NO_CLOUD_SESSION, type CloudSessionState, keptCloudSession } from './cloud-session-state.ts'
import { Trust } from '../keys/trust.ts'

export interface PolicyMemory {
  /** Revision in force; 0: none. */
  applied: number
  /** Only higher revisions may come into force. */
  floor: number
  engine: number | null
  /** Newest revision that the cloud has named; 0: none. */
  newest: number
  signedBy: PublicJwk | null
  /** The signed revision in force, for a cloud that has forgotten it. Null: none. */
  document: string | null
  /** Already sent; once is enough. */
  shown: boolean
  tried: boolean
}

export interface SessionMemory {
  session: CloudSessionState
  /** The cloud may have changed it; not checked yet. */
  needsCheck: boolean
  tried: boolean
}

export interface KeyMemory {
  isRequested: boolean
  isRefused: boolean
  isTried: boolean
  /** The cloud may know only an earlier key. */
  isUnknown: boolean
  isShown: boolean
}

export interface LinkMemory {
  identity: Identity | null
  /** Boot-time reading of the last change of the broker by an answer, ms; null: none since the start. */
  brokerChangedAt: number | null
  trust: Trust
  /** A durable rotation request is in the identity. */
  readonly key: KeyMemory
  /** A token that was refused or used. A reload makes a device that is not enrolled try it again. */
  refusedToken: string | null
  /** The cloud has refused the last attach, because an administrator has ended the service of the device. */
  isEnded: boolean

  /** Of an attach without accepted answer; never stored. */
  attachNonce: { readonly text: string; repeated: boolean } | null
  epoch: number
  highestEpoch: number
  fence: LinkState['fence']
  unacknowledged: SealedSegment | null
  lastSeq: number
  lastSealedEntry: number
  lastAcknowledgedEntry: number
  undeliveredRanges: number
  /** Term of the last grant in this epoch; 0: none. */
  grantTerm: number
  /** The cloud has lost the acknowledged segments from here on; null: none. */
  resendFrom: number | null
  /** Segments of earlier epochs after this one are still to be sent again; null: none. */
  earlier: SegmentPlace | null
  /** The cloud has lost segments that this device no longer keeps: the chain cannot be completed. */
  lost: boolean
  /** A segment that the cloud could not read: number of refusals, and the boot-time reading of the first, ms. */
  refused: { readonly hash: string; readonly times: number; readonly since: number } | null
  proofs: readonly string[]
  /** Entries that the cloud does not bill, by the segment that brought them; since the start. */
  readonly unbilled: Map<string, number>

  moreToSend: boolean
  returnsAll: boolean
  /** How much the device may keep of recalled accounts, until it has returned the rest. */
  keeps: ReadonlyMap<AccountId, Micro>
  expectsNews: boolean
  /** The next round follows at once, with a sync. */
  syncsAgain: boolean
  topUpsCarried: boolean

  readonly policies: Map<string, PolicyMemory>
  readonly sessions: Map<string, SessionMemory>

  contact: 'UNKNOWN' | 'UP' | 'DOWN'
  lastContactAt: number | null
  lastSyncAt: number | null
  /** Boot-time reading of the last merged segment with a new answer, ms. */
  syncedAt: number | null
  nextSyncMs: number | null
}

export interface IdentityPlace {
  readonly journal: Pick<LinkJournal, 'saveIdentity'>
  readonly memory: LinkMemory
}

/** What begins again with each epoch. */
function epochStart() {
  return {
    attachNonce: null,
    isEnded: false,
    fence: 'NONE',
    unacknowledged: null,
    lastSeq: 0,
    lastSealedEntry: 0,
    lastAcknowledgedEntry: 0,
    grantTerm: 0,
    resendFrom: null,
    earlier: null,
    lost: false,
    refused: null,
    proofs: [],
    moreToSend: false,
    returnsAll: false,
    keeps: new Map(),
    syncedAt: null,
  } satisfies Partial<LinkMemory>
}

/** The signed answers of earlier runs show a contact; 0: not confirmed yet. */
function newest(known: number | null, { confirmedAt }: Snapshot['policies'][number]): number | null {
  return confirmedAt > (known ?? 0) ? confirmedAt : known
}

/** @param closed the last segment of a fenced epoch was final and is acknowledged */
export async function remember(snapshot: Snapshot, closed: boolean): Promise<LinkMemory> {
  const memory: LinkMemory = {
    ...epochStart(),
    identity: null,
    brokerChangedAt: null,
    trust: await Trust.of([]),
    key: { isRequested: false, isRefused: false, isTried: false, isUnknown: false, isShown: false },
    refusedToken: null,
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
    earlier: snapshot.resendsEarlier === true ? { epoch: 0, seq: 0 } : null,
    expectsNews: false,
    syncsAgain: false,
    topUpsCarried: false,
    unbilled: new Map(),
    policies: new Map(),
    sessions: new Map(),
    contact: 'UNKNOWN',
    lastContactAt: snapshot.policies.reduce<number | null>(newest, null),
    lastSyncAt: null,
    nextSyncMs: null,
  }
  if (snapshot.identity !== null) await takeIdentity(memory, snapshot.identity)
  return memory
}

export async function takeIdentity(memory: LinkMemory, identity: Identity): Promise<void> {
  memory.trust = await Trust.of(identity.trustedKeys)
  memory.identity = identity
  for (const instanceId of identity.instanceIds) {
    if (memory.policies.has(instanceId)) continue
    memory.policies.set(instanceId, {
      applied: 0,
      floor: 0,
      engine: null,
      newest: 0,
      signedBy: null,
      document: null,
      shown: false,
      tried: false,
    })
    const sessionId = identity.sessions?.find((session) => session.instanceId === instanceId)?.sessionId ?? null
    const session = sessionId === null ? NO_CLOUD_SESSION : keptCloudSession(sessionId)
    memory.sessions.set(instanceId, { session, needsCheck: sessionId !== null, tried: false })
  }
}

/** First in the journal, then in memory. */
export async function saveIdentity({ journal, memory }: IdentityPlace, identity: Identity): Promise<void> {
  await journal.saveIdentity(identity)
  memory.identity = identity
}

/** Call when the new epoch is in the journal. @param lastEntry of the previous epoch */
export function takeEpoch(memory: LinkMemory, epoch: number, lastEntry: number): void {
  const undeliveredRanges = memory.undeliveredRanges + lastEntry - memory.lastAcknowledgedEntry
  Object.assign(memory, epochStart(), { epoch, highestEpoch: epoch, undeliveredRanges })
}

export function backlogOf({ undeliveredRanges, lastAcknowledgedEntry }: LinkMemory, lastEntry: number): number {
  return undeliveredRanges + Math.max(0, lastEntry - lastAcknowledgedEntry)
}

/** Throws if the device is not enrolled: such a step must not be planned. */
export function identityOf(memory: LinkMemory): Identity {
  if (memory.identity === null) throw new Error('invariant: only an enrolled device takes this step')
  return memory.identity
}
