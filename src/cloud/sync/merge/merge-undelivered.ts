/**
 * Merges undelivered entries of an earlier epoch. With one writer they continue its chain, and the last one closes it;
 * others are billed as a branch. Unbillable ones are kept as evidence.
 */
import type { AccountId } from '../../../core/accounts/account.ts'
import { sumPostings } from '../../../core/accounts/grant.ts'
import {
  type ChainFit,
  type MergeTerms,
  type ReceivedSegment,
  entryProblem,
  lastOf,
  mergeSegment,
  mergeReported,
  withoutKnown,
} from '../../../core/sync/receive.ts'
import { forkEvent } from '../../events/device-event.ts'
import { recreateForgotten } from '../../devices/epochs.ts'
import { billBranch } from './bill-branch.ts'
import { billEntries, moveListedPools, movesOf } from './bill-entries.ts'
import { fitOf } from './fit-of.ts'
import { keepEvidence } from './keep-evidence.ts'
import type { OpenedEntry, OpenedUndelivered } from '../open-segment.ts'
import type { DeviceAccountRecord, Epoch } from '../../storage/device-records.ts'
import { overspendCapOf } from '../../policy/rules-in-force.ts'
import { type MergeUnderRules, type Unbilled, isServed } from '../merge-context.ts'
import { unbilledOf, withEntries } from './unbilled.ts'
import { saveAccounts, saveMoves, writeCounted } from '../save-moves.ts'

type Context = Pick<MergeUnderRules, 'tx' | 'device' | 'epoch' | 'segment' | 'now' | 'present' | 'rules' | 'opened'>

/** @param also accounts to lock in one sequence with the others. @throws CodedError GRANTS_FORGOTTEN */
export async function mergeUndelivered(context: Context, also: readonly AccountId[] = []): Promise<Unbilled | null> {
  const { tx, device, epoch, segment } = context
  const { undeliveredRange } = segment
  if (undeliveredRange === null) return null
  const { count, entries } = undeliveredRange
  if (undeliveredRange.epoch >= epoch.number) {
    return keepUnmerged(context, epoch, count, unbilledOf({ misplaced: count }))
  }
  const stored = await earlierEpoch(context, undeliveredRange.epoch)
  if (!undeliveredRange.isChained) return keepUnmerged(context, stored, count, unbilledOf({ broken: count }))
  const sound = soundStart(undeliveredRange, new Set(device.instanceIds))
  await tx.accounts.lock([...new Set([...accountsMoved(undeliveredRange, sound, device), ...also])])
  const withLost = await billLost(context, stored, undeliveredRange)
  // Also without entries: the impossible counters are the evidence.
  if (withLost === null) return keepUnmerged(context, stored, 1, { entries: count, problem: LOST_DO_NOT_ADD_UP })
  const range = rangeOf(undeliveredRange, sound)
  const fit = await fitOf(tx, withLost, range)
  if (fit.kind === 'LOST') return keepUnmerged(context, withLost, count, unbilledOf({ lost: count }))
  const earlier = sound.length > 0 ? await noteFork(context, withLost, fit) : withLost
  const isMerged =
    !earlier.forked &&
    fit.kind === 'CONTINUES' &&
    (await continueChain(context, earlier, sound, withoutKnown(range, fit.known)))
  const others = isMerged ? entries.slice(sound.length) : entries
  const unreadable = count - entries.length
  if (others.length + unreadable === 0) return null
  const branch = await billBranch(context, earlier, others)
  return withEntries(
    await keepUnmerged(context, earlier, others.length + unreadable, unbilledOf({ unreadable, branch })),
  )
}

const LOST_DO_NOT_ADD_UP = 'What the device says of entries that the cloud has lost does not add up.'

function accountsMoved(
  { counted }: OpenedUndelivered,
  sound: readonly OpenedEntry[],
  device: Context['device'],
): readonly AccountId[] {
  const reported = (counted?.counters ?? [])
    .map(({ account }) => account)
    .filter((account) => isServed(account, device))
  return [...reported, ...sound.flatMap(({ body }) => body.postings.map(({ account }) => account))]
}

/** A restored cloud may not know the epoch. */
async function earlierEpoch(context: Context, number: number): Promise<Epoch> {
  const { tx, device } = context
  return (await tx.edge.epochs.get(device.id, number)) ?? recreateForgotten(tx, device, number, context)
}

/** The entries before the first unreadable or inconsistent one: later entries build on its unknown effect. */
function soundStart({ first, entries }: OpenedUndelivered, instances: ReadonlySet<string>): readonly OpenedEntry[] {
  const end = entries.findIndex(
    ({ n, body }, index) => n !== first + index || body.n !== n || entryProblem(body, instances) !== undefined,
  )
  return end === -1 ? entries : entries.slice(0, end)
}

