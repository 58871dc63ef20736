import type { CompiledPolicy } from './compile.ts'
import type { AccessRequest, ClockReading, Decision, RoomOf } from './decision.ts'

export type Mode = 'BEST_EFFORT' | 'ALL_OR_NOTHING'

export declare function decide(
  policy: CompiledPolicy,
  request: AccessRequest,
  clock: ClockReading,
  roomOf: RoomOf,
  mode: Mode,
): Decision
