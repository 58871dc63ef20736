/**
 * The next segment of an incarnation: its counters and entries become part of the bill, and a current incarnation gets its
 * grant. A segment that does not add up changes no balance: it is kept as evidence, and its incarnation earns nothing more.
 */
import { type AccountId, parseAccount } from '../../../core/account.ts'
import { type Merge, lastOf, mergeSegment, withoutKnown } from '../../../core/receive.ts'
import type { Grant, SyncAnswerWire } from '../../../protocol/edge/sync.ts'
import type { SessionOrder } from '../../../protocol/edge/sessions.ts'
import { disconnectUntold, ordersFor, takeSessions } from './device-sessions.ts'
import { NO_TOP_UPS, accountsOf, giveGrant, mustRelease } from './give-grant.ts'
import { grantableAt } from './grants.ts'
import { LIMITED_AGAIN_MAX } from './limits.ts'
import { arrearsCaps } from './offline-policy.ts'
import { type AccountMove, movePools } from './move.ts'
import type { OpenedSegment } from './open-segment.ts'
import { type DeviceAccountRecord, type Incarnation, type Recall, newDeviceAccount } from './records.ts'
import { reject } from './reject.ts'
import { type RulesInForce, holdRules, openListedPools } from './rules-in-force.ts'
import { recallsFrom } from './share-scarce.ts'
import { takeRemnant } from './take-remnant.ts'
import { type Taken, type Taking, ownerOf, signAnswer } from './taking.ts'
import { type Unbilled, toldOf } from './unbilled.ts'
import { movesOf, requirePlausible, splitEntries, unknownAccount, writeMerge } from './write-merge.ts'

/** @param grants the incarnation is the current one: it can earn grants and return tokens */
export async function mergeNext(taking: Taking, grants: boolean): Promise<Taken> {
  const { deps, tx, device, incarnation, segment, now, present } = taking
  const { received } = segment
  const rules = await holdRules(tx, deps.policies, device.instanceIds, now)
  // A segment that was answered before the twin was restored has had its grant: its answer comes again.
  const goesOn = grants && !segment.final && taking.proof === null
  const grantable = grantableAt(rules, now)
  const topUps = goesOn && device.hold === null ? segment.topUps : NO_TOP_UPS
  const asked = accountsOf(topUps, grantable)
  const limited = goesOn
    ? await tx.edge.deviceAccounts.limitedAgain(device.id, incarnation.number, LIMITED_AGAIN_MAX)
    : []
  const named = [...[...received.counters, ...limited].map(({ account }) => account), ...asked]
  const known = segment.final
    ? await tx.edge.deviceAccounts.ofIncarnation(device.id, incarnation.number)
    : await tx.edge.deviceAccounts.get(device.id, incarnation.number, named)

  const unbilled = await takeRemnant(
    taking,
    rules,
    named.filter((account) => isServed(account, device)),
  )
  const merge = await mergeInto(taking, known, grants)
  if (!merge.merged) return reject(taking, merge.problem, { account: merge.account, n: merge.n })

  const record = (account: AccountId): DeviceAccountRecord =>
    known.get(account) ?? newDeviceAccount(device.id, incarnation.number, account)
  const split = await splitEntries(
    taking,
    incarnation,
    segment.entries.filter(({ n }) => n > incarnation.lastEntry),
  )
  const moves = movesOf(incarnation, known, merge.changes, split)
  const told = accountsToTell(moves, limited)
  const ofMoves = moves.map((move) => move.after.account)
  const before = await openListedPools(tx, rules, [...ofMoves, ...asked, ...told], incarnation)
  const unknown = unknownAccount(incarnation, moves, before)
  if (unknown !== undefined) return reject(taking, 'ACCOUNT_UNKNOWN', { account: unknown })
  const moved = movePools(before, moves)
  if (moved === undefined) return reject(taking, 'AMOUNT_BEYOND_BELIEF', {})
  if (incarnation.grantsForgotten) await requirePlausible(taking, rules, moves, moved)
  const pools = new Map([...before, ...moved])
  await writeMerge(taking, incarnation, split, moves, before, moved)

  const next: Incarnation = {
    ...incarnation,
    status: segment.final && lastOf(received) >= incarnation.lastEntry ? 'CLOSED' : incarnation.status,
    lastSeq: segment.header.seq,
    lastHash: segment.header.hash,
    lastEntry: merge.lastEntry,
    entryHead: merge.entryHead,
    quietSince: present,
  }
  // What another incarnation still has to say is not how the sessions of the current one stand.
  if (incarnation.number === device.incarnation) {
    if (segment.header.seq === 1) await disconnectUntold(tx, device.id, segment.sessions, now)
    await takeSessions(tx, device, segment.sessions, now, deps.trustsClock())
  }
  const orders = goesOn ? await ordersFor(tx, device.id) : []
  const releasing = goesOn && (await mustRelease(taking))
  const after = new Map(moves.map((move) => [move.after.account, move.after]))
  const held = (account: AccountId): DeviceAccountRecord => after.get(account) ?? record(account)
  const inUse = new Set(
    moves.flatMap(({ before: known, after: { account, used } }) => (used > known.used ? account : [])),
  )
  const grant = goesOn
    ? await giveGrant(taking, { rules, grantable, topUps, named: told, pools, held, inUse, releasing })
    : null
  const recalls = goesOn ? await recallsFrom(taking, moves) : []
  const answer =
    taking.proof?.document ??
    (await signAnswer(deps, answerTo(taking, next, unbilled, rules, grant, releasing, orders, recalls)))

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
  return { taken: true, answer, unbilled }
}

