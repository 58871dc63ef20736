/**
 * Status codes of requested items: three digits in v1.0, four in v1.1. The interface defines 101, 102 and 201; the
 * other codes are this project's choice (docs/decisions/item-status-codes.md). Clients should decide by the first
 * digit: 1 is not an error, 2 is refused.
 */
import type { RefusalReason } from '../../core/rules/decision.ts'

export type ApiVersion = 'v1.0' | 'v1.1'
export const API_VERSIONS: readonly ApiVersion[] = ['v1.0', 'v1.1']

export type ItemStatus = 'GRANTED' | 'NOT_CHARGED' | RefusalReason

export const ITEM_STATUS: Readonly<Record<ItemStatus, { 'v1.0': string; 'v1.1': string; description: string }>> = {
  GRANTED: { 'v1.0': '101', 'v1.1': '1001', description: 'Successfully checked out' },
  NOT_CHARGED: { 'v1.0': '102', 'v1.1': '1002', description: 'No Status' },
  ITEM_NOT_RATED: { 'v1.0': '201', 'v1.1': '2001', description: 'Item not found in any effective rate table' },
  INSUFFICIENT_TOKENS: { 'v1.0': '202', 'v1.1': '2002', description: 'Insufficient tokens' },
  DENIED_BY_RULE: { 'v1.0': '203', 'v1.1': '2003', description: 'Denied by rule of access' },
  ALLOCATION_EXHAUSTED: { 'v1.0': '204', 'v1.1': '2004', description: 'Allocation exhausted' },
  CONSUMPTION_LIMIT_REACHED: { 'v1.0': '205', 'v1.1': '2005', description: 'Consumption limit reached' },
  NO_USABLE_LINE_ITEM: { 'v1.0': '206', 'v1.1': '2006', description: 'No usable line item' },
  FORMULA_FAILED: { 'v1.0': '207', 'v1.1': '2007', description: 'Formula could not be evaluated' },
  GRANT_EXHAUSTED: {
    'v1.0': '208',
    'v1.1': '2008',
    description: 'Tokens granted to this device used up; retry online',
  },
  GRANT_EXPIRED: { 'v1.0': '209', 'v1.1': '2009', description: 'Grant of this device expired; retry online' },
  POOL_IN_RECOVERY: {
    'v1.0': '211',
    'v1.1': '2011',
    description:
      'Tokens withheld: the cloud was restored from a backup and may have sold them before; an administrator can end the recovery',
  },
  CLOCK_UNDECIDED: { 'v1.0': '210', 'v1.1': '2010', description: 'Clock not trusted and policy refuses; retry online' },
}
