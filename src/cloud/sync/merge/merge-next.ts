/** Merges and bills an epoch's next segment. An inconsistent one changes no balance and ends the epoch's grants. */
import type { AccountId } from '../../../core/accounts/account.ts'
import { NO_TOP_UPS, type TopUps } from '../../../core/accounts/grant.ts'
import { SESSION_REST_MS } from '../../../core/sessions/session.ts'
import {
  type AccountChange,
  type Merge,
  type NotMerged,
  lastOf,
  mergeSegment,
  withoutKnown,
} from '../../../core/sync/receive.ts'
import type { Grant, SyncAnswerWire } from '../../../protocol/edge/sync.ts'
import { SEGMENT_SESSIONS_MAX, type SessionCommand } from '../../../protocol/edge/sessions.ts'
import { takeSessions } from '../../sessions/device-sessions.ts'
import { type GrantInputs, accountsIn, giveGrant, grantableIn, mustRelease } from '../grants/give-grant.ts'
import { type Grantable, grantableAt } from '../grants/grants.ts'
import { LIMITED_AGAIN_MAX } from '../../devices/limits.ts'
import type { MovedPools } from '../../accounts/move-pools.ts'
import type { OpenedSegment } from '../open-segment.ts'
import {
  type Device,
  type DeviceAccountRecord,
  type Epoch,
  type Recall,
  newDeviceAccount,
} from '../../storage/device-records.ts'
import { type ImpossibleMove, billEntries } from './bill-entries.ts'
import { reject, rejectOverspent } from './reject.ts'
import { saveAccounts } from '../save-moves.ts'
import { type RulesInForce, overspendCapOf } from '../../policy/rules-in-force.ts'
import { recallsFrom } from '../grants/rebalance.ts'
import { mergeUndelivered } from './merge-undelivered.ts'
import {
  type MergeContext,
  type MergeResult,
  type MergeUnderRules,
  type Unbilled,
  isServed,
  ownerOf,
  signAnswer,
} from '../merge-context.ts'
import { reportedOf } from './unbilled.ts'

/** @param mayGrant the epoch is current: it can earn grants and return tokens */
export async function mergeNext(context: MergeContext, mayGrant: boolean): Promise<MergeResult> {
  const { deps, tx, device, epoch, now } = context
  const inputs = await lockAndRead(context, mayGrant)
  const underRules: MergeUnderRules = { ...context, rules: inputs.rules }

  const unbilled = await mergeUndelivered(underRules, inputs.served)
  const merge = mergeInto(underRules, inputs.known, mayGrant)
  if (!merge.merged) return rejectInconsistent(underRules, merge)
  const billed = await bill(underRules, inputs, merge.changes)
  if ('problem' in billed) return reject(context, billed.problem, billed.details)

  // With a grant, all is saved together. A device that has to return tokens is judged by what is stored.
  const savesWithGrant = inputs.continues && !device.releaseRequested
  if (!savesWithGrant) await saveAccounts(tx, billed.moved)
  await takeReportedSessions(context)
  const renewal = inputs.continues ? await renew(underRules, inputs, billed, savesWithGrant) : null

  const next = epochAfter(underRules, merge)
  const answer = context.proof?.document ?? (await signAnswer(deps, answerTo(underRules, next, unbilled, renewal)))
  await tx.edge.epochs.save({ ...next, term: renewal?.grant.term ?? epoch.term }, epoch)
  await saveReceived(context, answer, mayGrant && renewal?.releasing !== true)
  await deps.heartbeat(tx, device, now, context.sessions)
  return { accepted: true, answer, unbilled }
}

interface MergeInputs {
  readonly rules: RulesInForce
  /** The response has a grant. */
  readonly continues: boolean
  readonly topUps: TopUps
  readonly grantable: Grantable
  /** Accounts of the top-ups that can be granted. */
  readonly requested: readonly AccountId[]
  /** Accounts that were unlimited and have a limit again. */
  readonly limited: readonly DeviceAccountRecord[]
  /** Of all accounts that the segment names, and of the limited ones; of the whole epoch if the segment ends it. */
  readonly known: ReadonlyMap<AccountId, DeviceAccountRecord>
  /** Those accounts that belong to an instance of the device. */
  readonly served: readonly AccountId[]
}

