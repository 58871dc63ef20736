/** Plans a sync round as steps. Each commits separately and can be repeated, so a plan can be dropped at any point. */

export type Step =
  | { readonly kind: 'enroll' | 'attach' | 'send-segment' }
  /** Key rotation, in steps that may span several rounds; `show-links` is for a cloud that has forgotten them. */
  | { readonly kind: 'prepare-key' | 'announce-key' | 'replace-key' | 'show-links' }
  | {
      readonly kind: 'seal-and-send'
      /** Returns all balances with it. */
      readonly release: boolean
      /** The last one of a fenced epoch, unless entries remain. */
      readonly final: boolean
    }
  | { readonly kind: 'fetch-policy'; readonly instanceId: string }
  | { readonly kind: 'open-session'; readonly instanceId: string }
  | { readonly kind: 'heartbeat'; readonly instanceId: string; readonly sessionId: string }

export interface PolicyState {
  readonly instanceId: string
  readonly applied: number
  readonly newest: number
  readonly tried: boolean
}

export interface LinkSession {
  readonly instanceId: string
  readonly sessionId: string | null
  /** Boot-time reading of the last heartbeat or merged segment, ms. */
  readonly aliveAt: number
  /** Boot-time reading of the last answer about this session, ms. */
  readonly checkedAt: number
  /** The cloud may have changed it. */
  readonly needsCheck: boolean
  readonly tried: boolean
}

export interface LinkState {
  readonly enrollment: 'DONE' | 'POSSIBLE' | 'IMPOSSIBLE'
  readonly key: 'REPLACE' | 'PREPARE' | 'ANNOUNCE' | 'SHOW' | 'SETTLED'
  readonly epoch: number
  /**
   * `FENCED`: replaced in the cloud, which waits for the rest. `CLOSED`: fully delivered. `ABANDONED`: the next epoch
   * sends the rest as its undelivered range. `FORKED`: the same, because another writer continued its chain.
   */
  readonly fence: 'NONE' | 'FENCED' | 'CLOSED' | 'ABANDONED' | 'FORKED'
  readonly unacknowledged: boolean
  readonly unsealed: number
  readonly moreToSend: boolean
  /** Accounts need tokens that this round has not requested yet. */
  readonly needsTokens: boolean
  /** The cloud, or a clean stop, requires all balances back. */
  readonly returnsAll: boolean
  /** This device can spare tokens that were recalled. */
  readonly hasSpare: boolean
  /** The cloud may have news that this round has not fetched yet. */
  readonly expectsNews: boolean
  readonly policies: readonly PolicyState[]
  readonly sessions: readonly LinkSession[]
  readonly connected: boolean
  /** Readings of the boot clock, ms. */
  readonly syncedAt: number | null
  readonly now: number
  readonly syncEveryMs: number
  /** Longest time without heartbeat or merged segment, ms. */
  readonly heartbeatEveryMs: number
  /** Longest time between checks: a merged segment keeps a session alive, but does not report its state. */
  readonly checkEveryMs: number
  readonly batchEntries: number
}

/**
 * Steps in sequence of dependency. Rows are tried from the top; "only" ends the plan.
 *
 * | state                                             | steps                                             |
 * |---------------------------------------------------|---------------------------------------------------|
 * | not enrolled                                      | enroll only, if there is a token                  |
 * | next key requested, ready, accepted, or unknown   | prepare-, announce-, replace-key, show-links only |
 * | no epoch, or an abandoned or forked one           | attach only                                       |
 * | a closed epoch with nothing left                  | attach only                                       |
 * | an instance has no policy                         | fetch-policy                                      |
 * | a segment is not acknowledged                     | send-segment                                      |
 * | else fenced                                       | seal-and-send final                               |
 * | else a sync is due (see {@link syncDue})          | seal-and-send                                     |
 * | the cloud has a newer policy                      | fetch-policy                                      |
 * | an instance has no session                        | open-session                                      |
 * | a session is silent or unchecked for too long     | heartbeat                                         |
 */
export function plan(state: LinkState): readonly Step[] {
  if (state.enrollment !== 'DONE') return state.enrollment === 'POSSIBLE' ? [{ kind: 'enroll' }] : []
  if (state.key !== 'SETTLED') return [{ kind: KEY_STEPS[state.key] }]
  if (state.epoch === 0 || state.fence === 'ABANDONED' || state.fence === 'FORKED') return [{ kind: 'attach' }]
  if (state.fence === 'CLOSED' && !state.unacknowledged && state.unsealed === 0) return [{ kind: 'attach' }]

  const wanted = state.policies.filter(({ tried }) => !tried)
  const fetch = ({ instanceId }: PolicyState): Step => ({ kind: 'fetch-policy', instanceId })
  return [
    ...wanted.filter(({ applied }) => applied === 0).map(fetch),
    ...segmentSteps(state),
    ...wanted.filter(({ applied, newest }) => applied !== 0 && newest > applied).map(fetch),
    ...sessionSteps(state),
  ]
}

const KEY_STEPS = {
  REPLACE: 'replace-key',
  PREPARE: 'prepare-key',
  ANNOUNCE: 'announce-key',
  SHOW: 'show-links',
} as const

function segmentSteps(state: LinkState): readonly Step[] {
  if (state.unacknowledged) return [{ kind: 'send-segment' }]
  if (state.fence !== 'NONE') return [{ kind: 'seal-and-send', release: false, final: true }]
  return syncDue(state) ? [{ kind: 'seal-and-send', release: state.returnsAll, final: false }] : []
}

function syncDue(state: LinkState): boolean {
  return (
    state.needsTokens ||
    state.returnsAll ||
    state.hasSpare ||
    state.expectsNews ||
    state.moreToSend ||
    state.unsealed >= state.batchEntries ||
    !state.connected ||
    state.syncedAt === null ||
    state.now - state.syncedAt >= state.syncEveryMs
  )
}

function sessionSteps(state: LinkState): readonly Step[] {
  return state.sessions.flatMap(({ instanceId, sessionId, aliveAt, checkedAt, needsCheck, tried }): readonly Step[] => {
    if (tried) return []
    if (sessionId === null) return [{ kind: 'open-session', instanceId }]
    const due = state.now - aliveAt >= state.heartbeatEveryMs || state.now - checkedAt >= state.checkEveryMs
    return due || needsCheck ? [{ kind: 'heartbeat', instanceId, sessionId }] : []
  })
}
