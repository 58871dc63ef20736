/** What is out of the pools when everything is at rest, and whom the twin has given up waiting for. */
import type Sqlite from 'better-sqlite3'
import type { Facts } from './facts.ts'
import { query } from './query.ts'
import { type AccountRow, type DeviceAccountRow, nameOf } from './records.ts'
import { Violation } from './violation.ts'

/** The twin looks every so often only, and a message may be under way, ms. */
const TOLERANCE_MS = 10 * 60_000

interface IncarnationRow {
  readonly device_id: string
  readonly number: bigint
  readonly status: string
  readonly settled_at: bigint | null
  readonly quiet_since: bigint
}

export class SettledAudit {
  readonly #facts: Facts
  readonly #settleAfterMs: number
  /** When the twin was last known to have heard of each incarnation, true time. */
  readonly #heardAt = new Map<string, number>()
  readonly #settled = new Set<string>()

  constructor(facts: Facts, settleAfterMs: number) {
    this.#facts = facts
    this.#settleAfterMs = settleAfterMs
  }

  heard(deviceId: string, incarnation: number): void {
    this.#heardAt.set(`${deviceId} ${incarnation}`, this.#facts.now())
  }

  /** Nobody is given up before he has been silent for as long as the settings say. */
  check(database: Sqlite.Database): void {
    const sql = "SELECT device_id || ' ' || number FROM incarnations WHERE settled_at IS NOT NULL"
    for (const name of query(database, sql).pluck().all() as string[]) {
      if (this.#settled.has(name)) continue
      this.#settled.add(name)
      this.#facts.look('I6')
      const silentMs = this.#facts.now() - (this.#heardAt.get(name) ?? -Infinity)
      if (silentMs >= this.#settleAfterMs - TOLERANCE_MS) continue
      throw new Violation('I6', `${name} is settled as silent, which was heard of ${silentMs} ms ago`)
    }
  }

  /** The twin knows less than it did. */
  forget(): void {
    this.#settled.clear()
  }

  /**
   * When everything is at rest, a token is billed, free, or held by a device that is still within its time: what is over holds
   * nothing, and what was silent for too long is over.
   */
  checkAtRest(database: Sqlite.Database): void {
    const incarnations = new Map(
      (
        query(
          database,
          'SELECT device_id, number, status, settled_at, quiet_since FROM incarnations',
        ).all() as IncarnationRow[]
      ).map((row) => [`${row.device_id} ${row.number}`, row]),
    )
    const limited = new Set(
      (query(database, 'SELECT * FROM accounts').all() as AccountRow[])
        .filter(({ cap_target }) => cap_target !== null)
        .map(({ id }) => id),
    )
    for (const row of query(database, 'SELECT * FROM device_accounts').all() as DeviceAccountRow[]) {
      const incarnation = incarnations.get(`${row.device_id} ${row.incarnation}`)
      if (incarnation === undefined || !limited.has(row.account)) continue
      const isOver = incarnation.status === 'CLOSED' || incarnation.settled_at !== null
      if (!isOver && !this.#isTooSilent(incarnation)) continue
      this.#facts.look('I3')
      const billed = row.used - row.refunded + row.branch_used + row.presumed
      const stuck = row.granted - row.returned - row.released - billed
      if (stuck <= 0n) continue
      throw new Violation('I3', `${stuck} of ${nameOf(row)} are neither billed nor free, and nobody can use them`)
    }
    this.#checkSucceeded(incarnations)
  }

  #isTooSilent({ quiet_since: since }: IncarnationRow): boolean {
    const { twinClockWrong, wasRestored, now } = this.#facts
    // Of a twin that was put back, silence counts from then on.
    return !twinClockWrong && !wasRestored && now() - Number(since) > this.#settleAfterMs + TOLERANCE_MS
  }

  /** A device that begins anew with all that it has recorded delivers it: by then the incarnation is closed, exactly. */
  #checkSucceeded(incarnations: ReadonlyMap<string, IncarnationRow>): void {
    const { succeeded, suspects, damaged, wasRestored, entries } = this.#facts
    if (wasRestored) return
    const incomplete = new Set(
      [...entries.values()]
        .filter(({ mayBeLost }) => mayBeLost)
        .map(({ deviceId, incarnation }) => `${deviceId} ${incarnation}`),
    )
    for (const name of succeeded) {
      const [deviceId = ''] = name.split(' ')
      if (suspects.has(deviceId) || damaged.has(deviceId) || !this.#facts.isServed(deviceId)) continue
      if (incomplete.has(name)) continue
      this.#facts.look('I3')
      const status = incarnations.get(name)?.status
      if (status === 'CLOSED') continue
      throw new Violation('I3', `${name} is ${String(status)} after its device has delivered all of it`)
    }
  }
}