async function lockAndRead(context: MergeContext, mayGrant: boolean): Promise<MergeInputs> {
  const { device, segment, now } = context
  // A segment answered before a restore had its grant: repeat that response.
  const continues = mayGrant && !segment.final && context.proof === null
  const topUps = continues && device.suspension === null ? segment.topUps : NO_TOP_UPS
  const { rules, records: listed, limited } = await lockRulesAndRead(context, topUps, continues)
  const grantable = grantableAt(rules, now)
  const requested = grantableIn(topUps, grantable)
  const ofSegment = [...segment.received.counters.map(({ account }) => account), ...requested]
  const records = segment.final ? listed : pick(listed, ofSegment)
  const named = [...ofSegment, ...limited.map(({ account }) => account)]
  return {
    rules,
    continues,
    topUps,
    grantable,
    requested,
    limited,
    known: new Map([...records, ...limited.map((record) => [record.account, record] as const)]),
    served: named.filter((account) => isServed(account, device)),
  }
}

function rejectInconsistent(context: MergeUnderRules, { problem, account, n }: NotMerged): Promise<MergeResult> {
  const isOverspent = problem === 'MORE_SPENT_THAN_GRANTED' && account !== undefined
  return isOverspent ? rejectOverspent(context, context.rules, account) : reject(context, problem, { account, n })
}

interface Billed {
  readonly moved: MovedPools
  /** Accounts that the grant must report even if they are not requested. */
  readonly toReport: readonly AccountId[]
}

/** The accounts and pools are saved later. */
async function bill(
  context: MergeUnderRules,
  { known, limited, requested }: MergeInputs,
  changes: readonly AccountChange[],
): Promise<Billed | ImpossibleMove> {
  const { epoch, segment } = context
  const entries = segment.entries.filter(({ n }) => n > epoch.lastEntry)
  const newlyLimited = limited.filter(({ unlimited }) => unlimited).map(({ account }) => account)
  const part = { records: known, changes, entries }
  const moved = await billEntries(context, epoch, part, [...requested, ...newlyLimited])
  if ('problem' in moved) return moved
  // Overspend that now counts as granted.
  const raised = moved.moves.filter(({ before, after }) => after.granted > before.granted)
  return { moved, toReport: [...raised.map(({ after }) => after.account), ...newlyLimited] }
}

/** Only the current epoch reports the state of sessions. */
async function takeReportedSessions({ deps, tx, device, epoch, segment, now }: MergeContext): Promise<void> {
  if (epoch.number !== device.epoch) return
  // A new epoch reports all sessions: the others were lost, with unknown outcome. A later report restores them.
  if (segment.header.seq === 1) await tx.sessions.disconnectKept(device.id, now)
  await takeSessions(tx, device, segment.sessions, deps.trustsClock() ? now - SESSION_REST_MS : null)
}

function epochAfter(context: MergeUnderRules, { lastEntry, entryHead }: Extract<Merge, { merged: true }>): Epoch {
  const { epoch, segment, present } = context
  return {
    ...epoch,
    // Its tokens stay out for the other writer of a fork: they are settled once that one has been silent for too long.
    status: isEnd(context) && !epoch.forked ? 'CLOSED' : epoch.status,
    lastSeq: segment.header.seq,
    lastHash: segment.header.hash,
    lastEntry,
    entryHead,
    recovery: newestRecoveryOf(context),
    quietSince: present,
  }
}

interface Records {
  readonly records: ReadonlyMap<AccountId, DeviceAccountRecord>
  readonly limited: readonly DeviceAccountRecord[]
}

