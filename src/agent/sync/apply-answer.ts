/** Applies the signed answer to a segment of the current epoch. The journal commits each change before it counts. */
import { counted } from '../../core/accounts/in-words.ts'
import { RULES_SHOWN_MAX, type SyncAnswer } from '../../protocol/edge/sync.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { SealedSegment, StoredAnswer } from '../ledger/journal.ts'
import { policySubject } from './fetch-policy.ts'
import { type Judgement, newerGrant } from './judge-answer.ts'
import { type PolicyMemory, identityOf } from './memory.ts'
import { proofsBeside } from './proofs.ts'
import { extentOf } from './segment-extent.ts'
import { nextCloudSession } from './cloud-session-state.ts'
import { raiseAndLog, type StepContext } from './step.ts'
import { poolBalancesOf } from './top-ups.ts'

/** An older answer, ms, is a stored one, so its news may be outdated. */
const FRESH_MS = 60_000

const SUBJECT = 'sync'

export interface ReceivedAnswer {
  readonly document: string
  readonly answer: SyncAnswer
  readonly now: number
}

export async function applyAnswer(
  context: StepContext,
  sent: SealedSegment,
  judgement: Exclude<Judgement, { kind: 'FOREIGN' }>,
  received: ReceivedAnswer,
): Promise<void> {
  const { memory, health } = context
  if (judgement.kind === 'BEHIND') {
    await resendOrAbandon(context, sent, judgement.resendFrom)
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
      await applyMerged(context, sent, judgement.answer, received)
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

/** Resends the segments that the cloud has lost. If they are not kept, or the cloud refuses them, the chain ends. */
async function resendOrAbandon(context: StepContext, sent: SealedSegment, resendFrom: number): Promise<void> {
  const { memory } = context
  if (memory.lost) {
    memory.proofs = proofsBeside(sent.document, memory.proofs).rest
    if (memory.proofs.length === 0) await abandon(context)
    return
  }
  if (memory.resendFrom !== null) {
    memory.resendFrom = null
    throw new CodedError('CLOUD_BEHIND', 'The cloud does not take the segments that it has lost.', {
      details: { resendFrom },
    })
  }
  memory.resendFrom = resendFrom
  // The cloud may have lost segments of earlier epochs too.
  memory.earlier = { epoch: 0, seq: 0 }
  raise(context, new CodedError('CLOUD_BEHIND', `The cloud has lost segment ${resendFrom} and those after it.`))
}

type MergedAnswer = Extract<SyncAnswer, { outcome: 'MERGED' }>

async function applyMerged(
  context: StepContext,
  sent: SealedSegment,
  answer: MergedAnswer,
  { document, now }: ReceivedAnswer,
): Promise<void> {
  const { journal, ledger, activePolicies, memory, log } = context
  const news = newerGrant(answer.grant, memory.grantTerm)
  const grant = news === null ? null : await ledger.prepareGrant({ ...news, agedMs: 0 })
  const confirmation = { time: answer.time, policies: answer.policies }
  const resendsEarlier = answer.directives.includes('resend')
  await journal.acknowledge(sent.seq, grant, confirmation, { ...storedAnswer(document, answer), resendsEarlier })
  noteAcknowledged(context, sent)
  if (news !== null && grant !== null) {
    memory.grantTerm = grant.term
    ledger.applyGrant(grant)
    ledger.settleAboveGrant()
    if (memory.topUpsCarried) context.waiting.receive(poolBalancesOf(news))
  }
  if (answer.sessions.length > 0) context.applyCommands(answer.sessions)
  activePolicies.confirm(confirmation)
  memory.proofs = proofsBeside(sent.document, memory.proofs).rest
  if (memory.proofs.length > 0) memory.syncsAgain = true
  const fresh = now - answer.time < FRESH_MS
  takeRevisions(context, answer, fresh)
  noteSynced(context, answer, fresh)
  followDirectives(context, answer)
  log.info({ seq: sent.seq, term: grant?.term, granted: grant?.accounts.length ?? 0 }, 'segment merged')
}

function noteSynced({ clock, memory }: StepContext, { nextSyncMs }: MergedAnswer, fresh: boolean): void {
  memory.nextSyncMs = nextSyncMs
  memory.lastSyncAt = clock.reading().now
  // A stored answer to an earlier round's segment carries no news.
  if (fresh || memory.topUpsCarried) {
    memory.expectsNews = false
    memory.syncedAt = clock.sinceBoot()
  }
  for (const sessionMemory of memory.sessions.values()) {
    sessionMemory.session = nextCloudSession(sessionMemory.session, { kind: 'SYNCED' }, clock.sinceBoot()).session
  }
}

/** For the next steps and rounds. */
function followDirectives({ memory }: StepContext, { directives, releases, replaceKey }: MergedAnswer): void {
  memory.keeps = new Map(releases.map(({ account, keep }) => [account, keep]))
  if (directives.includes('release')) memory.returnsAll = true
  if (directives.includes('sync')) memory.syncsAgain = true
  if (directives.includes('resend')) {
    memory.earlier = { epoch: 0, seq: 0 }
    // The next segment follows them.
    memory.syncsAgain = true
  }
  if (replaceKey === identityOf(memory).keyId) memory.key.isRequested = true
}

async function acknowledge(context: StepContext, sent: SealedSegment, received: ReceivedAnswer | null): Promise<void> {
  const stored = received === null ? null : storedAnswer(received.document, received.answer)
  await context.journal.acknowledge(sent.seq, null, null, stored)
  noteAcknowledged(context, sent)
}

function storedAnswer(document: string, answer: SyncAnswer): StoredAnswer {
  const hasReceipt = answer.outcome === 'MERGED' || answer.outcome === 'FENCED'
  return { document, retainUntil: hasReceipt ? (answer.receipt?.retainUntil ?? null) : null }
}

/** Call when the journal has acknowledged the segment. */
function noteAcknowledged({ memory }: StepContext, sent: SealedSegment): void {
  memory.unacknowledged = null
  memory.lastAcknowledgedEntry = memory.lastSealedEntry
  // Resent segments were not counted.
  memory.undeliveredRanges = Math.max(0, memory.undeliveredRanges - extentOf(sent).undeliveredRange)
  if (sent.final && memory.fence === 'FENCED') memory.fence = 'CLOSED'
}

/** Resending would be refused again, so the entries are sent as this epoch's undelivered range. */
export async function abandonRejected(context: StepContext, { seq }: SealedSegment, problem: string): Promise<void> {
  const { memory, health, log } = context
  await abandon(context)
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

async function abandon({ journal, ledger, memory }: StepContext): Promise<void> {
  await ledger.freeze()
  if (memory.fence === 'NONE') await journal.fence()
  memory.fence = 'ABANDONED'
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

function takeRevisions(context: StepContext, { policies }: MergedAnswer, fresh: boolean): void {
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
  memory.syncsAgain = true
}

function raise(context: StepContext, error: CodedError, subject = SUBJECT): void {
  raiseAndLog(context, subject, error, { subject })
}

/** The cloud keeps them as evidence only, and sending again would not change that. Shown until the next start. */
export function noteUnbilled(
  { memory, health, log }: StepContext,
  answer: SyncAnswer,
  { epoch, seq }: SealedSegment,
): void {
  const entries = answer.outcome === 'MERGED' || answer.outcome === 'FENCED' ? answer.unbilled : undefined
  const segment = `${epoch}/${seq}`
  // A repeated segment gets the same answer.
  if (entries === undefined || memory.unbilled.get(segment) === entries) return
  memory.unbilled.set(segment, entries)
  const all = [...memory.unbilled.values()].reduce((sum, each) => sum + each, 0)
  const unbilled = counted(all, 'entry', 'entries')
  const message = `Since the start of the agent, the cloud has kept ${unbilled} of earlier epochs as evidence only, not for billing.`
  const error = new CodedError('USAGE_UNBILLED', message, { details: { epoch, seq, entries } })
  health.raise('undelivered entries', error)
  log.warn({ code: error.code, ...error.details }, error.message)
}