/** Bills entries that both sides have lost by counters; null: impossible ones. @throws CodedError GRANTS_FORGOTTEN */
async function billLost(
  context: Context,
  earlier: Epoch,
  { first, previousHash, counted }: OpenedUndelivered,
): Promise<Epoch | null> {
  const { tx, device, now } = context
  const isLost =
    earlier.grantsForgotten && !earlier.forked && earlier.status !== 'CLOSED' && first > earlier.lastEntry + 1
  if (counted === null || !isLost) return earlier
  const accounts = counted.counters.map(({ account }) => account)
  const records = await tx.edge.deviceAccounts.get(device.id, earlier.number, accounts)
  const counters = counted.counters.map((counter) => ({
    ...counter,
    returned: records.get(counter.account)?.returned ?? 0n,
  }))
  const changes = mergeReported(records, counters, termsOf(context, earlier, false))
  if ('problem' in changes) return null
  const moves = movesOf(earlier, records, changes)
  const moved = await moveListedPools(context, earlier, moves)
  if ('problem' in moved) return null
  await writeCounted({ tx, epoch: earlier, now }, moved)
  await saveMoves({ tx, epoch: earlier, now }, moved)
  const end = counted.isLast ? { lastEntry: first - 1, entryHead: previousHash } : {}
  const billed: Epoch = { ...earlier, ...end, carriedOn: true, quietSince: context.present }
  await tx.edge.epochs.save(billed)
  return billed
}

function termsOf({ device, rules }: Context, earlier: Epoch, closes: boolean): MergeTerms {
  return {
    instances: new Set(device.instanceIds),
    returns: false,
    closes,
    grantTaken: false,
    grantsForgotten: earlier.grantsForgotten,
    overspendCapOf: overspendCapOf(rules),
  }
}

function rangeOf({ first, previousHash }: OpenedUndelivered, sound: readonly OpenedEntry[]): ReceivedSegment {
  return {
    counters: [],
    firstEntry: first,
    entriesPreviousHash: previousHash,
    entryHead: sound.at(-1)?.hash ?? previousHash,
    entries: sound.map(({ body }) => body),
    entryHashes: sound.map(({ hash }) => hash),
  }
}

/** Entries that contradict the chain, or follow a closed end, come from a second writer. */
async function noteFork({ tx, device, now }: Context, earlier: Epoch, fit: ChainFit): Promise<Epoch> {
  const isOld = fit.kind === 'CONTINUES' && fit.fresh === 0
  if (earlier.forked || (fit.kind !== 'CONTRADICTS' && (earlier.status !== 'CLOSED' || isOld))) return earlier
  const forked = { ...earlier, forked: true }
  await tx.edge.epochs.save(forked)
  await tx.events.append(forkEvent(device, earlier.number, now))
  return forked
}

/** False when the entries are inconsistent with the accounts. @param range the entries missing from the chain */
async function continueChain(
  context: Context,
  earlier: Epoch,
  sound: readonly OpenedEntry[],
  range: ReceivedSegment,
): Promise<boolean> {
  const { tx, device, segment } = context
  const isAll = segment.undeliveredRange?.final === true && sound.length === segment.undeliveredRange.count
  const closes = isAll && earlier.status !== 'CLOSED' && lastOf(range) >= earlier.lastEntry
  if (range.entries.length === 0 && !closes) return true
  const accounts = range.entries.flatMap(({ postings }) => postings.map(({ account }) => account))
  const records = closes
    ? await tx.edge.deviceAccounts.ofEpoch(device.id, earlier.number)
    : await tx.edge.deviceAccounts.get(device.id, earlier.number, accounts)
  const counted = { ...range, counters: countersAfter(range, records) }
  const merge = mergeSegment(earlier, records, counted, termsOf(context, earlier, closes))
  if (!merge.merged) return false
  const missing = sound.slice(sound.length - range.entries.length)
  const moved = await billEntries(context, earlier, { records, changes: merge.changes, entries: missing })
  if ('problem' in moved) return false
  await saveAccounts(tx, moved)
  const { lastEntry, entryHead } = merge
  const status = closes ? 'CLOSED' : earlier.status
  await tx.edge.epochs.save({
    ...earlier,
    status,
    lastEntry,
    entryHead,
    carriedOn: true,
    quietSince: context.present,
  })
  return true
}

function countersAfter(
  { entries }: ReceivedSegment,
  records: ReadonlyMap<AccountId, DeviceAccountRecord>,
): ReceivedSegment['counters'] {
  const used = sumPostings(entries.flatMap(({ kind, postings }) => (kind === 'refund' ? [] : postings)))
  const refunded = sumPostings(entries.flatMap(({ kind, postings }) => (kind === 'refund' ? postings : [])))
  return [...new Set([...used.keys(), ...refunded.keys()])].map((account) => {
    const record = records.get(account)
    return {
      account,
      used: (record?.used ?? 0n) + (used.get(account) ?? 0n),
      refunded: (record?.refunded ?? 0n) + (refunded.get(account) ?? 0n),
      returned: record?.returned ?? 0n,
    }
  })
}

/** Keeps the segment as evidence. @param count entries outside the merged chain; 0: there is nothing to keep */
async function keepUnmerged(
  context: Context,
  { number }: Epoch,
  count: number,
  unbilled: Unbilled | null,
): Promise<Unbilled | null> {
  if (count === 0) return null
  await keepEvidence(context, { epoch: number, kind: 'UNDELIVERED_RANGE', problem: unbilled?.problem ?? null })
  return unbilled
}