/** Also reads records of accounts that cannot be granted, as the rules are not known before. */
async function lockRulesAndRead(
  context: MergeContext,
  topUps: TopUps,
  continues: boolean,
): Promise<Records & { readonly rules: RulesInForce }> {
  const { deps, tx, device, segment, now } = context
  const accounts = [...segment.received.counters.map(({ account }) => account), ...accountsIn(topUps)]
  // Accounts of undelivered entries are locked in one sequence with these.
  const likely = segment.undeliveredRange === null ? accounts.filter((account) => isServed(account, device)) : []
  const reading: Promise<Records>[] = []
  const beginReads = (): void => {
    const read = recordsOf(context, accounts, continues)
    // Reported below.
    read.catch(() => undefined)
    reading.push(read)
  }
  let rules: RulesInForce
  try {
    rules = await deps.policies.lockSomeShared(tx, device.instanceIds, now, { likely, beginReads })
  } finally {
    await Promise.allSettled(reading)
  }
  const [read] = reading
  if (read === undefined) throw new Error('invariant: the records are read when the rules are locked')
  return { rules, ...(await read) }
}

/** Of these accounts, or of the whole epoch if it ends; if it continues, also those that are limited again. */
async function recordsOf(
  { tx, device, epoch, segment }: MergeContext,
  accounts: readonly AccountId[],
  continues: boolean,
): Promise<Records> {
  const { deviceAccounts } = tx.edge
  if (continues) return deviceAccounts.getWithLimited(device.id, epoch.number, accounts, LIMITED_AGAIN_MAX)
  const records = segment.final
    ? await deviceAccounts.ofEpoch(device.id, epoch.number)
    : await deviceAccounts.get(device.id, epoch.number, accounts)
  return { records, limited: [] }
}

function pick<T>(all: ReadonlyMap<AccountId, T>, accounts: Iterable<AccountId>): ReadonlyMap<AccountId, T> {
  const wanted = new Set(accounts)
  return new Map([...all].filter(([account]) => wanted.has(account)))
}

function isEnd({ segment, epoch }: MergeContext): boolean {
  return segment.final && lastOf(segment.received) >= epoch.lastEntry
}

const NOTHING_UNSAVED: GrantInputs['unsaved'] = { moves: [], after: new Map() }

interface Renewal {
  readonly grant: Grant
  readonly releasing: boolean
  readonly commands: SessionCommand[]
  readonly recalls: readonly Recall[]
}

/** @param savesWithGrant the changes of the accounts are not saved yet */
async function renew(
  context: MergeUnderRules,
  { grantable, topUps, known }: MergeInputs,
  { moved, toReport }: Billed,
  savesWithGrant: boolean,
): Promise<Renewal> {
  const { tx, device, epoch, segment, rules } = context
  const { moves } = moved
  const hasSessions = context.hasSessions || segment.sessions.length > 0
  const commands = hasSessions ? await tx.sessions.commands(device.id, SEGMENT_SESSIONS_MAX) : []
  const releasing = await mustRelease(context)
  const changed = new Map(moves.map(({ after }) => [after.account, after]))
  const grant = await giveGrant(context, {
    rules,
    grantable,
    topUps,
    named: toReport,
    unsaved: savesWithGrant ? moved : NOTHING_UNSAVED,
    pools: new Map([...moved.before, ...moved.after]),
    recordOf: (account) =>
      changed.get(account) ?? known.get(account) ?? newDeviceAccount(device.id, epoch.number, account),
    inUse: new Set(moves.filter(({ before, after }) => after.used > before.used).map(({ after }) => after.account)),
    releasing,
  })
  return { grant, releasing, commands, recalls: await recallsFrom(context, moves) }
}

async function saveReceived(context: MergeContext, answer: string, isReleased: boolean): Promise<void> {
  const { tx, device, epoch, segment, now } = context
  await tx.edge.segments.append({
    ...ownerOf(epoch),
    seq: segment.header.seq,
    hash: segment.header.hash,
    signed: { document: segment.document, answer },
  })
  const reported: Device = {
    ...device,
    lastSyncAt: now,
    clock: { ...segment.clock, takenAt: now },
    ...(epoch.number === device.epoch
      ? { backlog: segment.backlog, appliedPolicies: servedOnly(segment.policies, device.instanceIds) }
      : {}),
    releaseRequested: device.releaseRequested && !isReleased,
  }
  await tx.edge.devices.save(reported, device)
}

