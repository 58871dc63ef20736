import { type AccountId, actionAccount, lineAccount } from '../../core/accounts/account.ts'
import type { ClockReading } from '../../core/rules/decision.ts'
import { type Period, type Policy, TOLERANCE_MS } from '../../core/rules/policy.ts'

/** Accounts that may be charged within the horizon; a requester's limit is added only with its first request. */
export function accountsInSight(policy: Policy, { now }: ClockReading, horizonMs: number): readonly AccountId[] {
  const until = now + horizonMs
  const widen = policy.timezoneTolerant ? TOLERANCE_MS : 0
  const accounts: AccountId[] = []
  for (const item of policy.lineItems) {
    const usable = item.elastic && item.state === 'DEPLOYED'
    if (!usable || item.startsAt - widen > until || item.endsAt + widen < now) continue
    for (const period of item.periods) {
      if (touches(period, now, until)) accounts.push(lineAccount(policy.instanceId, item.id, period.index))
    }
    for (const action of item.actions) {
      if (action.allocation !== null) accounts.push(actionAccount(policy.instanceId, item.id, action.id))
    }
  }
  return accounts
}

function touches({ from, until }: Period, begin: number, end: number): boolean {
  return (from === null || from <= end) && (until === null || begin < until)
}
