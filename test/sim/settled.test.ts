import Sqlite from 'better-sqlite3'
import { expect, test } from 'vitest'
import { SettledAudit } from '../../sim/audit/settled.ts'
import { SharedState } from '../../sim/audit/shared-state.ts'
import { Violation } from '../../sim/audit/violation.ts'

const MINUTE = 60_000
const HOUR = 60 * MINUTE

function site() {
  let now = 0
  const shared = new SharedState(() => now)
  const audit = new SettledAudit(shared, 4 * HOUR)
  const database = new Sqlite(':memory:')
  database.exec('CREATE TABLE epochs (device_id TEXT, number INTEGER, settled_at INTEGER)')
  audit.heard('device', 1, 1)
  return {
    /** @param ms what the clocks of the cloud are ahead by from now on */
    jump(ms: number): void {
      audit.clockAhead(ms)
      shared.clocks.set([ms])
    },
    settleAt(instant: number): void {
      now = instant
      database.exec("INSERT INTO epochs VALUES ('device', 1, 1)")
      audit.check(database)
    },
    setRight: () => shared.clocks.set([0]),
  }
}

test('a device may be settled early by a clock that is ahead by up to half of the inactivity', () => {
  const { jump, settleAt } = site()
  jump(2 * HOUR)
  expect(() => settleAt(2 * HOUR)).not.toThrow()
})

test('no device may be settled early after the clocks are right again', () => {
  const { jump, setRight, settleAt } = site()
  jump(2 * HOUR)
  setRight()
  expect(() => settleAt(2 * HOUR)).toThrow(Violation)
})

test('no device may be settled early by a clock that is ahead by more', () => {
  const { jump, settleAt } = site()
  jump(2 * HOUR + 1)
  expect(() => settleAt(3 * HOUR)).toThrow(Violation)
})