/**
 * When the segment was first received. One that comes again to a twin that was restored is not news of its device: more of
 * what was forgotten may follow, and the twin learns until it has.
 */
function receivedAt({ proof, now }: Taking): number {
  return proof?.answer.outcome === 'MERGED' ? Math.min(proof.answer.time, now) : now
}

/**
 * Accounts of which the device has to hear, asked or not: what it used above its grants counts as granted by now, or what was
 * unlimited has a limit.
 */
function accountsToTell(moves: readonly AccountMove[], limited: readonly DeviceAccountRecord[]): readonly AccountId[] {
  const raised = moves.filter(({ before, after }) => after.granted > before.granted)
  const news = [...raised.map(({ after }) => after), ...limited.filter(({ unlimited }) => unlimited)]
  return news.map(({ account }) => account)
}

/**
 * A segment that was given up may come after a later incarnation has delivered its entries, and more: then it says nothing
 * that is not known.
 */
async function mergeInto(
  { tx, device, incarnation, segment, fit }: Taking,
  known: ReadonlyMap<AccountId, DeviceAccountRecord>,
  grants: boolean,
): Promise<Merge> {
  const { received } = segment
  const { status, lastEntry, entryHead } = incarnation
  if (status === 'CLOSED' || lastOf(received) < lastEntry) return { merged: true, changes: [], lastEntry, entryHead }
  const caps = await arrearsCaps(tx, device.instanceIds)
  const news = fit.kind === 'CONTINUES' ? withoutKnown(received, fit.known) : received
  return mergeSegment(incarnation, known, news, new Set(device.instanceIds), {
    returns: grants,
    closes: segment.final && !incarnation.forked,
    grantTaken: segment.grantTerm > 0 && segment.grantTerm >= incarnation.term,
    grantsForgotten: incarnation.grantsForgotten,
    arrearsCapOf: (instanceId, lineItemId) => caps.get(`${instanceId}/${lineItemId}`) ?? 0n,
  })
}

function answerTo(
  { deps, device, incarnation, segment, now }: Taking,
  next: Incarnation,
  unbilled: Unbilled | null,
  rules: RulesInForce,
  grant: Grant | null,
  releasing: boolean,
  orders: SessionOrder[],
  recalls: readonly Recall[],
): SyncAnswerWire {
  const merged = { ...ownerOf(incarnation), seq: next.lastSeq, hash: next.lastHash }
  const receipt = {
    incarnation: incarnation.number,
    seq: next.lastSeq,
    hash: next.lastHash,
    entries: {
      from: segment.received.firstEntry,
      to: lastOf(segment.received),
      head: segment.received.entryHead,
    },
    retainUntil: now + deps.terms.receiptMarginMs,
  }
  if (grant === null) {
    const { forked, status } = next
    return { outcome: 'FENCED', ...merged, forked, closed: status === 'CLOSED', receipt, ...toldOf(unbilled) }
  }
  return {
    outcome: 'MERGED',
    ...merged,
    receipt,
    grant: {
      ...grant,
      accounts: grant.accounts.map(({ granted, available, overdraft, ...account }) => ({
        ...account,
        granted: String(granted),
        available: String(available),
        ...(overdraft === undefined ? {} : { overdraft: String(overdraft) }),
      })),
    },
    policies: [...rules].map(([instanceId, { revision }]) => ({ instanceId, revision })),
    directives: releasing ? ['release'] : [],
    releases: recalls.map(({ account, keep }) => ({ account, keep: String(keep) })),
    sessions: orders,
    ...(device.replaceKey === device.thumbprint ? { replaceKey: device.replaceKey } : {}),
    nextSyncMs: deps.terms.syncEveryMs,
    time: now,
    ...toldOf(unbilled),
  }
}

function isServed(account: AccountId, { instanceIds }: Taking['device']): boolean {
  const parsed = parseAccount(account)
  return parsed !== undefined && instanceIds.includes(parsed.instanceId)
}

/** What a device says of instances that are not its own is nobody's business. */
function servedOnly(policies: OpenedSegment['policies'], instanceIds: readonly string[]): OpenedSegment['policies'] {
  return policies.filter(({ instanceId }) => instanceIds.includes(instanceId))
}
