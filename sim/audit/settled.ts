/** Outstanding tokens at rest, and epochs settled for inactivity. */
import type Sqlite from 'better-sqlite3'
import type { SharedState } from './shared-state.ts'
import { query } from './query.ts'
import { type AccountRow, type DeviceAccountRow, nameOf } from './records.ts'
import { Violation } from './violation.ts'

/** Covers the cloud's look interval and messages in transit, ms. */
const TOLERANCE_MS = 10 * 60_000

interface EpochRow {
  readonly device_id: string
  readonly number: bigint
  readonly status: string
  readonly settled_at: bigint | null
  readonly quiet_since: bigint
}

export class SettledAudit {
  readonly #shared: SharedState
  readonly #settleAfterMs: number
  readonly #heardAt = new Map<string, number>()
  readonly #lastSeq = new Map<string, number>()
  #settled: ReadonlySet<string> = new Set()
  #believedMs = 0
  /** One device a day is settled without a confirmation. */
  #isLimited = false
  #confirmedAt = -Infinity

  constructor(shared: SharedState, settleAfterMs: number) {
    this.#shared = shared
    this.#settleAfterMs = settleAfterMs
  }

  /** Old segments of a restored device do not show that its epoch is still in use. */
  heard(deviceId: string, epoch: number, seq: number): void {
    const name = `${deviceId} ${epoch}`
    if (seq <= (this.#lastSeq.get(name) ?? 0)) return
    this.#lastSeq.set(name, seq)
    this.#heardAt.set(name, this.#shared.now())
  }

  /**
   * A clock of the cloud jumps. After a restart, it believes a clock that is ahead by at most half of the inactivity: the machine may
   * have been off for as long.
   */
  clockAhead(ms: number): void {
    const before = this.#toleratedMs()
    this.#believedMs = 0 < ms && ms <= this.#settleAfterMs / 2 ? before + ms : before
  }

  limit(): void {
    this.#isLimited = true
  }

  /** An administrator lets all devices be settled that are due now. */
  confirmed(): void {
    this.#confirmedAt = this.#shared.now()
  }

  /** By what clocks of the cloud that it may believe are ahead now. */
  #toleratedMs(): number {
    return Math.min(this.#believedMs, this.#shared.clocks.aheadMs)
  }

  /** No device is settled before the configured inactivity. What a restored backup had settled was judged when that happened. */
  check(database: Sqlite.Database): void {
    const sql = "SELECT device_id || ' ' || number FROM epochs WHERE settled_at IS NOT NULL"
    const known = this.#settled
    this.#settled = new Set(query(database, sql).pluck().all() as string[])
    for (const name of this.#settled) {
      if (known.has(name)) continue
      this.#shared.look('I6')
      const silentMs = this.#shared.now() - (this.#heardAt.get(name) ?? -Infinity)
      if (silentMs < this.#settleAfterMs - TOLERANCE_MS - this.#toleratedMs()) {
        throw new Violation('I6', `${name} is settled as silent, which was heard of ${silentMs} ms ago`)
      }
      this.#checkLimit(name, new Set([...known, ...this.#settled]))
    }
  }

  /** A run is shorter than a day. */
  #checkLimit(name: string, settled: ReadonlySet<string>): void {
    if (!this.#isLimited || !this.#shared.clocks.wereRightSince(-Infinity)) return
    const dueAt = (this.#heardAt.get(name) ?? -Infinity) + this.#settleAfterMs
    if (this.#confirmedAt > -Infinity && dueAt <= this.#confirmedAt + TOLERANCE_MS) return
    const others = [...settled].filter((other) => other !== name)
    if (others.length === 0) return
    throw new Violation('I6', `${name} is settled after ${others.join(', ')} without a confirmation`)
  }

  /**
   * At rest, each token is billed, free, or with a device within its time; ended epochs have none, and long inactive
   * ones are ended.
   */
  checkAtRest(database: Sqlite.Database): void {
    const epochs = new Map(
      (
        query(database, 'SELECT device_id, number, status, settled_at, quiet_since FROM epochs').all() as EpochRow[]
      ).map((row) => [`${row.device_id} ${row.number}`, row]),
    )
    const limited = new Set(
      (query(database, 'SELECT * FROM accounts').all() as AccountRow[])
        .filter(({ cap_target }) => cap_target !== null)
        .map(({ id }) => id),
    )
    const restoredAt = query(database, 'SELECT max(at) FROM last_restore').pluck().get() as bigint | null
    for (const row of query(database, 'SELECT * FROM device_accounts').all() as DeviceAccountRow[]) {
      const epoch = epochs.get(`${row.device_id} ${row.epoch}`)
      if (epoch === undefined || !limited.has(row.account)) continue
      const isOver = epoch.status === 'CLOSED' || epoch.settled_at !== null
      if (!isOver && !this.#isTooSilent(epoch, restoredAt)) continue
      this.#shared.look('I3')
      const billed = row.used - row.refunded + row.branch_used + row.presumed
      const stuck = row.granted - row.returned - row.released - billed
      if (stuck <= 0n) continue
      throw new Violation('I3', `${stuck} of ${nameOf(row)} are neither billed nor free, and cannot be used`)
    }
    this.#checkSucceeded(epochs)
  }

  /** @param restoredAt of the last restore, from which inactivity counts, as the cloud has dated it */
  #isTooSilent({ quiet_since: since }: EpochRow, restoredAt: bigint | null): boolean {
    const { clocks, now } = this.#shared
    if (clocks.rightSince === null) return false
    // Nothing is settled while a clock is wrong. What it dated in the future counts from when it is right.
    const quietSince = Number(since) > now() + TOLERANCE_MS ? 0 : Number(since)
    const begun = Math.max(clocks.rightSince, quietSince, Number(restoredAt ?? 0n))
    return now() - begun > this.#settleAfterMs + TOLERANCE_MS
  }

  /** A device that starts a new epoch with all its entries delivers them: the old one is then closed exactly. */
  #checkSucceeded(epochs: ReadonlyMap<string, EpochRow>): void {
    const { succeeded, suspects, damaged, wasRestored, entries } = this.#shared
    if (wasRestored) return
    const incomplete = new Set(
      [...entries.values()].filter(({ mayBeLost }) => mayBeLost).map(({ deviceId, epoch }) => `${deviceId} ${epoch}`),
    )
    for (const name of succeeded) {
      const [deviceId = ''] = name.split(' ')
      if (suspects.has(deviceId) || damaged.has(deviceId) || !this.#shared.isServed(deviceId)) continue
      if (incomplete.has(name)) continue
      this.#shared.look('I3')
      const status = epochs.get(name)?.status
      if (status === 'CLOSED') continue
      throw new Violation('I3', `${name} is ${String(status)} after its device has delivered all of it`)
    }
  }
}
