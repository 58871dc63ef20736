/**
 * What a sync round should do, as data: from the state of the device to an ordered list of steps that leaves nothing to
 * choose. Every step commits by itself and may be repeated, so a plan can be dropped at any point: the next one is made
 * from the state that is there then.
 */

export type Step =
  /** Become known to the cloud with the enrollment token. */
  | { readonly kind: 'enroll' }
  /** Another key of the device, in four steps that may come in any round. */
  | { readonly kind: 'prepare-key' }
  | { readonly kind: 'announce-key' }
  | { readonly kind: 'replace-key' }
  /** How the device came to its key, for a cloud that has forgotten it. */
  | { readonly kind: 'show-links' }
  /** Get the next epoch. */
  | { readonly kind: 'attach' }
  /** Send the sealed segment that is not acknowledged, byte for byte. */
  | { readonly kind: 'send-segment' }
  /** Make the next segment durable, then send it. */
  | {
      readonly kind: 'seal-and-send'
      /** Give back all room with it. */
      readonly release: boolean
      /** The last one of a fenced epoch, unless more entries are left than it can hold. */
      readonly final: boolean
    }
  | { readonly kind: 'fetch-policy'; readonly instanceId: string }
  | { readonly kind: 'open-session'; readonly instanceId: string }
  | { readonly kind: 'heartbeat'; readonly instanceId: string; readonly sessionId: string }

export interface PolicyState {
  readonly instanceId: string
  /** Revision in force on the device; 0 for none. */
  readonly applied: number
  /** Newest revision that the cloud has named; 0 when it has not. */
  readonly newest: number
  /** Already asked for in this round. */
  readonly tried: boolean
}

export interface SessionState {
  readonly instanceId: string
  /** Null: none is open. */
  readonly sessionId: string | null
  /** Boot-time reading at the last sign of life, a merged segment included, ms. */
  readonly aliveAt: number
  /** Boot-time reading at which the cloud last spoke of this session itself, ms. */
  readonly checkedAt: number
  /** Somebody has reason to think that the cloud did something to it. */
  readonly looking: boolean
  /** Already asked for in this round. */
  readonly tried: boolean
}

export interface LinkState {
  /** `POSSIBLE`: not enrolled, and there is a token that was not refused. */
  readonly enrollment: 'DONE' | 'POSSIBLE' | 'IMPOSSIBLE'
  /** What is to be done about the key of the device. */
  readonly key: 'REPLACE' | 'PREPARE' | 'ANNOUNCE' | 'SHOW' | 'SETTLED'
  /** 0: none yet. */
  readonly epoch: number
  /**
   * `FENCED`: no longer current in the cloud, which waits for what is left. `CLOSED`: it waits for nothing more.
   * `ABANDONED`: its segments cannot go on; what the cloud does not have goes up as its undelivered range, with the next one. `FORKED`: so
   * it does here, because another writer has continued its chain.
   */
  readonly fence: 'NONE' | 'FENCED' | 'CLOSED' | 'ABANDONED' | 'FORKED'
  /** A sealed segment is not acknowledged. */
  readonly unacknowledged: boolean
  /** Entries that no segment holds yet. */
  readonly unsealed: number
  /** The segment before was full: more entries were waiting when it was sealed. */
  readonly moreToSend: boolean
  /** Accounts want tokens, and this round has not asked for them yet. */
  readonly wanting: boolean
  /** The cloud, or a clean stop, wants all room back. */
  readonly releasing: boolean
  /** Others need tokens that this device can spare. */
  readonly sparing: boolean
  /** Somebody has reason to think that the cloud has news, and this round has not asked for them yet. */
  readonly looking: boolean
  readonly policies: readonly PolicyState[]
  readonly sessions: readonly SessionState[]
  /** The last exchange with the cloud got an answer. */
  readonly connected: boolean
  /** Boot-time reading at the last merged segment, ms; null for none since the start. */
  readonly syncedAt: number | null
  /** Boot-time reading of this moment, ms. */
  readonly now: number
  readonly syncEveryMs: number
  /** A session that has shown no sign of life for so long is in danger. */
  readonly heartbeatEveryMs: number
  /** A session is asked for at least so often: a merged segment keeps it alive, but does not say what became of it. */
  readonly checkEveryMs: number
  /** So many unsealed entries are worth a segment by themselves. */
  readonly batchEntries: number
}

/**
 * The steps, in the order of what depends on what: identity, its key, epoch, rules without which nothing can be decided,
 * what is owed to the cloud, newer rules, sessions. Rows are tried from the top; a row that says "only" ends the plan.
 *
 * | state                                              | steps                                   |
 * |----------------------------------------------------|-----------------------------------------|
 * | not enrolled                                       | enroll only, if there is a token        |
 * | another key is wanted, ready, taken, or unknown     | prepare-, announce-, replace-key, show-links only |
 * | no epoch, or one that is abandoned or forked | attach only                             |
 * | a closed epoch with nothing left             | attach only                             |
 * | an instance has no policy                          | fetch-policy                            |
 * | a segment is not acknowledged                      | send-segment                            |
 * | else fenced                                        | seal-and-send final                     |
 * | else a sync is due (see {@link syncDue})           | seal-and-send                           |
 * | the cloud has a newer policy                       | fetch-policy                            |
 * | an instance has no session                         | open-session                            |
 * | a session is silent or unchecked for too long      | heartbeat                               |
 */
export function plan(state: LinkState): readonly Step[] {
  if (state.enrollment !== 'DONE') return state.enrollment === 'POSSIBLE' ? [{ kind: 'enroll' }] : []
  const key = keyStep(state.key)
  if (key !== undefined) return [key]
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

function keyStep(state: LinkState['key']): Step | undefined {
  switch (state) {
    case 'REPLACE':
      return { kind: 'replace-key' }
    case 'PREPARE':
      return { kind: 'prepare-key' }
    case 'ANNOUNCE':
      return { kind: 'announce-key' }
    case 'SHOW':
      return { kind: 'show-links' }
    case 'SETTLED':
      return undefined
  }
}

function segmentSteps(state: LinkState): readonly Step[] {
  if (state.unacknowledged) return [{ kind: 'send-segment' }]
  if (state.fence !== 'NONE') return [{ kind: 'seal-and-send', release: false, final: true }]
  return syncDue(state) ? [{ kind: 'seal-and-send', release: state.releasing, final: false }] : []
}

/** Something waits for the cloud, or the device has not been heard of for as long as it may be silent. */
function syncDue(state: LinkState): boolean {
  return (
    state.wanting ||
    state.releasing ||
    state.sparing ||
    state.looking ||
    state.moreToSend ||
    state.unsealed >= state.batchEntries ||
    !state.connected ||
    state.syncedAt === null ||
    state.now - state.syncedAt >= state.syncEveryMs
  )
}

function sessionSteps(state: LinkState): readonly Step[] {
  return state.sessions.flatMap(({ instanceId, sessionId, aliveAt, checkedAt, looking, tried }): readonly Step[] => {
    if (tried) return []
    if (sessionId === null) return [{ kind: 'open-session', instanceId }]
    const due = state.now - aliveAt >= state.heartbeatEveryMs || state.now - checkedAt >= state.checkEveryMs
    return due || looking ? [{ kind: 'heartbeat', instanceId, sessionId }] : []
  })
}
