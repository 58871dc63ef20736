/**
 * Totals of what the store holds, for the operator's eyes: nothing is decided by them. Each counts at most
 * {@link ROWS_COUNTED_MAX} rows, so that looking costs the same however much there is.
 */
import type { Micro } from '../../core/pricing/amount.ts'
import type { SessionState } from '../../core/sessions/session.ts'

/** Where counting ends; a total that stands there means that many, or more. */
export const ROWS_COUNTED_MAX = 100_000

export interface Totals {
  /** Those that are kept, ended ones too, until they are forgotten. */
  readonly sessions: ReadonlyMap<SessionState, number>
  /** Change notifications to devices that are not published yet. */
  readonly outbox: number
  /** Tokens of line items that lie on devices: granted, and not returned. */
  readonly grantedOut: Micro
}

export interface TotalsReader {
  totals(): Promise<Totals>
}
