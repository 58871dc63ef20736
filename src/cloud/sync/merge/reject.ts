import type { AccountId } from '../../../core/accounts/account.ts'
import { formatMicro } from '../../../core/pricing/amount.ts'
import type { RulesInForce } from '../../policy/rules-in-force.ts'
import type { Epoch } from '../../storage/device-records.ts'
import { fenced } from '../../devices/epochs.ts'
import { settleEpoch } from '../grants/settle-epoch.ts'
import { keepEvidence } from './keep-evidence.ts'
import { type MergeResult, type MergeContext, ownerOf, signAnswer } from '../merge-context.ts'

/** Keeps an inconsistent segment as evidence and fences the epoch. Signed, so that the device starts a new one. */
export async function reject(
  context: MergeContext,
  problem: string,
  details: Readonly<Record<string, unknown>>,
): Promise<MergeResult> {
  await fence(context, problem)
  return refusal(context, problem, details)
}

/** Like {@link reject}, for use above the grants: all that was granted is billed, until the next epoch corrects it. */
export async function rejectOverspent(
  context: MergeContext,
  rules: RulesInForce,
  account: AccountId,
): Promise<MergeResult> {
  const { tx, device, epoch, segment, now } = context
  const problem = 'MORE_SPENT_THAN_GRANTED'
  const counter = segment.received.counters.find((each) => each.account === account)
  const record = (await tx.edge.deviceAccounts.get(device.id, epoch.number, [account])).get(account)
  const spent = (counter?.used ?? 0n) - (counter?.refunded ?? 0n)
  const granted = (record?.granted ?? 0n) - (record?.returned ?? 0n)
  // Its returns exceed the grant, or it has refunded use that was never granted.
  if (spent <= granted) return reject(context, problem, { account })
  const shown = `${problem}: ${formatMicro(spent)} tokens used of ${formatMicro(granted)} granted of ${account}.`
  const ended = await fence(context, shown)
  if (ended.settledAt === null) await settleEpoch({ tx, device, epoch: ended, now, rules }, 'CHARGED')
  return refusal(context, problem, { account, used: String(spent), granted: String(granted) })
}

async function fence(context: MergeContext, problem: string): Promise<Epoch> {
  const { tx, epoch, now, present } = context
  await keepEvidence(context, { epoch: epoch.number, kind: 'REJECTED', problem })
  const ended: Epoch = { ...fenced(epoch, 'REJECTED', { now, present }), rejected: true }
  await tx.edge.epochs.save(ended)
  return ended
}

async function refusal(
  { deps, epoch, segment }: MergeContext,
  problem: string,
  details: Readonly<Record<string, unknown>>,
): Promise<MergeResult> {
  const { hash } = segment.header
  const answer = await signAnswer(deps, { outcome: 'REJECTED', ...ownerOf(epoch), hash, problem })
  return {
    accepted: false,
    problem: `The segment does not add up: ${problem}.`,
    details: { problem, ...details },
    answer,
  }
}
