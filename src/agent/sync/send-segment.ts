/**
 * A segment is durable before its first byte is sent, and its text is resent byte for byte until it is acknowledged; a
 * grant is durable before it can be spent. At most one segment is unacknowledged.
 */
import { NO_TOP_UPS } from '../../core/accounts/grant.ts'
import type { Step } from '../../core/sync/plan.ts'
import { type SyncAnswer, syncAnswer } from '../../protocol/edge/sync.ts'
import { CodedError } from '../../protocol/errors.ts'
import { namedKey, signAgain } from '../../protocol/signing.ts'
import type { SealedSegment, SegmentPlace } from '../ledger/journal.ts'
import { linksOf } from './rotate-key.ts'
import { abandonRejected, applyAnswer, noteUnbilled } from './apply-answer.ts'
import { judgeAnswer } from './judge-answer.ts'
import { REFUSALS_MAX, REFUSED_FOR_MIN_MS } from './limits.ts'
import { identityOf } from './memory.ts'
import { proofsBeside } from './proofs.ts'
import { extentOf } from './segment-extent.ts'
import { call, raiseAndLog, type StepContext, type StepResult, verify, applySignedTime } from './step.ts'
import { topUpsOf } from './top-ups.ts'

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
    memory.returnsAll = false
    return 'PLAN_AGAIN'
  }
  const returned = returns.map(({ account }) => account)
  // No await from here to the journal call: a later request would not be in the segment.
  const topUps = step.final
    ? NO_TOP_UPS
    : topUpsOf(
        ledger.demand,
        waiting.carry(ledger.newRequesters),
        new Set([...returned, ...memory.keeps.keys()]),
        step.release,
      )
  if (!step.final) memory.topUpsCarried = true
  const { isMoreToFollow, ...sealed } = await journal
    .seal({
      salt: randomness.token(),
      bootId: clock.bootId,
      clock: clock.reading(),
      ...topUps,
      policies: [...memory.policies].map(([instanceId, { applied }]) => ({ instanceId, revision: applied })),
      returns,
      grant: ledger.receivedGrant(),
      final: step.final,
    })
    .catch((error: unknown) => {
      ledger.takeBackUnused(returns)
      throw error
    })
  const { lastEntry, needs } = extentOf(sealed)
  // Not all fit, and the answer does not cover those left out.
  if (needs < topUps.needs.length) waiting.resolveAll()
  memory.keeps = new Map()
  memory.unacknowledged = sealed
  memory.lastSeq = sealed.seq
  memory.lastSealedEntry = lastEntry
  memory.moreToSend = isMoreToFollow
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
  ).catch((error: unknown) => giveUpUnreadable(context, sent, error))
  if (response === undefined) return 'PLAN_AGAIN'
  const receivedAt = clock.sinceBoot()
  const answer = await verify(context, 'sync-answer', response.answer, syncAnswer)
  const now = await applySignedTime(context, response, nonce)
  const { epoch, seq, hash } = sent
  if (isEarlier(context, sent)) {
    memory.earlier = await afterEarlier(context, answer, sent)
    noteUnbilled(context, answer, sent)
    clock.learn({ time: now, sentAt, receivedAt })
    return 'PLAN_AGAIN'
  }
  const judgement = judgeAnswer(answer, { deviceId: identity.deviceId, epoch, seq, hash }, memory.lastSeq)
  if (judgement.kind === 'FOREIGN') throw foreign(answer, sent)
  noteUnbilled(context, answer, sent)
  clock.learn({ time: now, sentAt, receivedAt })
  await applyAnswer(context, sent, judgement, { document: response.answer, answer, now })
  return 'PLAN_AGAIN'
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
async function signedByDevice(context: StepContext, { document }: SealedSegment): Promise<string> {
  const { signer } = context.keys.current
  const { keyId } = identityOf(context.memory)
  const named = namedKey(document)
  if (named === signer.keyId || named === keyId) return document
  const isOfEarlierKey = linksOf(context).some(({ introduction }) => namedKey(introduction) === named)
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
  await noteGap(context, resendFrom, unacknowledged.seq)
  return unacknowledged
}

