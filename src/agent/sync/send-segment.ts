/**
 * A segment is durable before its first byte is sent, and its text is resent byte for byte until it is acknowledged; a
 * grant is durable before it can be spent. At most one segment is unacknowledged.
 */
import type { Step } from '../../core/sync/plan.ts'
import { RULES_SHOWN_MAX, type SyncAnswer, syncAnswer } from '../../protocol/edge/sync.ts'
import { CodedError } from '../../protocol/errors.ts'
import { namedKey, signAgain } from '../../protocol/signing.ts'
import type { SealedSegment, SegmentPlace, StoredAnswer } from '../ledger/journal.ts'
import { policySubject } from '../policy/fetch-policy.ts'
import { REFUSALS_MAX, REFUSED_FOR_MIN_MS } from './limits.ts'
import { judgeAnswer, type Judgement, newerGrant } from './apply-response.ts'
import { type PolicyMemory, identityOf } from './memory.ts'
import { proofsBeside } from './proofs.ts'
import { extentOf } from './segment-extent.ts'
import { nextSession } from './session-state.ts'
import { believe, believeTime, call, raiseAndLog, type StepContext, type StepResult } from './step.ts'
import { NO_TOP_UPS, topUpsOf, poolBalancesOf } from './top-ups.ts'

/** An older answer, ms, is a stored one, so its news may be outdated. */
const FRESH_MS = 60_000

const SUBJECT = 'sync'

export async function sealAndSend(
  context: StepContext,
  step: Extract<Step, { kind: 'seal-and-send' }>,
): Promise<StepResult> {
  const { journal, ledger, clock, randomness, memory, waiting } = context
  // A segment contains only journaled entries.
  await ledger.flushed()
  const returns = step.final
    ? []
    : step.release
      ? ledger.returnUnused()
      : ledger.giveUpSpare(memory.keeps, waiting.needed())
  if (step.release && returns.length === 0) {
    memory.releasing = false
    return 'PLAN_AGAIN'
  }
  const returned = returns.map(({ account }) => account)
  // No await from here to the journal call: a later request would not be in the segment.
  const topUps = step.final
    ? NO_TOP_UPS
    : topUpsOf(ledger.demand, waiting.carry(), new Set([...returned, ...memory.keeps.keys()]), step.release)
  if (!step.final) memory.topUpsCarried = true
  const sealed = await journal
    .seal({
      salt: randomness.token(),
      bootId: clock.bootId,
      clock: clock.reading(),
      ...topUps,
      policies: [...memory.policies].map(([instanceId, { applied }]) => ({ instanceId, revision: applied })),
      returns,
      grant: ledger.takenGrant(),
      final: step.final,
    })
    .catch((error: unknown) => {
      ledger.takeBackUnused(returns)
      throw error
    })
  const { lastEntry, backlog, needs } = extentOf(sealed)
  // Not all fit, and the answer does not cover those left out.
  if (needs < topUps.needs.length) waiting.letAllGo()
  memory.keeps = new Map()
  memory.unacknowledged = sealed
  memory.lastSeq = sealed.seq
  memory.lastSealedEntry = lastEntry
  memory.moreToSend = backlog > 0
  return sendSegment(context)
}

export async function sendSegment(context: StepContext): Promise<StepResult> {
  const { cloud, clock, memory, randomness, signal } = context
  const identity = identityOf(memory)
  const sent = await nextToSend(context)
  const segment = await signedByDevice(context, sent)
  const nonce = randomness.token()
  const sentAt = clock.sinceBoot()
  const response = await call(context, () =>
    cloud.sync(identity, { segment, nonce, ...proofsWith(context, sent) }, signal),
  ).catch(async (error: unknown) => {
    if (!isUnreadable(error)) throw error
    if (!hasHadEnough(context, sent)) throw error
    if (isEarlier(context, sent)) {
      memory.earlier = endOf(sent)
      return
    }
    await abandonRejected(context, sent, error.message)
  })
  if (response === undefined) return 'PLAN_AGAIN'
  const receivedAt = clock.sinceBoot()
  const believed = await believe(context, 'sync-answer', response.answer, syncAnswer)
  const now = await believeTime(context, response, nonce)
  const { epoch, seq, hash } = sent
  if (isEarlier(context, sent)) {
    memory.earlier = afterEarlier(believed, sent)
    clock.learn({ time: now, sentAt, receivedAt })
    return 'PLAN_AGAIN'
  }
  const judgement = judgeAnswer(believed, { deviceId: identity.deviceId, epoch, seq, hash }, memory.lastSeq)
  if (judgement.kind === 'FOREIGN') {
    throw new CodedError('ANSWER_UNEXPECTED', 'The answer belongs to another segment.', {
      details: { seq, outcome: believed.outcome },
    })
  }
  clock.learn({ time: now, sentAt, receivedAt })
  noteUnbilled(context, believed, sent)
  await take(context, sent, judgement, { document: response.answer, receipt: receiptOf(believed), now })
  return 'PLAN_AGAIN'
}

