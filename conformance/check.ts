/** A check: one claim about a server, the statements that it shows, and what it needs to be shown. */
import type { StatementId } from './statements.ts'
import type { Version } from './version.ts'
import type { World } from './world.ts'

/**
 * `clock`: hours must pass. `scratch`: changes what all customers of the server share. `extensions`: goes by operations or
 * fields that are this project's own, because the service's are not public.
 */
export type Need = 'clock' | 'scratch' | 'extensions'

export interface Check {
  readonly shows: readonly StatementId[]
  readonly name: string
  /** Default: both. */
  readonly versions?: readonly Version[]
  readonly needs?: readonly Need[]
  /** Throws when the claim does not hold. */
  readonly run: (world: World) => Promise<void>
}

export function check(
  shows: StatementId | readonly StatementId[],
  name: string,
  run: Check['run'],
  options: Pick<Check, 'versions' | 'needs'> = {},
): Check {
  return { shows: typeof shows === 'string' ? [shows] : shows, name, run, ...options }
}
