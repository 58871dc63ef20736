/**
 * Two writers continue one chain: somebody copied the device, or restored it from a backup. Neither is locked out: the
 * incarnation is fenced, both segments are kept as evidence, and what the other writer has charged is billed as a branch
 * of its own. Its refunds are not: what they give back may have been given back already.
 */
import { entryProblem } from '../../../core/receive.ts'
import { fenced } from './attach.ts'
import { type AccountMove, believable, movePools } from './move.ts'
import type { OpenedEntry } from './open-segment.ts'
import { type DeviceAccountRecord, type Incarnation, type MergedSegment, newDeviceAccount } from './records.ts'
import { holdRules, openPools } from './rules-in-force.ts'
import { type Taken, type Taking, ownerOf, signAnswer } from './taking.ts'
import { writeUsage } from './write-usage.ts'

/** @param recorded the merged segment with the same seq, if there is one */
export async function keepFork(taking: Taking, recorded: MergedSegment | undefined): Promise<Taken> {
  const { deps, tx, device, incarnation, segment, now } = taking
  const last = recorded ?? (await tx.edge.segments.get(device.id, incarnation.number, incarnation.lastSeq))
  await tx.edge.evidence.keep({
    ...ownerOf(incarnation),
    kind: 'FORK',
    seq: segment.header.seq,
    hash: segment.header.hash,
    recordedHash: last?.hash ?? null,
    recordedDocument: last?.document ?? null,
    problem: null,
    document: segment.document,
    receivedAt: now,
  })
  const after: Incarnation = { ...fenced(incarnation, 'FORKED', now), forked: true }
  await tx.edge.incarnations.save(after)
  await billBranch(taking)
  await tx.edge.devices.save({ ...device, lastSyncAt: now })
  const answer = await signAnswer(deps, {
    outcome: 'FENCED',
    ...ownerOf(after),
    seq: after.lastSeq,
    hash: after.lastHash,
    forked: true,
    closed: segment.final,
    receipt: null,
  })
  return { taken: true, answer }
}

/** Bills the charges in the segment that nobody has reported yet: the hash of an entry covers all that came before it. */
async function billBranch(taking: Taking): Promise<void> {
  const { deps, tx, device, incarnation, segment, now } = taking
  const { received } = segment
  if (received.entryHead !== (received.entryHashes.at(-1) ?? received.entriesPreviousHash)) return
  const fresh = await unreported(taking)
  if (fresh.length === 0) return

  const spent = new Map<string, bigint>()
  for (const { body } of fresh) {
    for (const { account, amount } of body.postings) spent.set(account, (spent.get(account) ?? 0n) + amount)
  }
  const known = await tx.edge.deviceAccounts.get(device.id, incarnation.number, [...spent.keys()])
  const moves = [...spent].map(([account, amount]): AccountMove => {
    const before: DeviceAccountRecord = known.get(account) ?? newDeviceAccount(device.id, incarnation.number, account)
    return { before, after: { ...before, branchUsed: before.branchUsed + amount } }
  })
  const rules = await holdRules(tx, deps.policies, device.instanceIds, now)
  const before = await openPools(tx, rules, spent.keys())
  const moved = movePools(before, moves)
  // Made-up numbers must not use up what other devices need: the evidence stays, the bill does not follow it.
  if (moved === undefined || ![...moved.values()].every(believable)) return
  await tx.accounts.save([...moved.values()])
  await tx.edge.deviceAccounts.save(moves.map(({ after }) => after))
  await tx.edge.entries.append(
    fresh.map(({ n, hash, text }) => {
      return { ...ownerOf(incarnation), n, hash, seq: segment.header.seq, branch: true, body: text }
    }),
  )
  await writeUsage(taking, fresh, before)
}

async function unreported({ tx, device, incarnation, segment }: Taking): Promise<readonly OpenedEntry[]> {
  const instances = new Set(device.instanceIds)
  const [first, last] = [segment.entries[0]?.n ?? 0, segment.entries.at(-1)?.n ?? 0]
  const known = await tx.edge.entries.hashes(device.id, incarnation.number, first, last)
  return segment.entries.filter(({ n, hash, body }) => {
    return (
      (body.kind === 'access' || body.kind === 'burn') &&
      body.n === n &&
      !known.has(hash) &&
      entryProblem(body, instances) === undefined
    )
  })
}