/** The cloud keeps them as evidence only, and sending again would not change that. Shown until the next start. */
function noteUnbilled(context: StepContext, answer: SyncAnswer, { seq }: SealedSegment): void {
  const entries = answer.outcome === 'MERGED' || answer.outcome === 'FENCED' ? answer.unbilled : undefined
  if (entries === undefined) return
  const message = `The cloud keeps ${entries} entries of an earlier epoch as evidence and does not bill them.`
  const error = new CodedError('USAGE_UNBILLED', message, { details: { entries, seq } })
  raiseAndLog(context, 'undelivered entries', error)
}

/** Adds earlier answers for a cloud that has forgotten them. */
function proofsWith(context: StepContext, sent: SealedSegment): { readonly proofs?: string[] } {
  const { memory } = context
  const again = sent.answer === null ? [] : [sent.answer]
  const isNews = !isEarlier(context, sent) && sent.seq === memory.unacknowledged?.seq
  const { shown } = proofsBeside(sent.document, isNews ? memory.proofs : again)
  return shown.length === 0 ? {} : { proofs: shown }
}

/** The cloud refuses a segment that was sealed while the key file contained a key of another device. */
async function signedByDevice({ keys, memory }: StepContext, { document }: SealedSegment): Promise<string> {
  const { signer } = keys.current
  const { keyId, keyLinks = [] } = identityOf(memory)
  const named = namedKey(document)
  if (named === signer.keyId || named === keyId) return document
  const isOfEarlierKey = keyLinks.some(({ introduction }) => namedKey(introduction) === named)
  return isOfEarlierKey ? document : signAgain(document, signer)
}

async function nextToSend(context: StepContext): Promise<SealedSegment> {
  const { journal, memory } = context
  const { unacknowledged, resendFrom } = memory
  if (unacknowledged === null) throw new Error('invariant: a segment to send is there')
  if (memory.earlier !== null) {
    const earlier = await journal.sealedEarlier(memory.earlier)
    if (earlier !== null) return earlier
    memory.earlier = null
  }
  if (resendFrom === null || resendFrom >= unacknowledged.seq) return unacknowledged
  const kept = await journal.sealed(resendFrom)
  if (kept !== null) return kept
  // The gap cannot be closed: send the proofs of the grants with the next segment, then abandon the chain.
  const error = new CodedError(
    'CLOUD_BEHIND',
    `The cloud has lost segment ${resendFrom}, which this device no longer keeps.`,
    { details: { lost: resendFrom, sealed: unacknowledged.seq } },
  )
  raiseAndLog(context, 'device', error)
  memory.proofs = await journal.proofs()
  memory.lost = true
  memory.resendFrom = null
  return unacknowledged
}

/** Segments of an earlier epoch were acknowledged; no answer changes that here. */
function isEarlier({ memory }: StepContext, { epoch }: SegmentPlace): boolean {
  return epoch < memory.epoch
}

function endOf({ epoch }: SegmentPlace): SegmentPlace {
  return { epoch, seq: Number.MAX_SAFE_INTEGER }
}

/** Skips the rest of an epoch that lacks a segment here, or has another writer. @throws CodedError ANSWER_UNEXPECTED */
function afterEarlier(answer: SyncAnswer, sent: SealedSegment): SegmentPlace {
  const { epoch, seq } = sent
  if (answer.epoch !== epoch) {
    throw new CodedError('ANSWER_UNEXPECTED', 'The answer belongs to another segment.', {
      details: { seq, outcome: answer.outcome },
    })
  }
  switch (answer.outcome) {
    case 'MERGED':
      return { epoch, seq }
    case 'KNOWN':
      return { epoch, seq: Math.max(seq, answer.seq) }
    case 'FENCED':
      return answer.forked ? endOf(sent) : { epoch, seq }
    case 'BEHIND':
    case 'REJECTED':
      return endOf(sent)
  }
}

interface Received {
  readonly document: string
  readonly receipt: StoredAnswer['retainUntil']
  readonly now: number
}

function receiptOf(answer: SyncAnswer): number | null {
  return answer.outcome === 'MERGED' || answer.outcome === 'FENCED' ? (answer.receipt?.retainUntil ?? null) : null
}

