/** The nonce lives in memory only, so that a late answer to an earlier attach cannot revive an old epoch. */
import { attachAnswer } from '../../protocol/edge/attach.ts'
import { CodedError } from '../../protocol/errors.ts'
import { type LinkMemory, backlogOf, identityOf, takeEpoch } from './memory.ts'
import { call, type StepContext, type StepResult, verify, applySignedTime } from './step.ts'

export async function attach(context: StepContext): Promise<StepResult> {
  const { cloud, journal, ledger, clock, randomness, memory, software, signal, log } = context
  const identity = identityOf(memory)
  memory.attachNonce ??= { text: randomness.token(), repeated: false }
  const { text: nonce, repeated } = memory.attachNonce
  memory.attachNonce.repeated = true
  const sentAt = clock.sinceBoot()
  const { highestEpoch: above } = memory
  const acknowledged = memory.epoch === above ? lastAcknowledged(memory) : 0
  const backlog = backlogOf(memory, ledger.lastEntry())
  const request = { nonce, bootId: clock.bootId, above, acknowledged, backlog, software }
  const response = await call(context, () => cloud.attach(identity, request, signal))
  const receivedAt = clock.sinceBoot()
  const answer = await verify(context, 'attach-answer', response.answer, attachAnswer)
  const { deviceId, nonce: echoed, epoch, restored } = answer
  const now = await applySignedTime(context, response, nonce)
  if (deviceId !== identity.deviceId || echoed !== nonce) {
    throw new CodedError('ANSWER_UNEXPECTED', 'The answer belongs to another attach.', { details: { deviceId } })
  }
  if (epoch <= memory.highestEpoch) {
    memory.attachNonce = null
    throw new CodedError('ANSWER_UNEXPECTED', `Epoch ${epoch} is not above all that this device had.`, {
      details: { epoch, highest: memory.highestEpoch },
    })
  }
  // The time is signed for the nonce, so after a retry the answer may be as old as the first attempt.
  if (!repeated) clock.learn({ time: now, sentAt, receivedAt })
  const cloudEnd = restored === null ? null : { entry: restored.lastEntry, head: restored.entryHead }
  await journal.attach(epoch, { isWhole: memory.fence === 'ABANDONED', cloudEnd })
  takeEpoch(memory, epoch, ledger.lastEntry())
  if (restored !== null) memory.earlier = { epoch: 0, seq: 0 }
  ledger.begin(deviceId, epoch)
  log.info({ epoch }, 'attached')
  return 'PLAN_AGAIN'
}

function lastAcknowledged({ unacknowledged, lastSeq }: LinkMemory): number {
  return unacknowledged === null ? lastSeq : unacknowledged.seq - 1
}