/** A segment resent after a restore is not new contact: the device may show more, so the recovery waits for it. */
function newestRecoveryOf({ proof, epoch, rules }: MergeUnderRules): number {
  if (proof?.answer.outcome === 'MERGED') return epoch.recovery
  return Math.max(epoch.recovery, ...[...rules.values()].map(({ recovery }) => recovery))
}

/** A superseded segment may arrive after a later epoch has delivered its entries and more: then it adds nothing. */
function mergeInto(
  { rules, device, epoch, segment, fit }: MergeUnderRules,
  known: ReadonlyMap<AccountId, DeviceAccountRecord>,
  mayGrant: boolean,
): Merge {
  const { received } = segment
  const { status, lastEntry, entryHead } = epoch
  if (status === 'CLOSED' || lastOf(received) < lastEntry) return { merged: true, changes: [], lastEntry, entryHead }
  const fresh = fit.kind === 'CONTINUES' ? withoutKnown(received, fit.known) : received
  return mergeSegment(epoch, known, fresh, {
    instances: new Set(device.instanceIds),
    returns: mayGrant,
    closes: segment.final && !epoch.forked,
    grantTaken: segment.grantTerm > 0 && segment.grantTerm >= epoch.term,
    grantsForgotten: epoch.grantsForgotten,
    overspendCapOf: overspendCapOf(rules),
  })
}

function answerTo(
  context: MergeUnderRules,
  next: Epoch,
  unbilled: Unbilled | null,
  renewal: Renewal | null,
): SyncAnswerWire {
  const { deps, device, epoch, segment, now, rules } = context
  const merged = { ...ownerOf(epoch), seq: next.lastSeq, hash: next.lastHash }
  const receipt = {
    epoch: epoch.number,
    seq: next.lastSeq,
    hash: next.lastHash,
    entries: {
      from: segment.received.firstEntry,
      to: lastOf(segment.received),
      head: segment.received.entryHead,
    },
    retainUntil: now + deps.terms.receiptMarginMs,
  }
  if (renewal === null) {
    const { forked, status } = next
    const closed = isEnd(context) || status === 'CLOSED'
    return { outcome: 'FENCED', ...merged, forked, closed, receipt, ...reportedOf(unbilled) }
  }
  const { grant, releasing, commands, recalls } = renewal
  return {
    outcome: 'MERGED',
    ...merged,
    receipt,
    grant: {
      ...grant,
      accounts: grant.accounts.map(({ granted, available, returnable, overdraft, ...account }) => ({
        ...account,
        granted: String(granted),
        available: String(available),
        ...(returnable === undefined ? {} : { returnable: String(returnable) }),
        ...(overdraft === undefined ? {} : { overdraft: String(overdraft) }),
      })),
    },
    policies: [...rules].map(([instanceId, { revision }]) => ({ instanceId, revision })),
    directives: [
      ...(releasing ? (['release'] as const) : []),
      // The device attached to a cloud that has forgotten it since, or that is being restored.
      ...(segment.header.seq === 1 && epoch.grantsForgotten ? (['resend'] as const) : []),
    ],
    releases: recalls.map(({ account, keep }) => ({ account, keep: String(keep) })),
    sessions: commands,
    ...(device.replaceKey === device.thumbprint ? { replaceKey: device.replaceKey } : {}),
    nextSyncMs: deps.terms.syncEveryMs,
    time: now,
    ...reportedOf(unbilled),
  }
}

function servedOnly(policies: OpenedSegment['policies'], instanceIds: readonly string[]): OpenedSegment['policies'] {
  return policies.filter(({ instanceId }) => instanceIds.includes(instanceId))
}
