/** No alarm for a device that was not copied or restored, and at most one active epoch per device. */
import type Sqlite from 'better-sqlite3'
import type { SharedState } from './shared-state.ts'
import { query } from './query.ts'
import { Violation } from './violation.ts'

/** Devices keep delivered segments for a week, and a run takes hours. */
const RETAINED_AT_LEAST_MS = 6 * 86_400_000

export class AlarmAudit {
  readonly #shared: SharedState

  constructor(shared: SharedState) {
    this.#shared = shared
  }

  checkAlarms(database: Sqlite.Database): void {
    this.#shared.look('I6')
    const alarms = query(
      database,
      `SELECT device_id, epoch, kind AS what, problem FROM evidence UNION ALL
           SELECT device_id, number, fence_reason, NULL FROM epochs WHERE fence_reason IN ('FORKED', 'REJECTED')`,
    ).all() as { device_id: string; epoch: bigint; what: string; problem: string | null }[]
    for (const { device_id, epoch, what, problem } of alarms) {
      if (this.#shared.suspects.has(device_id)) continue
      if (what === 'UNDELIVERED_RANGE' && problem === null && this.#hasLostSegments(device_id, epoch)) continue
      const why = problem === null ? '' : ` (${problem})`
      throw new Violation('I6', `alarm ${what}${why} on the untouched epoch ${epoch} of ${device_id}`)
    }
    const twice = query(
      database,
      `SELECT device_id, count(*) AS active FROM epochs WHERE status = 'ACTIVE' GROUP BY device_id HAVING count(*) > 1`,
    ).get() as { device_id: string; active: bigint } | undefined
    if (twice !== undefined) {
      throw new Violation('I1', `${twice.active} epochs of ${twice.device_id} can earn grants, of 1`)
    }
    const late = query(
      database,
      `SELECT epochs.device_id, number, devices.epoch AS current FROM epochs
           JOIN devices ON devices.id = device_id WHERE status = 'ACTIVE' AND number <> devices.epoch`,
    ).get() as { device_id: string; number: bigint; current: bigint } | undefined
    if (late !== undefined) {
      throw new Violation(
        'I1',
        `epoch ${late.number} of ${late.device_id} can earn grants, but ${late.current} is current`,
      )
    }
  }

  /**
   * Whether a restored cloud misses segments of an epoch that the device has left, or that a full disk did not keep: the
   * rest arrives as undelivered entries.
   */
  #hasLostSegments(deviceId: string, epoch: bigint): boolean {
    if (this.#shared.lostByCloud.has(`${deviceId} ${epoch}`)) return true
    if (this.#shared.damaged.has(deviceId)) return true
    if (!this.#shared.wasRestored) return false
    if (this.#shared.isRetentionShort) return true
    // To a device whose time was wrong by days, delivered segments may look older than their retention.
    const { entries, wereFull, clocks } = this.#shared
    return [...entries.values()].some(
      ({ deviceId: id, machine }) =>
        id === deviceId && (wereFull.has(machine) || clocks.wrongByMs(machine, Infinity) > RETAINED_AT_LEAST_MS),
    )
  }
}
