/**
 * Status codes of requested items. The interface defines 101, 102 and 201; the others are this project's choice
 * (docs/decisions/item-status-codes.md). The first digit decides: 1 is not an error, 2 is refused.
 */
import { REFUSAL_REASONS, type RefusalReason } from '../../core/rules/refusal-reasons.ts'

export type ApiVersion = 'v1.0' | 'v1.1'
export const API_VERSIONS: readonly ApiVersion[] = ['v1.0', 'v1.1']

export type ItemStatus = 'GRANTED' | 'NOT_CHARGED' | RefusalReason

interface StatusCodes extends Readonly<Record<ApiVersion, string>> {
  readonly description: string
}

const statusOf = (code: string, description: string): StatusCodes => ({
  'v1.0': code,
  'v1.1': `${code.slice(0, 1)}0${code.slice(1)}`,
  description,
})

export const ITEM_STATUS: Readonly<Record<ItemStatus, StatusCodes>> = {
  GRANTED: statusOf('101', 'Successfully checked out'),
  NOT_CHARGED: statusOf('102', 'No Status'),
  ...(Object.fromEntries(
    Object.entries(REFUSAL_REASONS).map(([reason, { code, text }]) => [reason, statusOf(code, text)]),
  ) as Record<RefusalReason, StatusCodes>),
}