async function take(
  context: StepContext,
  sent: SealedSegment,
  judgement: Exclude<Judgement, { kind: 'FOREIGN' }>,
  received: Received,
): Promise<void> {
  const { memory, health } = context
  if (judgement.kind === 'BEHIND' && memory.lost) {
    memory.proofs = proofsBeside(sent.document, memory.proofs).rest
    if (memory.proofs.length > 0) return
    await context.ledger.freeze()
    if (memory.fence === 'NONE') await context.journal.fence()
    memory.fence = 'ABANDONED'
    return
  }
  if (judgement.kind === 'BEHIND') {
    const { resendFrom } = judgement
    const resent = memory.resendFrom !== null
    memory.resendFrom = resent ? null : resendFrom
    // The cloud may have lost segments of earlier epochs too.
    if (!resent) memory.earlier = { epoch: 0, seq: 0 }
    if (resent) {
      throw new CodedError('CLOUD_BEHIND', 'The cloud does not take the segments that it has lost.', {
        details: { resendFrom },
      })
    }
    raise(context, new CodedError('CLOUD_BEHIND', `The cloud has lost segment ${resendFrom} and those after it.`))
    return
  }
  if (sent.seq !== memory.unacknowledged?.seq) {
    // A resent segment: its grant and entries are already in the journal.
    if (judgement.kind === 'FENCED') await stopSpending(context, judgement)
    memory.resendFrom = judgement.kind === 'KNOWN' ? judgement.seq + 1 : sent.seq + 1
    return
  }
  switch (judgement.kind) {
    case 'MERGED':
      await merged(context, sent, judgement.answer, received)
      break
    case 'KNOWN':
      await acknowledge(context, sent, null)
      break
    case 'RESTORED':
      await stopSpending(context, { closed: false, forked: true })
      await acknowledge(context, sent, null)
      break
    case 'FENCED':
      await stopSpending(context, judgement)
      if (!judgement.acknowledged) {
        throw new CodedError('ANSWER_UNEXPECTED', 'The epoch is fenced, but its segment is not acknowledged.', {
          details: { seq: sent.seq },
        })
      }
      await acknowledge(context, sent, received)
      break
    case 'REJECTED':
      await abandonRejected(context, sent, judgement.problem)
      break
  }
  memory.resendFrom = null
  health.clear(SUBJECT)
}

async function merged(
  context: StepContext,
  sent: SealedSegment,
  answer: Extract<SyncAnswer, { outcome: 'MERGED' }>,
  { document, receipt, now }: Received,
): Promise<void> {
  const { journal, ledger, activePolicies, clock, memory, log } = context
  const news = newerGrant(answer.grant, memory.grantTerm)
  const grant = news === null ? null : await ledger.prepareGrant({ ...news, agedMs: 0 })
  const confirmation = { time: answer.time, policies: answer.policies }
  const resendsEarlier = answer.directives.includes('resend')
  await journal.acknowledge(sent.seq, grant, confirmation, { document, retainUntil: receipt, resendsEarlier })
  forget(context, sent)
  if (news !== null && grant !== null) {
    memory.grantTerm = grant.term
    ledger.applyGrant(grant)
    ledger.settleAboveGrant()
    if (memory.topUpsCarried) context.waiting.receive(poolBalancesOf(news))
  }
  if (answer.sessions.length > 0) context.applyCommands(answer.sessions)
  activePolicies.confirm(confirmation)
  const fresh = now - answer.time < FRESH_MS
  memory.proofs = proofsBeside(sent.document, memory.proofs).rest
  if (memory.proofs.length > 0) memory.lookAgain = true
  takeRevisions(context, answer, fresh)
  memory.nextSyncMs = answer.nextSyncMs
  memory.lastSyncAt = clock.reading().now
  // A stored answer to an earlier round's segment carries no news.
  if (fresh || memory.topUpsCarried) {
    memory.looking = false
    memory.syncedAt = clock.sinceBoot()
  }
  memory.keeps = new Map(answer.releases.map(({ account, keep }) => [account, keep]))
  if (answer.directives.includes('release')) memory.releasing = true
  if (answer.directives.includes('sync')) memory.lookAgain = true
  if (resendsEarlier) {
    memory.earlier = { epoch: 0, seq: 0 }
    // The next segment follows them.
    memory.lookAgain = true
  }
  if (answer.replaceKey === identityOf(memory).keyId) memory.key.isRequested = true
  for (const sessionMemory of memory.sessions.values()) {
    sessionMemory.session = nextSession(sessionMemory.session, { kind: 'SYNCED' }, clock.sinceBoot()).session
  }
  log.info({ seq: sent.seq, term: grant?.term, granted: grant?.accounts.length ?? 0 }, 'segment merged')
}

async function acknowledge(context: StepContext, sent: SealedSegment, received: Received | null): Promise<void> {
  const answer = received === null ? null : { document: received.document, retainUntil: received.receipt }
  await context.journal.acknowledge(sent.seq, null, null, answer)
  forget(context, sent)
}

