import fc from '../../support/fast-check.ts'
import { describe, expect, it } from 'vitest'
import { Clock, type TimeSource } from '../../../src/agent/runtime/clock.ts'

const BEGIN = Date.UTC(2026, 0, 1)
const HOUR = 3_600_000

/** A device whose boot-time clock runs too fast or too slow, and whose wall clock shows anything. */
class Machine implements TimeSource {
  bootId = 'boot-1'
  truth = BEGIN
  wallError = 0
  #ppm: number
  #bootedAt = BEGIN - 50_000

  constructor(ppm = 0) {
    this.#ppm = ppm
  }

  wall(): number {
    return this.truth + this.wallError
  }

  /** In steps of 10 ms, as the kernel shows it. */
  sinceBoot(): number {
    return Math.floor(((this.truth - this.#bootedAt) * (1 + this.#ppm / 1e6)) / 10) * 10
  }

  reboot(offMs: number): void {
    this.truth += offMs
    this.#bootedAt = this.truth
    this.bootId = `${this.bootId}'`
  }
}

/** A signed time that the cloud gave halfway through a round trip of `roundTripMs`. */
function hearTime(machine: Machine, clock: Clock, roundTripMs: number): void {
  const sentAt = machine.sinceBoot()
  machine.truth += roundTripMs / 2
  const time = machine.truth
  machine.truth += roundTripMs / 2
  clock.learn({ time, sentAt, receivedAt: machine.sinceBoot() })
}

describe('the clock', () => {
  it('knows only the passed time before the first contact with the cloud', () => {
    const machine = new Machine()
    const clock = new Clock(machine, null)
    expect(clock.reading()).toMatchObject({ now: machine.wall(), latest: null })
  })

  it('takes the width of its interval from the round trip, not from the wall clock', () => {
    const machine = new Machine()
    const clock = new Clock(machine, null)
    machine.wallError = -400 * 24 * HOUR
    hearTime(machine, clock, 200)
    const { now, earliest, latest } = clock.reading()
    expect(latest! - earliest).toBeLessThan(240)
    expect(Math.abs(now - machine.truth)).toBeLessThan(130)
  })

  it('widens by 200 ppm, suspend included', () => {
    const machine = new Machine()
    const clock = new Clock(machine, null)
    hearTime(machine, clock, 0)
    machine.truth += 10 * 24 * HOUR
    const { earliest, latest } = clock.reading()
    const drift = (10 * 24 * HOUR * 200) / 1e6
    expect(latest! - earliest).toBeGreaterThanOrEqual(2 * drift)
    expect(latest! - earliest).toBeLessThan(2 * drift + 50)
  })

  it('gains nothing from a wall clock that is set back or forth', () => {
    const machine = new Machine()
    const clock = new Clock(machine, null)
    hearTime(machine, clock, 50)
    const before = clock.reading()
    for (const error of [-10 * 365 * 24 * HOUR, 10 * 365 * 24 * HOUR, 0]) {
      machine.wallError = error
      expect(clock.reading()).toEqual(before)
    }
  })

  it('knows the time to within the round trip as soon as it gets a signed time', () => {
    const machine = new Machine()
    const clock = new Clock(machine, null)
    const receivedAt = machine.sinceBoot()
    clock.learn({ time: BEGIN, sentAt: receivedAt - 1_000_000, receivedAt })
    // 11 ms for each reading of a clock that shows steps of 10, and 200 ppm of the round trip.
    expect(clock.reading()).toMatchObject({ earliest: BEGIN - 11, latest: BEGIN + 1_000_000 + 2 * 11 + 201 })
    expect([clock.bootId, clock.wall()]).toEqual([machine.bootId, machine.wall()])
  })

  it('keeps its bounds when a signed time has wider ones', () => {
    const machine = new Machine()
    const clock = new Clock(machine, null)
    hearTime(machine, clock, 10)
    const before = clock.reading()
    const receivedAt = machine.sinceBoot()
    clock.learn({ time: before.earliest - 5_000, sentAt: receivedAt - 20_000, receivedAt })
    expect(clock.reading()).toEqual(before)
  })

  it('starts again if the time since the same boot is less than the stored one', () => {
    const machine = new Machine()
    const stored = { bootId: machine.bootId, sinceBoot: machine.sinceBoot() + 10, earliest: BEGIN, latest: BEGIN + 5 }
    expect(new Clock(machine, stored).reading().latest).toBeNull()
    expect(new Clock(machine, { ...stored, sinceBoot: machine.sinceBoot() }).reading().latest).toBe(BEGIN + 5)
  })

  it('continues exactly after a restart in the same boot', () => {
    const machine = new Machine()
    const clock = new Clock(machine, null)
    hearTime(machine, clock, 100)
    machine.truth += HOUR
    const stored = clock.stored()
    machine.truth += HOUR
    const again = new Clock(machine, stored)
    const [before, after] = [clock.reading(), again.reading()]
    expect(Math.abs(after.earliest - before.earliest)).toBeLessThan(20)
    expect(Math.abs(after.latest! - before.latest!)).toBeLessThan(30)
  })

  it('after a reboot begins where it was at the earliest, and has no latest', () => {
    const machine = new Machine()
    const clock = new Clock(machine, null)
    hearTime(machine, clock, 100)
    const stored = clock.stored()
    machine.reboot(5 * HOUR)
    machine.wallError = -365 * 24 * HOUR
    machine.truth += 60_000
    const { now, earliest, latest } = new Clock(machine, stored).reading()
    expect(latest).toBeNull()
    expect(earliest).toBeGreaterThanOrEqual(stored.earliest + 59_000)
    expect(earliest).toBeLessThanOrEqual(machine.truth)
    // The wall clock is a year behind: the estimate is not before what is known.
    expect(now).toBe(earliest)
  })

  it('after a reboot uses a later wall clock as its estimate, until the next contact with the cloud', () => {
    const machine = new Machine()
    const clock = new Clock(machine, null)
    hearTime(machine, clock, 100)
    const stored = clock.stored()
    machine.reboot(5 * HOUR)
    machine.wallError = 30 * 24 * HOUR
    const rebooted = new Clock(machine, stored)
    expect(rebooted.reading()).toMatchObject({ now: machine.wall(), latest: null })
    expect(rebooted.reading().earliest).toBeLessThanOrEqual(machine.truth)
    hearTime(machine, rebooted, 100)
    const { now, latest } = rebooted.reading()
    expect(Math.abs(now - machine.truth)).toBeLessThan(1_000)
    expect(latest).toBeLessThan(machine.wall())
  })

  it('stays within the range of instants with any wall clock', () => {
    const machine = new Machine()
    machine.wallError = Number.MAX_SAFE_INTEGER / 2
    expect(new Clock(machine, null).reading().now).toBe(253_402_300_799_999)
    machine.wallError = -Number.MAX_SAFE_INTEGER / 2
    expect(new Clock(machine, null).reading().now).toBeGreaterThanOrEqual(0)
  })

  it('trusts signed time more than a boot-time clock that is worse than its bound', () => {
    const machine = new Machine(5_000)
    const clock = new Clock(machine, null)
    hearTime(machine, clock, 20)
    machine.truth += 24 * HOUR
    hearTime(machine, clock, 20)
    const { earliest, latest } = clock.reading()
    expect(earliest).toBeLessThanOrEqual(machine.truth)
    expect(latest!).toBeGreaterThanOrEqual(machine.truth)
  })

  it('always contains the true time, over delays, drift, restarts and reboots, and its earlier end never falls', () => {
    const step = fc.oneof(
      fc.record({ do: fc.constant('pass' as const), ms: fc.integer({ min: 0, max: 30 * 24 * HOUR }) }),
      fc.record({ do: fc.constant('hear' as const), ms: fc.integer({ min: 0, max: 60_000 }) }),
      fc.record({ do: fc.constant('restart' as const), ms: fc.integer({ min: 0, max: HOUR }) }),
      fc.record({ do: fc.constant('reboot' as const), ms: fc.integer({ min: 0, max: 24 * HOUR }) }),
      fc.record({ do: fc.constant('set' as const), ms: fc.integer({ min: -(10 ** 12), max: 10 ** 12 }) }),
    )
    fc.assert(
      fc.property(fc.integer({ min: -190, max: 190 }), fc.array(step, { maxLength: 40, size: 'max' }), (ppm, steps) => {
        const machine = new Machine(ppm)
        let clock = new Clock(machine, null)
        let low = 0
        for (const { do: what, ms } of steps) {
          if (what === 'pass') machine.truth += ms
          else if (what === 'hear') hearTime(machine, clock, ms)
          else if (what === 'set') machine.wallError = ms
          else {
            const stored = clock.stored()
            if (what === 'reboot') machine.reboot(ms)
            else machine.truth += ms
            clock = new Clock(machine, stored)
          }
          const { now, earliest, latest } = clock.reading()
          expect(earliest).toBeLessThanOrEqual(machine.truth)
          if (latest !== null) expect(latest).toBeGreaterThanOrEqual(machine.truth)
          expect(now).toBeGreaterThanOrEqual(earliest)
          if (latest !== null) expect(now).toBeLessThanOrEqual(latest)
          expect(earliest).toBeGreaterThanOrEqual(low - 1)
          low = earliest
        }
      }),
    )
  })
})
