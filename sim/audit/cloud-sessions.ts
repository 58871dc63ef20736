/**
 * The cloud's sessions: each interval is refunded once, by the part of it that was not used, and no session is charged again
 * and again without a heartbeat.
 */
import type Sqlite from 'better-sqlite3'
import type { StoredCharge } from '../../src/core/sessions/stored-charge.ts'
import type { MetaData } from '../request-body.ts'
import { Books } from './books.ts'
import { query } from './query.ts'
import type { CloudUsageRow } from './records.ts'
import type { SharedState } from './shared-state.ts'
import { Violation } from './violation.ts'

interface SessionRow {
  readonly id: string
  readonly state: string
  readonly since: bigint
  readonly charge: string | null
}

/** The interval that a session has paid for. */
export interface Interval {
  readonly from: bigint
  readonly until: bigint
  /** Micro-tokens by item: its position in the request. */
  readonly charged: Books
}

interface StoredInterval extends Interval {
  /** When the cloud stored it. */
  readonly seenAt: number
  /** As stored. */
  readonly text: string
}

export class CloudSessionAudit {
  readonly #shared: SharedState
  readonly #intervals = new Map<string, StoredInterval>()
  /** Time of the first automatic charge without a heartbeat after it, by session. */
  readonly #silentSince = new Map<string, { readonly since: bigint; readonly seenAt: number }>()

  readonly #lastHeartbeat = new Map<string, bigint>()

  constructor(shared: SharedState) {
    this.#shared = shared
  }

  /** @param at by the clock of the cloud */
  heartbeats(sessionId: string, at: number): void {
    this.#silentSince.delete(sessionId)
    this.#lastHeartbeat.set(sessionId, BigInt(at))
  }

  /** @param rows of one charge */
  charged(sessionId: string, rows: readonly CloudUsageRow[]): void {
    this.#shared.look('I4')
    const interval = this.#intervals.get(sessionId)
    // The new one is read after this step.
    this.#intervals.delete(sessionId)
    const [first] = rows
    // A heartbeat makes the charge that is due, and then counts for it.
    if (first?.operation !== 'AUTOMATIC_CHARGE' || first.usage_time === this.#lastHeartbeat.get(sessionId)) {
      this.#silentSince.delete(sessionId)
      return
    }
    const now = this.#shared.now()
    const silent = this.#silentSince.get(sessionId) ?? { since: first.usage_time, seenAt: now }
    this.#silentSince.set(sessionId, silent)
    const { since, seenAt } = silent
    const { from, until } = interval ?? { from: 0n, until: first.usage_time }
    // A cloud that was down charges late, and ends the session at once.
    const dueAt = until < first.usage_time ? until : first.usage_time
    const isInTime = dueAt - since <= (until - from) / 2n
    // Only where a clock of the cloud was wrong since then may the instants differ by more than the time between.
    const knownSince = Math.min(seenAt, interval?.seenAt ?? now)
    if (isInTime || !this.#shared.clocks.wereRightSince(knownSince)) return
    throw new Violation('I4', `the session ${sessionId} is charged again, without a heartbeat since ${since}`)
  }

  /** @param rows of one refund */
  refunded(sessionId: string, rows: readonly CloudUsageRow[]): void {
    this.#shared.look('I4')
    const interval = this.#intervals.get(sessionId)
    this.#intervals.delete(sessionId)
    // Charged and refunded in one step.
    if (interval === undefined) return
    const back = new Books()
    for (const row of rows) back.add(itemOf(row), -row.tokens)
    const at = rows[0]?.usage_time ?? 0n
    for (const [item, tokens] of interval.charged.entries()) {
      const refunded = back.get(item)
      if (refunded === unused(tokens, interval, at) || refunded === tokens) continue
      const expected = `${unused(tokens, interval, at)} of ${tokens}`
      throw new Violation('I4', `item ${item} of the session ${sessionId} gets ${refunded} back instead of ${expected}`)
    }
  }

  /** Reads the running intervals, and finds those that ended without a refund. */
  read(database: Sqlite.Database): void {
    const sql = 'SELECT id, state, since, charge FROM sessions WHERE kept_by IS NULL'
    for (const { id, state, since, charge } of query(database, sql).all() as SessionRow[]) {
      const interval = this.#intervals.get(id)
      if (charge !== null) {
        if (interval?.text !== charge) this.#intervals.set(id, intervalOf(charge, this.#shared.now()))
      } else if (interval !== undefined && state !== 'FAILED') {
        this.#shared.look('I3')
        this.#intervals.delete(id)
        const lost = [...interval.charged.entries()].find(([, tokens]) => unused(tokens, interval, since) > 0n)
        if (lost !== undefined) {
          throw new Violation(
            'I3',
            `the session ${id} is ${state} and gets nothing of ${lost[1]} back for item ${lost[0]}`,
          )
        }
      }
    }
  }

  forget(): void {
    this.#intervals.clear()
    this.#silentSince.clear()
  }
}

function intervalOf(text: string, seenAt: number): StoredInterval {
  const { from, until, items } = JSON.parse(text) as StoredCharge
  const charged = new Books()
  for (const { metaData, parts } of items) {
    for (const part of parts) charged.add(itemOf({ meta_data: metaData }), BigInt(part.charged))
  }
  return { text, seenAt, from: BigInt(from), until: BigInt(until), charged }
}

function itemOf({ meta_data: text }: Pick<CloudUsageRow, 'meta_data'>): string {
  return String((JSON.parse(text ?? '{}') as MetaData).at)
}

/** Rounded half to even. */
export function unused(tokens: bigint, { from, until }: Interval, at: bigint): bigint {
  const restMs = until - (at > from ? at : from)
  if (restMs <= 0n) return 0n
  const [product, intervalMs] = [tokens * restMs, until - from]
  const floor = product / intervalMs
  const twice = 2n * (product % intervalMs)
  return twice > intervalMs || (twice === intervalMs && floor % 2n === 1n) ? floor + 1n : floor
}
