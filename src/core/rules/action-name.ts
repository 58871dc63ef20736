import { type AccountId, parseAccount } from '../accounts/account.ts'
import type { Policy } from './policy.ts'

/**
 * The name of the action of an account, or that of its condition.
 * @param policyOf gets the instance in lower case
 * @returns null: neither has a name, or the account is not of an action
 */
export function actionNameOf(
  account: AccountId,
  policyOf: (instanceId: string) => Pick<Policy, 'lineItems' | 'conditions'> | undefined,
): string | null {
  const parsed = parseAccount(account)
  if (parsed?.kind !== 'action') return null
  const policy = policyOf(parsed.instanceId.toLowerCase())
  const actions = policy?.lineItems.find(({ id }) => id === parsed.lineItemId)?.actions
  const action = actions?.find(({ id }) => id === parsed.actionId)
  const condition = policy?.conditions.find(({ id }) => id === action?.conditionId)
  return [action?.name, condition?.name].find((name) => typeof name === 'string' && name !== '') ?? null
}
