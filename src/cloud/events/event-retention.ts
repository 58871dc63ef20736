/** Deletes old events that are not usage, once every sink has passed them. See docs/explanation/events.md. */
import type { Store } from '../storage/store.ts'
import type { Log } from '../../protocol/log.ts'

const ROWS_MAX = 500

export interface EventRetentionDeps {
  readonly store: Pick<Store, 'transaction'>
  readonly now: () => number
  readonly trustsClock: () => boolean
  /** Read at each step. 0: forever. */
  readonly terms: () => { readonly retentionMs: number; readonly undeliveredRetentionMs: number }
  readonly log: Pick<Log, 'warn'>
}

export class EventRetention {
  readonly #deps: EventRetentionDeps
  /** Older ones were looked at in this round. */
  #after = 0n

  constructor(deps: EventRetentionDeps) {
    this.#deps = deps
  }

  /** Deletes some events. Returns whether there may be more. */
  async step(): Promise<boolean> {
    const { store, now, trustsClock, terms, log } = this.#deps
    const { retentionMs, undeliveredRetentionMs } = terms()
    if (retentionMs === 0 || !trustsClock()) return false
    const before = now() - retentionMs
    const undeliveredBefore = undeliveredRetentionMs === 0 ? null : Math.min(before, now() - undeliveredRetentionMs)
    const range = { after: this.#after, before, undeliveredBefore, limit: ROWS_MAX }
    const { next, undelivered } = await store.transaction((tx) => tx.events.forget(range))
    this.#after = next ?? 0n
    if (undelivered > 0) log.warn({ events: undelivered }, 'events were deleted that a sink has not received')
    return next !== null
  }
}
