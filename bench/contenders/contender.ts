/**
 * A system to load and audit. Starts with an empty ledger in its own directory, in its own processes, and can count its
 * recorded debits.
 */
import type { Target } from '../load/dialect.ts'
import type { Place } from './place.ts'

export interface Contender {
  readonly name: string
  start(place: Place): Promise<Running>
}

export interface Running {
  readonly target: Target
  readonly pid: number
  /** Null: it records nothing. */
  killAndCount(): Promise<number | null>
}
