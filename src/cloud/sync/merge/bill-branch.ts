/**
 * Bills entries outside the merged chain. Each is billed once, by its chained hash. Refunds are not credited: they may
 * have been credited already.
 */
import { type AccountId, isLineAccount } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import { entryProblem } from '../../../core/sync/receive.ts'
import { CHAIN_START } from '../../../protocol/signing.ts'
import type { Pool } from '../../storage/records.ts'
import { BranchOverspend } from './branch-overspend.ts'
import { type AccountMove, movePools } from '../../accounts/move-pools.ts'
import type { OpenedEntry } from '../open-segment.ts'
import { type IsPlausible, plausibleBy } from './plausible.ts'
import { type DeviceAccountRecord, type Epoch, newDeviceAccount, settled } from '../../storage/device-records.ts'
import { type OverspendCapOf, lockListedPools, openListedPools, overspendCapOf } from '../../policy/rules-in-force.ts'
import type { MergeUnderRules } from '../merge-context.ts'
import type { BranchUnbilled } from './unbilled.ts'
import { saveMoves } from '../save-moves.ts'
import { writeUsage } from './write-usage.ts'

export async function billBranch(
  context: Pick<MergeUnderRules, 'tx' | 'device' | 'segment' | 'now' | 'rules' | 'opened'>,
  epoch: Epoch,
  entries: readonly OpenedEntry[],
): Promise<BranchUnbilled> {
  const { tx, device, segment, now, rules } = context
  const moving = entries.filter(({ body }) => body.kind !== 'session')
  const instances = new Set(device.instanceIds)
  const isSound = ({ n, body }: OpenedEntry): boolean => body.n === n && entryProblem(body, instances) === undefined
  const sound = moving.filter(isSound)
  const unsound = moving.length - sound.length
  const [first, last] = [sound[0]?.n ?? 0, sound.at(-1)?.n ?? 0]
  const known = await tx.edge.entries.hashes(device.id, epoch.number, first, last)
  const unknown = sound.filter(({ hash }) => !known.has(hash))
  const fresh = unknown.filter(({ body }) => body.kind !== 'refund')
  const refunds = unknown.length - fresh.length
  if (fresh.length === 0) return { ...NOTHING_UNBILLED, unsound, refunds }

  const branch: Branch = {
    epoch,
    caps: overspendCapOf(rules),
    records: await tx.edge.deviceAccounts.ofEpoch(device.id, epoch.number),
    isPlausible: await plausibleBy(tx, chargedAccounts(fresh), epoch),
  }
  const judge = (entries: readonly OpenedEntry[], pools: ReadonlyMap<AccountId, Pool>) => {
    const tally = new BranchTally(branch, pools)
    return { billed: entries.filter(({ body }) => tally.take(body)), tally }
  }
  // Unbilled entries must create no accounts: pools are opened for the rest only, and checked again.
  const listed = await lockListedPools(tx, rules, chargedAccounts(fresh), epoch)
  const ofRules = fresh.filter(({ body }) => body.postings.every(({ account }) => listed.has(account)))
  const likely = judge(ofRules, listed)
  const { pools: before, added } = await openListedPools(tx, rules, chargedAccounts(likely.billed), epoch)
  context.opened.pools += added.length
  const { billed, tally } = judge(likely.billed, before)
  const moved = movePools(before, tally.moves())
  if (moved === undefined) throw new Error('invariant: what is plausible fits a counter')
  const written = { branch: true, previousHash: CHAIN_START, entries: billed, billedBefore: [] }
  await writeUsage({ tx, epoch, segment, now, rules }, written, before)
  await saveMoves({ tx, epoch, now }, moved)
  return {
    unsound,
    refunds,
    unknown: fresh.length - ofRules.length,
    implausible: ofRules.length - billed.length,
    accounts: new Set([...likely.tally.doubted, ...tally.doubted]),
  }
}

const NOTHING_UNBILLED: BranchUnbilled = { unsound: 0, refunds: 0, unknown: 0, implausible: 0, accounts: new Set() }

function chargedAccounts(entries: readonly OpenedEntry[]): ReadonlySet<AccountId> {
  return new Set(entries.flatMap(({ body }) => body.postings.map(({ account }) => account)))
}

interface Branch {
  readonly epoch: Epoch
  readonly records: ReadonlyMap<AccountId, DeviceAccountRecord>
  readonly caps: OverspendCapOf
  readonly isPlausible: IsPlausible
}

class BranchTally {
  readonly doubted = new Set<AccountId>()
  readonly #branch: Branch
  readonly #pools: ReadonlyMap<AccountId, Pool>
  readonly #overspend: BranchOverspend
  readonly #spent = new Map<AccountId, Spent>()

  constructor(branch: Branch, pools: ReadonlyMap<AccountId, Pool>) {
    this.#branch = branch
    this.#pools = pools
    this.#overspend = new BranchOverspend(branch.records.values(), branch.caps)
  }

  /** False, without effect, if an account cannot have granted it. */
  take({ kind, postings }: OpenedEntry['body']): boolean {
    const spent = new Map<AccountId, Spent>()
    const counted = this.#overspend.of(postings)
    for (const [index, { account, amount }] of postings.entries()) {
      const before = spent.get(account) ?? this.#spent.get(account) ?? { amount: 0n, overspend: 0n }
      spent.set(account, { amount: before.amount + amount, overspend: before.overspend + (counted[index] ?? 0n) })
    }
    // Requests charge allocations and limits at most what they charge their line item; only burned tokens can be more.
    const isBounded = (account: AccountId): boolean => kind === 'burn' || isLineAccount(account)
    const doubted = postings.find(({ account }) => !this.#isPlausible(account, spent.get(account), isBounded(account)))
    if (doubted !== undefined) {
      this.doubted.add(doubted.account)
      return false
    }
    for (const [account, each] of spent) this.#spent.set(account, each)
    this.#overspend.take(postings)
    return true
  }

  moves(): readonly AccountMove[] {
    return [...this.#spent].map(([account, spent]) => this.#moveOf(account, spent))
  }

  #isPlausible(account: AccountId, spent: Spent | undefined, isBounded: boolean): boolean {
    const pool = this.#pools.get(account)
    if (pool === undefined || spent === undefined) throw new Error('invariant: the pool of a branch was opened')
    const move = this.#moveOf(account, spent)
    const after = movePools(new Map([[account, pool]]), [move])?.after.get(account)
    return after !== undefined && (!isBounded || this.#branch.isPlausible(move, after))
  }

  #moveOf(account: AccountId, { amount, overspend }: Spent): AccountMove {
    const { deviceId, number, settlement } = this.#branch.epoch
    const before = this.#branch.records.get(account) ?? newDeviceAccount(deviceId, number, account)
    const branchUsed = before.branchUsed + amount
    const branchOverspend = before.branchOverspend + overspend
    return { before, after: settled({ ...before, branchUsed, branchOverspend }, settlement) }
  }
}

interface Spent {
  readonly amount: Micro
  readonly overspend: Micro
}
