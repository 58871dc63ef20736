/** Every check, in the order of the report. */
import type { Check } from './check.ts'
import { accessChecks } from './checks/access.ts'
import { authenticationChecks } from './checks/authentication.ts'
import { consumptionLimitChecks } from './checks/consumption-limits.ts'
import { instanceChecks } from './checks/instances.ts'
import { lastKeyChecks } from './checks/last-key.ts'
import { lineItemChecks } from './checks/line-items.ts'
import { rateTableChecks } from './checks/rate-tables.ts'
import { ruleChecks } from './checks/rules.ts'
import { sessionChecks } from './checks/sessions.ts'
import { usageChecks } from './checks/usage.ts'

export const CHECKS: readonly Check[] = [
  ...authenticationChecks,
  ...instanceChecks,
  ...lineItemChecks,
  ...rateTableChecks,
  ...ruleChecks,
  ...accessChecks,
  ...sessionChecks,
  ...consumptionLimitChecks,
  ...usageChecks,
  // The last one: after its failure no request is possible.
  ...lastKeyChecks,
]
