import { type AccountId, isLineAccount, lineItemKey } from '../../../core/accounts/account.ts'
import { sumPostings } from '../../../core/accounts/grant.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import type { AccountChange } from '../../../core/sync/receive.ts'
import { CodedError } from '../../../protocol/errors.ts'
import type { Pool } from '../../storage/records.ts'
import { aboveGrantOf } from './branch-overspend.ts'
import { type AccountMove, type MovedPools, movePools } from '../../accounts/move-pools.ts'
import type { OpenedEntry } from '../open-segment.ts'
import { leavesSpace, plausibleBy } from './plausible.ts'
import {
  type DeviceAccountRecord,
  type Epoch,
  newDeviceAccount,
  reservedOn,
  settled,
} from '../../storage/device-records.ts'
import type { MergeContext, MergeUnderRules } from '../merge-context.ts'
import { openListedPools } from '../../policy/rules-in-force.ts'
import { writePresumed } from '../save-moves.ts'
import { writeUsage } from './write-usage.ts'

/** Entries that continue a chain, with the counters that they change. */
export interface ChainPart {
  readonly records: ReadonlyMap<AccountId, DeviceAccountRecord>
  readonly changes: readonly AccountChange[]
  readonly entries: readonly OpenedEntry[]
}

export interface ImpossibleMove {
  readonly problem: 'ACCOUNT_UNKNOWN' | 'AMOUNT_IMPLAUSIBLE'
  readonly details: Readonly<Record<string, unknown>>
}

/**
 * Moves the pools by the changed counters, and writes the usage. The caller saves the accounts and pools.
 * @param epoch as it was before @param also more accounts whose pools are opened @throws CodedError GRANTS_FORGOTTEN
 */
export async function billEntries(
  { tx, segment, now, rules, opened }: Pick<MergeUnderRules, 'tx' | 'segment' | 'now' | 'rules' | 'opened'>,
  epoch: Epoch,
  { records, changes, entries }: ChainPart,
  also: readonly AccountId[] = [],
): Promise<MovedPools | ImpossibleMove> {
  const ofBranch = await billedAsBranch(tx, epoch, entries)
  const moves = movesOf(epoch, records, changes, ofBranch)
  const moved = await moveListedPools({ tx, rules, opened }, epoch, moves, also)
  if ('problem' in moved) return moved
  // Entries billed as a branch join the chain: the counters include them, and their usage is written.
  const billedBefore = ofBranch.map(({ n }) => n)
  const chain = { branch: false, previousHash: epoch.entryHead, entries, billedBefore }
  await writeUsage({ tx, epoch, segment, now, rules }, chain, moved.before)
  await writePresumed({ tx, epoch, now }, moved)
  return moved
}

async function billedAsBranch(
  tx: MergeContext['tx'],
  epoch: Epoch,
  entries: readonly OpenedEntry[],
): Promise<readonly OpenedEntry[]> {
  const [first, last] = [entries[0]?.n, entries.at(-1)?.n]
  // Only a second writer or a later epoch can have delivered them; neither exists while it is active.
  if (epoch.status === 'ACTIVE' || first === undefined || last === undefined) return []
  const reported = await tx.edge.entries.hashes(epoch.deviceId, epoch.number, first, last)
  return entries.filter(({ hash }) => reported.has(hash))
}

/** @param ofBranch those of the entries that were billed as a branch before */
export function movesOf(
  epoch: Epoch,
  records: ReadonlyMap<AccountId, DeviceAccountRecord>,
  changes: readonly AccountChange[],
  ofBranch: readonly OpenedEntry[] = [],
): readonly AccountMove[] {
  const postings = ofBranch.flatMap(({ body }) => body.postings)
  const adopted = sumPostings(postings)
  const adoptedAbove = sumPostings(
    postings.map((posting) => ({ account: posting.account, amount: aboveGrantOf(posting) })),
  )
  return changes.map(({ account, after }): AccountMove => {
    const before = records.get(account) ?? newDeviceAccount(epoch.deviceId, epoch.number, account)
    const above = adoptedAbove.get(account) ?? 0n
    const branchOverspend = before.branchOverspend > above ? before.branchOverspend - above : 0n
    const branchUsed = before.branchUsed - (adopted.get(account) ?? 0n)
    const reported = { ...before, ...after, branchUsed, branchOverspend }
    return { before, after: settled(reported, epoch.settlement) }
  })
}

/** The caller saves the pools. @param also more accounts whose pools are opened. @throws CodedError GRANTS_FORGOTTEN */
export async function moveListedPools(
  { tx, rules, opened }: Pick<MergeUnderRules, 'tx' | 'rules' | 'opened'>,
  epoch: Epoch,
  moves: readonly AccountMove[],
  also: readonly AccountId[] = [],
): Promise<MovedPools | ImpossibleMove> {
  const accounts = [...moves.map(({ after }) => after.account), ...also]
  const { pools: before, added } = await openListedPools(tx, rules, accounts, epoch)
  opened.pools += added.length
  const unknown = unknownAccount(epoch, moves, before)
  if (unknown !== undefined) return { problem: 'ACCOUNT_UNKNOWN', details: { account: unknown } }
  const moved = movePools(before, moves)
  if (moved === undefined || !(await leavesSpace(tx, epoch, moved)))
    return { problem: 'AMOUNT_IMPLAUSIBLE', details: {} }
  await requirePlausible({ tx }, epoch, moved)
  return moved
}

/** An account that no rules have ever had. @throws CodedError GRANTS_FORGOTTEN: a restored cloud may have lost them */
function unknownAccount(
  { grantsForgotten }: Pick<Epoch, 'grantsForgotten'>,
  moves: readonly AccountMove[],
  pools: ReadonlyMap<AccountId, Pool>,
): AccountId | undefined {
  const found = moves.find(({ after }) => !pools.has(after.account))?.after
  if (found !== undefined && grantsForgotten) {
    throw new CodedError('GRANTS_FORGOTTEN', `No rules of ${found.account} are known.`, {
      details: { account: found.account, deviceId: found.deviceId },
    })
  }
  return found?.account
}

/** @throws CodedError GRANTS_FORGOTTEN: grants that a restored cloud lost must wait until the rules allow them */
async function requirePlausible(
  { tx }: Pick<MergeContext, 'tx'>,
  epoch: Epoch,
  { moves, after: pools }: MovedPools,
): Promise<void> {
  if (!epoch.grantsForgotten) return
  const isPlausible = await plausibleBy(tx, pools.keys(), epoch)
  const doubted = moves.filter((move) => {
    const pool = pools.get(move.after.account)
    return pool !== undefined && !isPlausible(move, pool)
  })
  if (doubted.length === 0) return
  const records = new Map(await tx.edge.deviceAccounts.ofEpoch(epoch.deviceId, epoch.number))
  for (const { after } of moves) records.set(after.account, after)
  const ofLineItems = reservedByLineItem(records.values())
  for (const { after } of doubted) {
    const { account, deviceId } = after
    if (!isLineAccount(account) && reservedOn(after) <= (ofLineItems.get(lineItemKey(account)) ?? 0n)) continue
    throw new CodedError('GRANTS_FORGOTTEN', `More of ${account} was used than the device can have received.`, {
      details: { account, deviceId },
    })
  }
}

function reservedByLineItem(records: Iterable<DeviceAccountRecord>): ReadonlyMap<string, Micro> {
  const reserved = new Map<string, Micro>()
  for (const record of records) {
    if (!isLineAccount(record.account)) continue
    const key = lineItemKey(record.account)
    reserved.set(key, (reserved.get(key) ?? 0n) + reservedOn(record))
  }
  return reserved
}
