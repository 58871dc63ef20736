/**
 * The next segment of an incarnation: its counters and entries become part of the bill, and a current incarnation gets its
 * grant. A segment that does not add up changes no balance: it is kept as evidence, and its incarnation earns nothing more.
 */
import type { AccountId } from '../../../core/account.ts'
import { sumPostings } from '../../../core/grant.ts'
import { mergeSegment } from '../../../core/receive.ts'
import type { Grant, SyncAnswerWire } from '../../../protocol/edge/sync.ts'
import type { SessionOrder } from '../../../protocol/edge/sessions.ts'
import { CodedError } from '../../../protocol/errors.ts'
import type { Pool } from '../records.ts'
import type { Reader } from '../store.ts'
import { disconnectUntold, ordersFor, takeSessions } from './device-sessions.ts'
import { giveGrant, mustRelease, usefulWants } from './give-grant.ts'
import { grantableAt } from './grants.ts'
import { arrearsCaps } from './offline-policy.ts'
import { type AccountMove, beyondBelief, movePools } from './move.ts'
import type { OpenedEntry, OpenedSegment } from './open-segment.ts'
import { type DeviceAccountRecord, type Incarnation, type ReleaseAsk, newDeviceAccount, settled } from './records.ts'
import { reject } from './reject.ts'
import { type RulesInForce, holdRules, openPools } from './rules-in-force.ts'
import { takeAsks, withoutComfort } from './share-scarce.ts'
import { takeRemnant } from './take-remnant.ts'
import { type Taken, type Taking, ownerOf, signAnswer } from './taking.ts'
import { writePresumptions } from './write-presumptions.ts'
import { writeUsage } from './write-usage.ts'

/** @param grants the incarnation is the current one: it can earn grants and return tokens */
export async function mergeNext(taking: Taking, grants: boolean): Promise<Taken> {
  const { deps, tx, device, incarnation, segment, now } = taking
  const { received } = segment
  const rules = await holdRules(tx, deps.policies, device.instanceIds, now)
  // A segment that was answered before the twin was restored has had its grant: its answer comes again.
  const goesOn = grants && !segment.final && taking.proof === null
  const grantable = grantableAt(rules, now)
  const wants = goesOn && device.hold === null ? usefulWants(segment.wants, grantable) : []
  const named = [...received.counters.map(({ account }) => account), ...wants.map(({ account }) => account)]
  const known = segment.final
    ? await tx.edge.deviceAccounts.ofIncarnation(device.id, incarnation.number)
    : await tx.edge.deviceAccounts.get(device.id, incarnation.number, named)

  await takeRemnant(taking)
  const caps = await arrearsCaps(tx, device.instanceIds)
  const merge = mergeSegment(incarnation, known, received, new Set(device.instanceIds), {
    returns: grants,
    closes: segment.final && !incarnation.forked,
    grantsForgotten: incarnation.grantsForgotten,
    arrearsCapOf: (instanceId, lineItemId) => caps.get(`${instanceId}/${lineItemId}`) ?? 0n,
  })
  if (!merge.merged) return reject(taking, merge.problem, { account: merge.account, n: merge.n })

  const record = (account: AccountId): DeviceAccountRecord =>
    known.get(account) ?? newDeviceAccount(device.id, incarnation.number, account)
  const { fresh, known: ofBranch } = await splitEntries(taking)
  const branchUsed = sumPostings(ofBranch.flatMap(({ body }) => body.postings))
  const moves = merge.changes.map(({ account, after }): AccountMove => {
    const before = record(account)
    const reported = { ...before, ...after, branchUsed: before.branchUsed - (branchUsed.get(account) ?? 0n) }
    return { before, after: settled(reported, incarnation.settlement) }
  })
  // A release request is written under the lock of its account, so its account is locked before the request is settled.
  const requested = goesOn ? await tx.edge.releases.of(device.id) : []
  const before = await openPools(tx, rules, [
    ...moves.map((move) => move.after.account),
    ...wants.map((want) => want.account),
    ...requested.map((release) => release.account),
  ])
  const moved = movePools(before, moves)
  if (moved === undefined) return reject(taking, 'AMOUNT_BEYOND_BELIEF', {})
  if (incarnation.grantsForgotten) await requireBelievable(tx, rules, moves, moved)

  const pools = new Map([...before, ...moved])
  await tx.accounts.save([...moved.values()])
  await tx.edge.deviceAccounts.save(moves.map((move) => move.after))
  await tx.edge.entries.append(
    fresh.map(({ n, hash, text }) => {
      return { ...ownerOf(incarnation), n, hash, seq: segment.header.seq, branch: false, body: text }
    }),
  )
  // What was billed as a branch is part of the chain from here on: the counters have it, and its lines are written.
  await tx.edge.entries.adopt(
    device.id,
    incarnation.number,
    ofBranch.map(({ hash }) => hash),
    segment.header.seq,
  )
  await writeUsage(taking, fresh, before)
  await writePresumptions(taking, moves, moved)

  const next: Incarnation = {
    ...incarnation,
    status: segment.final ? 'CLOSED' : incarnation.status,
    lastSeq: segment.header.seq,
    lastHash: segment.header.hash,
    lastEntry: merge.lastEntry,
    entryHead: merge.entryHead,
    quietSince: now,
  }
  // What another incarnation still has to say is not how the sessions of the current one stand.
  if (incarnation.number === device.incarnation) {
    if (segment.header.seq === 1) await disconnectUntold(tx, device.id, segment.sessions, now)
    await takeSessions(tx, device, segment.sessions, now)
  }
  const orders = goesOn ? await ordersFor(tx, device.id) : []
  const releasing = goesOn && (await mustRelease(taking))
  const after = new Map(moves.map((move) => [move.after.account, move.after]))
  const held = (account: AccountId): DeviceAccountRecord => after.get(account) ?? record(account)
  const asks = goesOn ? await takeAsks(taking, before) : { asked: [], open: [] }
  const grant = goesOn
    ? await giveGrant(taking, { rules, grantable, wants: withoutComfort(wants, asks.asked), pools, held, releasing })
    : null
  const answer =
    taking.proof?.document ??
    (await signAnswer(deps, answerTo(taking, next, rules, grant, releasing, orders, asks.open)))

  await tx.edge.incarnations.save({ ...next, term: grant?.term ?? incarnation.term })
  await tx.edge.segments.append({
    ...ownerOf(incarnation),
    seq: segment.header.seq,
    hash: segment.header.hash,
    document: segment.document,
    answer,
    receivedAt: receivedAt(taking),
  })
  await tx.edge.devices.save({
    ...device,
    lastSyncAt: now,
    clock: { ...segment.clock, takenAt: now },
    // What another incarnation still has to say is not the backlog of the current one.
    ...(incarnation.number === device.incarnation
      ? { backlog: segment.backlog, appliedPolicies: servedOnly(segment.policies, device.instanceIds) }
      : {}),
    releaseAsked: grants ? device.releaseAsked && releasing : device.releaseAsked,
  })
  await deps.heartbeat(tx, device, now, taking.sessions)
  return { taken: true, answer }
}

