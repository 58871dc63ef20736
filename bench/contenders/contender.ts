/**
 * What can be loaded and held to account. A contender starts with an empty ledger in a directory of its own, as processes
 * that are not the benchmark's, and can tell how many debits it has really recorded.
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
  /** Ends the server without any chance to tidy up, and counts what it has recorded. */
  killAndCount(): Promise<number>
}
