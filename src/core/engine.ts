/**
 * How rules and arithmetic decide. Recorded in each policy and entry, so that a decision is compared only with the
 * engine that made it. See docs/decisions/engine-version.md.
 */
export interface Engine {
  readonly version: number
  /** Oldest version on the other side (agent or cloud) that this side works with. */
  readonly oldest: number
}

/**
 * Raise the version when an existing decision changes, or `oldest`: only then are all policies issued again. Raise
 * `oldest` when older engines must not decide any more.
 */
export const ENGINE: Engine = { version: 1, oldest: 1 }

/** The side that is too old for the other one; null: they work together. */
export function outdatedSide(agent: Engine, cloud: Engine): 'AGENT' | 'CLOUD' | null {
  if (agent.version < cloud.oldest) return 'AGENT'
  return cloud.version < agent.oldest ? 'CLOUD' : null
}
