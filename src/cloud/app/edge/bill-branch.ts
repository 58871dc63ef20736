/**
 * Entries that the merged chain of their incarnation does not hold: of a second writer, or of a chain that was refused. What
 * they charge is billed as a branch of that incarnation, each entry once by its chained hash, whoever delivers it and how
 * often. Refunds in them are not: what they give back may have been given back already.
 */
import { type AccountId, parseAccount } from '../../../core/account.ts'
import type { Micro } from '../../../core/amount.ts'
import { sumPostings } from '../../../core/grant.ts'
import { entryProblem } from '../../../core/receive.ts'
import type { Reader } from '../store.ts'
import { type AccountMove, beyondBelief, movePools } from './move.ts'
import { arrearsCaps } from './offline-policy.ts'
import type { OpenedEntry } from './open-segment.ts'
import { type DeviceAccountRecord, type Incarnation, newDeviceAccount, settled } from './records.ts'
import { holdRules, openPools } from './rules-in-force.ts'
import { type Taking, ownerOf } from './taking.ts'
import { writePresumptions } from './write-presumptions.ts'
import { writeUsage } from './write-usage.ts'

/** @returns false when the numbers are beyond belief, or an entry that charges does not add up: that much is not billed */
export async function billBranch(
  taking: Pick<Taking, 'deps' | 'tx' | 'device' | 'segment' | 'now'>,
  incarnation: Incarnation,
  entries: readonly OpenedEntry[],
): Promise<boolean> {
  const { deps, tx, device, segment, now } = taking
  const charging = entries.filter(({ body }) => body.kind !== 'refund' && body.kind !== 'session')
  const instances = new Set(device.instanceIds)
  const sound = charging.filter(({ n, body }) => body.n === n && entryProblem(body, instances) === undefined)
  const complete = sound.length === charging.length
  const [first, last] = [sound[0]?.n ?? 0, sound.at(-1)?.n ?? 0]
  const known = await tx.edge.entries.hashes(device.id, incarnation.number, first, last)
  const fresh = sound.filter(({ hash }) => !known.has(hash))
  if (fresh.length === 0) return complete

  const spent = new Map<string, bigint>()
  for (const { body } of fresh) {
    for (const { account, amount } of body.postings) spent.set(account, (spent.get(account) ?? 0n) + amount)
  }
  const records = await tx.edge.deviceAccounts.get(device.id, incarnation.number, [...spent.keys()])
  const arrears = await arrearsIn(tx, device.instanceIds, fresh)
  const moves = [...spent].map(([account, amount]): AccountMove => {
    const before: DeviceAccountRecord = records.get(account) ?? newDeviceAccount(device.id, incarnation.number, account)
    const branch = { branchUsed: before.branchUsed + amount, arrears: before.arrears + (arrears.get(account) ?? 0n) }
    return { before, after: settled({ ...before, ...branch }, incarnation.settlement) }
  })
  const rules = await holdRules(tx, deps.policies, device.instanceIds, now)
  const before = await openPools(tx, rules, spent.keys())
  const moved = movePools(before, moves)
  // Made-up numbers must not use up what other devices need: the evidence stays, the bill does not follow it.
  if (moved === undefined || (await beyondBelief(tx, rules, moved, moves)).size > 0) return false
  await tx.accounts.save([...moved.values()])
  await tx.edge.deviceAccounts.save(moves.map(({ after }) => after))
  await tx.edge.entries.append(
    fresh.map(({ n, hash, text }) => {
      return { ...ownerOf(incarnation), n, hash, seq: segment.header.seq, branch: true, body: text }
    }),
  )
  await writeUsage({ tx, incarnation, now }, fresh, before)
  await writePresumptions({ tx, incarnation, now }, moves, moved)
  return complete
}

/** What the entries say was spent above the grants, as far as the offline policy allows it: once for what comes together. */
async function arrearsIn(
  reader: Reader,
  instanceIds: readonly string[],
  entries: readonly OpenedEntry[],
): Promise<ReadonlyMap<AccountId, Micro>> {
  const above = sumPostings(
    entries.flatMap(({ body }) =>
      body.postings.map(({ account, aboveGrant = 0n }) => ({ account, amount: aboveGrant })),
    ),
  )
  const caps = await arrearsCaps(reader, instanceIds)
  for (const [account, amount] of above) {
    const parsed = parseAccount(account)
    const cap = (parsed && caps.get(`${parsed.instanceId}/${parsed.lineItemId}`)) ?? 0n
    if (amount > cap) above.set(account, cap)
  }
  return above
}