/**
 * When the segment was first received. One that comes again to a twin that was restored is not news of its device: more of
 * what was forgotten may follow, and the twin learns until it has.
 */
function receivedAt({ proof, now }: Taking): number {
  return proof?.answer.outcome === 'MERGED' ? Math.min(proof.answer.time, now) : now
}

/** The entries that nobody has reported yet, and those that a second writer has: they are billed, as a branch, already. */
async function splitEntries({ tx, incarnation, segment }: Taking): Promise<{
  readonly fresh: readonly OpenedEntry[]
  readonly known: readonly OpenedEntry[]
}> {
  const { entries } = segment
  const [first, last] = [entries[0]?.n, entries.at(-1)?.n]
  // Only a second writer, or a later incarnation as the remnant of this one, can have brought them: neither while it is active.
  if (incarnation.status === 'ACTIVE' || first === undefined || last === undefined) return { fresh: entries, known: [] }
  const reported = await tx.edge.entries.hashes(incarnation.deviceId, incarnation.number, first, last)
  return {
    fresh: entries.filter(({ hash }) => !reported.has(hash)),
    known: entries.filter(({ hash }) => reported.has(hash)),
  }
}

/** @throws CodedError GRANTS_FORGOTTEN when the device says that it was granted what the rules of now never allowed */
async function requireBelievable(
  reader: Reader,
  rules: RulesInForce,
  moves: readonly AccountMove[],
  pools: ReadonlyMap<AccountId, Pool>,
): Promise<void> {
  const doubted = await beyondBelief(reader, rules, pools, moves)
  for (const { before, after } of moves) {
    const forgotten = after.granted - before.granted - (after.arrears - before.arrears)
    if (after.unlimited || forgotten === 0n || !doubted.has(after.account)) continue
    throw new CodedError('GRANTS_FORGOTTEN', `More of ${after.account} was used than it can have held.`, {
      facts: { account: after.account, deviceId: after.deviceId },
    })
  }
}

function answerTo(
  { deps, device, incarnation, segment, now }: Taking,
  next: Incarnation,
  rules: RulesInForce,
  grant: Grant | null,
  releasing: boolean,
  orders: SessionOrder[],
  asks: readonly ReleaseAsk[],
): SyncAnswerWire {
  const merged = { ...ownerOf(incarnation), seq: next.lastSeq, hash: next.lastHash }
  const receipt = {
    incarnation: incarnation.number,
    seq: next.lastSeq,
    hash: next.lastHash,
    entries: { from: incarnation.lastEntry + 1, to: next.lastEntry, head: next.entryHead },
    retainUntil: now + deps.terms.receiptMarginMs,
  }
  if (grant === null) {
    return { outcome: 'FENCED', ...merged, forked: incarnation.forked, closed: segment.final, receipt }
  }
  return {
    outcome: 'MERGED',
    ...merged,
    receipt,
    grant: {
      ...grant,
      accounts: grant.accounts.map(({ granted, overdraft, ...account }) => ({
        ...account,
        granted: String(granted),
        ...(overdraft === undefined ? {} : { overdraft: String(overdraft) }),
      })),
    },
    policies: [...rules].map(([instanceId, { revision }]) => ({ instanceId, revision })),
    directives: releasing ? ['release'] : [],
    releases: asks.map(({ account, keep }) => ({ account, keep: String(keep) })),
    sessions: orders,
    ...(device.replaceKey === device.thumbprint ? { replaceKey: device.replaceKey } : {}),
    nextSyncMs: deps.terms.syncEveryMs,
    time: now,
  }
}

/** What a device says of instances that are not its own is nobody's business. */
function servedOnly(policies: OpenedSegment['policies'], instanceIds: readonly string[]): OpenedSegment['policies'] {
  return policies.filter(({ instanceId }) => instanceIds.includes(instanceId))
}