/** Call when the journal has acknowledged the segment. */
function forget({ memory }: StepContext, sent: SealedSegment): void {
  memory.unacknowledged = null
  memory.lastAcknowledgedEntry = memory.lastSealedEntry
  // Resent segments were not counted.
  memory.undeliveredRanges = Math.max(0, memory.undeliveredRanges - extentOf(sent).undeliveredRange)
  if (sent.final && memory.fence === 'FENCED') memory.fence = 'CLOSED'
}

/** The refusal is unsigned: other software versions, or an attacker, may cause it. */
function isUnreadable(error: unknown): error is CodedError {
  return error instanceof CodedError && error.code === 'SEGMENT_REJECTED'
}

function hasHadEnough(context: StepContext, sent: SealedSegment): boolean {
  const { clock, ledger, memory } = context
  const { seq, hash } = sent
  if (!isEarlier(context, sent)) {
    // Resent segments were readable before.
    if (seq !== memory.unacknowledged?.seq) return false
    // Otherwise each new epoch without a grant could allow overspend again.
    if (seq === 1 && ledger.owes()) return false
  }
  const now = clock.sinceBoot()
  const before = memory.refused?.hash === hash ? memory.refused : { hash, times: 0, since: now }
  memory.refused = { ...before, times: before.times + 1 }
  // Waiting gains nothing in an ended epoch, which may have been abandoned before a restart.
  if (memory.fence !== 'NONE') return true
  return memory.refused.times >= REFUSALS_MAX && now - before.since >= REFUSED_FOR_MIN_MS
}

/** Resending would be refused again, so the entries are sent as this epoch's undelivered range. */
async function abandonRejected(context: StepContext, { seq }: SealedSegment, problem: string): Promise<void> {
  const { journal, ledger, memory, health, log } = context
  await ledger.freeze()
  if (memory.fence === 'NONE') await journal.fence()
  memory.fence = 'ABANDONED'
  const error = new CodedError(
    'SEGMENT_REJECTED',
    `The cloud refused segment ${seq}; its entries go up once more: ${problem}`,
    {
      details: { epoch: memory.epoch, seq, problem },
    },
  )
  health.raise('device', error)
  log.warn({ code: error.code, ...error.details }, error.message)
}

/** Stops in memory first, then durably: later entries would belong to an ended epoch. */
async function stopSpending(
  context: StepContext,
  { closed, forked }: { readonly closed: boolean; readonly forked: boolean },
): Promise<void> {
  const { journal, ledger, memory, health, log } = context
  await ledger.freeze()
  if (memory.fence === 'NONE') {
    await journal.fence()
    memory.fence = 'FENCED'
    log.warn({ epoch: memory.epoch, forked, closed }, 'the epoch is fenced')
  }
  if (closed) memory.fence = 'CLOSED'
  if (forked) {
    // The chain belongs to the other history, so entries unknown to the cloud are sent as its undelivered range.
    memory.fence = 'FORKED'
    const message = 'The cloud knows another history of this device: it was copied, or its state was restored.'
    health.raise('device', new CodedError('DEVICE_FORKED', message, { details: { epoch: memory.epoch } }))
  }
}

function takeRevisions(
  context: StepContext,
  { policies }: Extract<SyncAnswer, { outcome: 'MERGED' }>,
  fresh: boolean,
): void {
  for (const { instanceId, revision } of policies) {
    const policyMemory = context.memory.policies.get(instanceId)
    if (policyMemory === undefined) continue
    if (!fresh) {
      policyMemory.newest = Math.max(policyMemory.newest, revision)
      continue
    }
    policyMemory.newest = revision
    const subject = policySubject(instanceId)
    if (revision < policyMemory.applied) {
      const message = `The cloud's newest revision is ${revision}, but revision ${policyMemory.applied} is in force.`
      const details = { instanceId, revision, inForce: policyMemory.applied }
      raise(context, new CodedError('POLICY_REVISION_OLDER', message, { details }), subject)
      showRules(context, policyMemory)
    } else if (revision === policyMemory.applied) context.health.clear(subject)
  }
}

/** A restored cloud may have forgotten the rules in force: sends the signed document with the next segment. */
function showRules({ memory }: StepContext, policyMemory: PolicyMemory): void {
  if (policyMemory.document === null || policyMemory.shown || policyMemory.document.length > RULES_SHOWN_MAX) return
  policyMemory.shown = true
  memory.proofs = [...memory.proofs, policyMemory.document]
  memory.lookAgain = true
}

function raise(context: StepContext, error: CodedError, subject = SUBJECT): void {
  raiseAndLog(context, subject, error, { subject })
}
