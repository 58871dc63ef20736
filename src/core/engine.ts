/** How rules and arithmetic decide: a number in each policy and entry. See docs/decisions/engine-version.md. */
export interface Engine {
  readonly version: number
  /** Oldest version on the other side (agent or cloud) that this side works with. */
  readonly oldest: number
}

/** Raise the version when an existing decision changes, or `oldest`. Then all policies are issued again. */
export const ENGINE: Engine = { version: 1, oldest: 1 }

/** The side that is too old for the other one; null: they work together. */
export function outdatedSide(agent: Engine, cloud: Engine): 'AGENT' | 'CLOUD' | null {
  if (agent.version < cloud.oldest) return 'AGENT'
  return cloud.version < agent.oldest ? 'CLOUD' : null
}
