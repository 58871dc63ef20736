// Which end of the interval that holds the true time each rule goes by: the statements of docs/explanation/architecture.md, section Time.
import fc from '../../support/fast-check.ts'
import { describe, expect, it } from 'vitest'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { decimal } from '../../../src/core/pricing/amount.ts'
import { compilePolicy } from '../../../src/core/rules/compile.ts'
import type { ClockReading } from '../../../src/core/rules/decision.ts'
import { type Policy, TOLERANCE_MS } from '../../../src/core/rules/policy.ts'

const DAY = 86_400_000

/** The true time is in the interval, and so is the estimate. */
const readings = fc
  .tuple(
    fc.integer({ min: 0, max: 40 }),
    fc.integer({ min: 0, max: 40 }),
    fc.double({ min: 0, max: 1, noNaN: true }),
    fc.boolean(),
  )
  .map(([from, width, share, known]): ClockReading => {
    const [earliest, latest] = [from * DAY, (from + width) * DAY]
    return { earliest, latest: known ? latest : null, now: Math.floor(earliest + share * (latest - earliest)) }
  })

function policyWith(
  undecidedClock: Policy['undecidedClock'],
  startsAt: number,
  endsAt: number,
  tolerant = false,
): Policy {
  const periods = (index: number, every: number) =>
    Array.from({ length: 100 }, (_, n) => ({
      index: index + n,
      from: n === 0 ? null : n * every,
      until: n === 99 ? null : (n + 1) * every,
    }))
  return {
    instanceId: 'i',
    revision: 1,
    lineItems: [
      {
        id: 'a',
        state: 'DEPLOYED',
        elastic: true,
        rateTableSeries: '',
        startsAt,
        endsAt,
        quantity: 1n,
        overdraft: 0n,
        periods: periods(7, DAY),
        actions: [],
        consumptionLimit: { limit: 1n, periods: periods(50, 2 * DAY) },
      },
    ],
    conditions: [],
    rateTables: Array.from({ length: 90 }, (_, n) => ({
      series: '',
      version: `${n}`,
      effectiveFrom: n * DAY,
      items: [{ name: 'print', version: '', rate: decimal(n + 1) }],
    })),
    timezoneTolerant: tolerant,
    undecidedClock,
  }
}

function viewOf(policy: Policy, clock: ClockReading) {
  const view = compilePolicy(policy).at(clock).item('print', '')
  if (!view.rated) throw new Error('the item is rated')
  return view
}

const windows = fc
  .tuple(fc.integer({ min: 0, max: 60 }), fc.integer({ min: 0, max: 30 }), fc.boolean())
  .map(([start, length, tolerant]) => ({ start: start * DAY, end: (start + length) * DAY, tolerant }))

describe('the window of a line item', () => {
  it('is open only where every instant that can be the true time is in it, when undecided clocks refuse', () => {
    fc.assert(
      fc.property(readings, windows, (clock, { start, end, tolerant }) => {
        const widen = tolerant ? TOLERANCE_MS : 0
        const whole = clock.latest !== null && start - widen <= clock.earliest && clock.latest <= end + widen
        const { candidates } = viewOf(policyWith('refuse', start, end, tolerant), clock)
        expect(candidates.length > 0).toBe(whole)
        expect(candidates.every(({ undecided }) => !undecided)).toBe(true)
      }),
    )
  })

  it('is open where any of them is in it, when undecided clocks allow, which is said unless all of them are', () => {
    fc.assert(
      fc.property(readings, windows, (clock, { start, end, tolerant }) => {
        const widen = tolerant ? TOLERANCE_MS : 0
        const some = clock.earliest <= end + widen && (clock.latest === null || clock.latest >= start - widen)
        const { candidates } = viewOf(policyWith('allow', start, end, tolerant), clock)
        expect(candidates.length > 0).toBe(some)
        const whole = viewOf(policyWith('refuse', start, end, tolerant), clock).candidates.length > 0
        if (some) expect(candidates[0]?.undecided).toBe(!whole)
      }),
    )
  })

  it('does not depend on the estimate, which the wall clock may have given', () => {
    fc.assert(
      fc.property(
        readings,
        windows,
        fc.constantFrom('allow' as const, 'refuse' as const),
        (clock, { start, end }, how) => {
          const open = [clock.earliest, clock.now, clock.latest ?? clock.earliest + 50 * DAY].map(
            (now) => viewOf(policyWith(how, start, end), { ...clock, now }).candidates.length > 0,
          )
          expect(new Set(open).size).toBe(1)
        },
      ),
    )
  })
})

describe('the period of the pool, that of the limit, and the rate', () => {
  it('are those of the estimate', () => {
    fc.assert(
      fc.property(readings, (clock) => {
        const [candidate] = viewOf(policyWith('allow', 0, 1_000 * DAY), clock).candidates
        const day = Math.floor(clock.now / DAY)
        expect(candidate?.lineAccount).toBe(lineAccount('i', 'a', 7 + day))
        expect(candidate?.limitPeriod).toBe(50 + Math.floor(day / 2))
        expect(candidate?.rate).toMatchObject({ kind: 'FIXED', rate: decimal(day + 1) })
      }),
    )
  })

  it('are charged by no clock without a later end, when undecided clocks refuse', () => {
    fc.assert(
      fc.property(readings, (clock) => {
        const policy = policyWith('refuse', 0, 1_000 * DAY)
        expect(viewOf(policy, { ...clock, latest: null }).candidates).toEqual([])
      }),
    )
  })
})
