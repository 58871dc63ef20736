/** What pauses the sweeps of a twin, and how an administrator lets them go on, over HTTP. */
import { type SweepStateWire, sweepState } from '../../../protocol/edge/administration.ts'
import { CodedError } from '../../../protocol/errors.ts'
import type { ClockDoubt, ClockGuard } from '../../app/clock-guard.ts'
import { EDGE_BODY_BYTES_MAX } from '../../app/edge/limits.ts'
import { type SettleSilent, confirmSettlement, showSettlement } from '../../app/edge/settle-silent.ts'
import { type EdgeRoute, edgeRoute, keyOf } from './edge-area.ts'

export interface SweepParts {
  readonly clock: Pick<ClockGuard, 'doubt' | 'confirm'>
  readonly settlement: SettleSilent
}

const order = { method: 'POST', access: 'ADMINISTRATION', bodyMax: EDGE_BODY_BYTES_MAX, tag: 'Administration' } as const

export function sweepRoutes(parts: { readonly now: () => number; readonly sweeps: SweepParts }): readonly EdgeRoute[] {
  const state = async (): Promise<SweepStateWire> => {
    const { clock, settlement } = parts.sweeps
    return { now: parts.now(), clock: clock.doubt, settlement: await showSettlement(settlement) }
  }
  return [
    edgeRoute({
      method: 'GET',
      access: 'ADMINISTRATION',
      tag: 'Administration',
      path: '/sweeps',
      id: 'showSweeps',
      summary: 'Show what pauses work that cannot be undone',
      description: 'Of this node: each compares its own clock.',
      answers: { 200: { description: 'Its clock, and how settlement stands.', body: sweepState } },
      handle: async () => ({ status: 200, body: await state() }),
    }),
    edgeRoute({
      ...order,
      path: '/sweeps/clock/confirm',
      id: 'confirmClock',
      summary: 'Say that the clock of this node is right',
      description:
        'Other nodes with the same time follow within a minute. A clock that differs from the database stays in doubt.',
      answers: { 200: { description: 'Sweeps go by this clock.', body: sweepState } },
      errors: ['CONFLICT'],
      handle: async (call) => {
        const { clock } = parts.sweeps
        requireConfirmable(clock.doubt)
        await clock.confirm(keyOf(call))
        return { status: 200, body: await state() }
      },
    }),
    edgeRoute({
      ...order,
      path: '/sweeps/settlement/confirm',
      id: 'confirmSettlement',
      summary: 'Let all devices be settled that are due now',
      answers: { 200: { description: 'They are settled within minutes.', body: sweepState } },
      errors: ['CONFLICT'],
      handle: async (call) => {
        const { settlement } = parts.sweeps
        if (!(await showSettlement(settlement)).paused) {
          throw new CodedError('CONFLICT', 'Settlement does not wait for an administrator.')
        }
        await confirmSettlement(settlement, keyOf(call))
        return { status: 200, body: await state() }
      },
    }),
  ]
}

/** @throws CodedError CONFLICT */
function requireConfirmable(doubt: ClockDoubt | null): void {
  if (doubt === null) throw new CodedError('CONFLICT', 'The clock of this node is not in doubt.')
  if (doubt.code !== 'CLOCK_DIFFERS_FROM_DATABASE') return
  throw new CodedError('CONFLICT', 'The clocks of this node and of the database differ: set the wrong one right.')
}