/** The gap cannot be closed: the proofs of the grants go with the next segment, then the chain is abandoned. */
async function noteGap(context: StepContext, lost: number, sealed: number): Promise<void> {
  const { journal, memory } = context
  const message = `The cloud has lost segment ${lost}, which this device no longer keeps.`
  raiseAndLog(context, 'device', new CodedError('CLOUD_BEHIND', message, { details: { lost, sealed } }))
  memory.proofs = await journal.proofs()
  memory.lost = true
  memory.resendFrom = null
}

/** Segments of an earlier epoch were acknowledged; no answer changes that here. */
function isEarlier({ memory }: StepContext, { epoch }: SegmentPlace): boolean {
  return epoch < memory.epoch
}

function endOf({ epoch }: SegmentPlace): SegmentPlace {
  return { epoch, seq: Number.MAX_SAFE_INTEGER }
}

/** Skips the rest of an epoch that lacks a segment here. @throws CodedError ANSWER_UNEXPECTED */
async function afterEarlier(
  { journal, memory }: StepContext,
  answer: SyncAnswer,
  sent: SealedSegment,
): Promise<SegmentPlace> {
  const { epoch, seq } = sent
  const last = memory.earlier
  if (answer.epoch !== epoch) throw foreign(answer, sent)
  switch (answer.outcome) {
    // Of another writer, too: each segment has entries that only it brings.
    case 'FENCED':
    case 'MERGED':
      return { epoch, seq }
    case 'KNOWN': {
      // Unless another writer has continued from here, all up to that one are known.
      const newest = await journal.sealedEarlier({ epoch, seq: answer.seq - 1 })
      return { epoch, seq: newest?.hash === answer.hash ? answer.seq : seq }
    }
    case 'BEHIND':
      // The cloud was restored again, and has lost what it had received again.
      return last?.epoch === epoch && answer.seq < last.seq ? { epoch: 0, seq: 0 } : endOf(sent)
    case 'REJECTED':
      return endOf(sent)
  }
}

function foreign({ outcome }: SyncAnswer, { seq }: SegmentPlace): CodedError {
  return new CodedError('ANSWER_UNEXPECTED', 'The answer belongs to another segment.', { details: { seq, outcome } })
}

/** The refusal is unsigned: other software versions, or an attacker, may cause it. */
function isUnreadable(error: unknown): error is CodedError {
  return error instanceof CodedError && error.code === 'SEGMENT_REJECTED'
}

/** Gives up a segment that the cloud has refused too often. @throws the error if the segment is sent again, or is not refused */
async function giveUpUnreadable(context: StepContext, sent: SealedSegment, error: unknown): Promise<undefined> {
  if (!isUnreadable(error) || !countRefusal(context, sent)) throw error
  if (isEarlier(context, sent)) context.memory.earlier = endOf(sent)
  else await abandonRejected(context, sent, error.message)
}

/** Returns whether it is the last one: the segment is not sent again. */
function countRefusal(context: StepContext, sent: SealedSegment): boolean {
  const { clock, ledger, memory } = context
  const { seq, hash } = sent
  if (!isEarlier(context, sent)) {
    // Resent segments were readable before.
    if (seq !== memory.unacknowledged?.seq) return false
    // Otherwise each new epoch without a grant could allow overspend again.
    if (seq === 1 && ledger.hasOverspend()) return false
  }
  const now = clock.sinceBoot()
  const before = memory.refused?.hash === hash ? memory.refused : { hash, times: 0, since: now }
  memory.refused = { ...before, times: before.times + 1 }
  // Waiting gains nothing in an ended epoch, which may have been abandoned before a restart.
  if (memory.fence !== 'NONE') return true
  return memory.refused.times >= REFUSALS_MAX && now - before.since >= REFUSED_FOR_MIN_MS
}
