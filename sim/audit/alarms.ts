/** No alarm about a device that nobody has copied or restored, and one incarnation of each that can earn grants. */
import type Sqlite from 'better-sqlite3'
import type { Facts } from './facts.ts'
import { query } from './query.ts'
import { Violation } from './violation.ts'

export class AlarmAudit {
  readonly #facts: Facts

  constructor(facts: Facts) {
    this.#facts = facts
  }

  checkAlarms(database: Sqlite.Database): void {
    this.#facts.look('I6')
    const alarms = query(
      database,
      `SELECT device_id, incarnation, kind AS what, problem FROM evidence UNION ALL
           SELECT device_id, number, fence_reason, NULL FROM incarnations WHERE fence_reason IN ('FORKED', 'REJECTED')`,
    ).all() as { device_id: string; incarnation: bigint; what: string; problem: string | null }[]
    for (const { device_id, incarnation, what, problem } of alarms) {
      if (this.#facts.suspects.has(device_id)) continue
      if (what === 'REMNANT' && problem === null && this.#hasLostSegments(device_id)) continue
      const why = problem === null ? '' : ` (${problem})`
      throw new Violation(
        'I6',
        `alarm ${what}${why} on incarnation ${incarnation} of ${device_id}, which nobody touched`,
      )
    }
    const twice = query(
      database,
      `SELECT device_id, count(*) AS active FROM incarnations WHERE status = 'ACTIVE' GROUP BY device_id HAVING count(*) > 1`,
    ).get() as { device_id: string; active: bigint } | undefined
    if (twice !== undefined) {
      throw new Violation('I1', `${twice.active} incarnations of ${twice.device_id} can earn grants, of 1`)
    }
    const late = query(
      database,
      `SELECT incarnations.device_id, number, devices.incarnation AS current FROM incarnations
           JOIN devices ON devices.id = device_id WHERE status = 'ACTIVE' AND number <> devices.incarnation`,
    ).get() as { device_id: string; number: bigint; current: bigint } | undefined
    if (late !== undefined) {
      throw new Violation(
        'I1',
        `incarnation ${late.number} of ${late.device_id} can earn grants, but ${late.current} is current`,
      )
    }
  }

  /** What a restored twin asks for again a disk that was full has not kept: the rest comes as a remnant, and says so. */
  #hasLostSegments(deviceId: string): boolean {
    if (this.#facts.damaged.has(deviceId)) return true
    if (!this.#facts.wasRestored) return false
    // By a clock that jumps, what was delivered is older than it has to be kept.
    if (this.#facts.isRetentionShort || this.#facts.twinClockWrong) return true
    return [...this.#facts.entries.values()].some(
      (entry) => entry.deviceId === deviceId && this.#facts.wereFull.has(entry.machine),
    )
  }
}
