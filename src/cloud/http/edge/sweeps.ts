/** Shows and resumes paused sweeps. */
import { actingAs } from '../../storage/audit.ts'
import type { Store } from '../../storage/store.ts'
import { type SweepStateWire, sweepState } from '../../../protocol/edge/administration.ts'
import { CodedError } from '../../../protocol/errors.ts'
import type { ClockDoubt, ClockGuard } from '../../runtime/clock-guard.ts'
import { type ExpireInactive, confirmSettlement, showSettlement } from '../../sync/grants/expire-inactive.ts'
import { type Operation, ADMINISTRATORS, edgeOperation } from '../operation.ts'

export interface SweepDeps {
  readonly clock: Pick<ClockGuard, 'doubt' | 'confirm'>
  readonly settlement: ExpireInactive
}

const sweepOperation = { method: 'POST', principals: ADMINISTRATORS, tag: 'Administration' } as const

export function sweepOperations(deps: {
  readonly store: Store
  readonly now: () => number
  readonly sweeps: SweepDeps
}): readonly Operation[] {
  const state = async (): Promise<SweepStateWire> => {
    const { clock, settlement } = deps.sweeps
    return { now: deps.now(), clock: clock.doubt, settlement: await showSettlement(settlement) }
  }
  return [
    edgeOperation({
      method: 'GET',
      principals: ADMINISTRATORS,
      tag: 'Administration',
      path: '/sweeps',
      id: 'showSweeps',
      summary: 'Show whether sweeps are paused, and why',
      description:
        'Applies to this node: each node checks its own clock. Sweeps are time-driven work that cannot be undone.',
      answers: { 200: { description: 'State of the clock and of settlement.', body: sweepState } },
      handle: async () => ({ status: 200, body: await state() }),
    }),
    edgeOperation({
      ...sweepOperation,
      path: '/sweeps/clock/confirm',
      id: 'confirmClock',
      role: 'operator',
      summary: 'Confirm that the clock of this node is correct',
      description:
        'Other nodes with the same time resume within a minute. A clock that differs from the database cannot be confirmed.',
      answers: { 200: { description: 'Sweeps use this clock.', body: sweepState } },
      errors: ['CONFLICT'],
      handle: async (call) => {
        const { clock } = deps.sweeps
        requireConfirmable(clock.doubt)
        await clock.confirm(call.principal)
        return { status: 200, body: await state() }
      },
    }),
    edgeOperation({
      ...sweepOperation,
      path: '/sweeps/settlement/confirm',
      id: 'confirmSettlement',
      role: 'operator',
      summary: 'Settle all devices that are due now',
      answers: { 200: { description: 'The devices are settled within minutes.', body: sweepState } },
      errors: ['CONFLICT'],
      handle: async (call) => {
        const { settlement } = deps.sweeps
        if (!(await showSettlement(settlement)).paused) {
          throw new CodedError('CONFLICT', 'Settlement is not paused: there is nothing to confirm.')
        }
        const { present, afterMs } = settlement
        await confirmSettlement({ store: actingAs(deps.store, call.principal), present, afterMs })
        return { status: 200, body: await state() }
      },
    }),
  ]
}

/** @throws CodedError CONFLICT */
function requireConfirmable(doubt: ClockDoubt | null): void {
  if (doubt === null)
    throw new CodedError('CONFLICT', 'The clock of this node is trusted: there is nothing to confirm.')
  if (doubt.code !== 'CLOCK_DIFFERS_FROM_DATABASE') return
  throw new CodedError('CONFLICT', 'The clocks of this node and the database differ. Correct the wrong clock.')
}
