/**
 * Getting an incarnation. The nonce lives in memory only: an answer to an attach of another life of this process, or to
 * one long ago, must not revive an incarnation that is over. An attach grants nothing.
 */
import { attachAnswer } from '../../../protocol/edge/attach.ts'
import { CodedError } from '../../../protocol/errors.ts'
import { type LinkMemory, identityOf, takeIncarnation } from './memory.ts'
import { believe, believeTime, call, type StepContext, type StepResult } from './step.ts'

export async function attach(context: StepContext): Promise<StepResult> {
  const { cloud, journal, ledger, clock, randomness, memory, options, signal, log } = context
  const identity = identityOf(memory)
  memory.attachNonce ??= { text: randomness.token(), repeated: false }
  const { text: nonce, repeated } = memory.attachNonce
  memory.attachNonce.repeated = true
  const sentAt = clock.sinceBoot()
  const { highestIncarnation: above } = memory
  const acknowledged = memory.incarnation === above ? lastAcknowledged(memory) : 0
  const request = { nonce, bootId: clock.bootId, above, acknowledged, software: options.software }
  const said = await call(context, () => cloud.attach(identity, request, signal))
  const receivedAt = clock.sinceBoot()
  const answer = await believe(context, 'attach-answer', said.answer, attachAnswer)
  const { deviceId, nonce: echoed, incarnation, before } = answer
  const now = await believeTime(context, said, nonce)
  if (deviceId !== identity.deviceId || echoed !== nonce) {
    throw new CodedError('ANSWER_UNEXPECTED', 'The answer belongs to another attach.', { facts: { deviceId } })
  }
  if (incarnation <= memory.highestIncarnation) {
    memory.attachNonce = null
    throw new CodedError('ANSWER_UNEXPECTED', `Incarnation ${incarnation} is not above all that this device had.`, {
      facts: { incarnation, highest: memory.highestIncarnation },
    })
  }
  // The time is signed for the nonce: an answer to a repeated attach may be as old as the first attempt.
  if (!repeated) clock.learn({ time: now, sentAt, receivedAt })
  const isBehind = before !== null && before.seq < acknowledged
  const cloudEnd = isBehind ? { entry: before.lastEntry, head: before.entryHead } : null
  await journal.attach(incarnation, { isWhole: memory.fence === 'ABANDONED', cloudEnd })
  takeIncarnation(memory, incarnation, ledger.lastEntry())
  // What it has lost of the incarnation before, and of those before that, goes up again as far as it is kept.
  if (isBehind) memory.earlier = { incarnation: 0, seq: 0 }
  ledger.begin(incarnation)
  log.info({ incarnation }, 'attached')
  return 'PLAN_AGAIN'
}

function lastAcknowledged({ unacknowledged, lastSeq }: LinkMemory): number {
  return unacknowledged === null ? lastSeq : unacknowledged.seq - 1
}
