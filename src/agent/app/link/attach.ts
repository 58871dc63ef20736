/**
 * Getting an incarnation. The nonce lives in memory only: an answer to an attach of another life of this process, or to
 * one long ago, must not revive an incarnation that is over. An attach grants nothing.
 */
import { attachAnswer } from '../../../protocol/edge/attach.ts'
import { CodedError } from '../../../protocol/errors.ts'
import { identityOf, takeIncarnation } from './memory.ts'
import { believe, believeTime, call, type StepContext, type StepResult } from './step.ts'

export async function attach(context: StepContext): Promise<StepResult> {
  const { cloud, journal, ledger, clock, randomness, memory, options, signal, log } = context
  const identity = identityOf(memory)
  memory.attachNonce ??= { text: randomness.token(), repeated: false }
  const { text: nonce, repeated } = memory.attachNonce
  memory.attachNonce.repeated = true
  const sentAt = clock.sinceBoot()
  const request = { nonce, bootId: clock.bootId, above: memory.highestIncarnation, software: options.software }
  const said = await call(context, () => cloud.attach(identity, request, signal))
  const receivedAt = clock.sinceBoot()
  const { deviceId, nonce: echoed, incarnation } = await believe(context, 'attach-answer', said.answer, attachAnswer)
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
  await journal.attach(incarnation, memory.fence === 'ABANDONED')
  takeIncarnation(memory, incarnation, ledger.lastEntry())
  ledger.begin(incarnation)
  log.info({ incarnation }, 'attached')
  return 'PLAN_AGAIN'
}
