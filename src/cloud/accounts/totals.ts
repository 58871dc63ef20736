/** Totals for operators; no decision uses them. Each counts at most {@link ROWS_COUNTED_MAX} rows to bound its cost. */
import type { Micro } from '../../core/pricing/amount.ts'
import type { SessionState } from '../../core/sessions/session.ts'

/** A total of this size means "this many or more". */
export const ROWS_COUNTED_MAX = 100_000

export interface Totals {
  /** Includes closed sessions that are not yet deleted. */
  readonly sessions: ReadonlyMap<SessionState, number>
  readonly outbox: number
  readonly grantedOut: Micro
}

export interface TotalsReader {
  totals(): Promise<Totals>
}
