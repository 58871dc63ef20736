/** Defects that begin when a wrong clock of the cloud is right again: nothing may excuse them from then on. */
import type { AssembledAgent } from '../../src/agent/assemble.ts'
import type { Transaction } from '../../src/cloud/storage/store.ts'
import type { Defect } from './defects.ts'
import type { TwinDefects } from './twin-defects.ts'

/** Calls whenever the device learns a time before all that it holds for possible. */
function onCorrection({ clock }: AssembledAgent, call: () => void): void {
  const learn = clock.learn.bind(clock)
  clock.learn = (evidence) => {
    if (evidence.time < clock.reading().earliest) call()
    learn(evidence)
  }
}

/** @param hasTrustedAgain after a doubt */
function afterDoubt(defects: (hasTrustedAgain: () => boolean) => Partial<TwinDefects>): Partial<TwinDefects> {
  const state = { hasDoubted: false, hasTrustedAgain: false }
  const trustsClock = (isTrusted: boolean): boolean => {
    state.hasDoubted ||= !isTrusted
    state.hasTrustedAgain ||= state.hasDoubted && isTrusted
    return isTrusted
  }
  return { trustsClock, ...defects(() => state.hasTrustedAgain) }
}

export const CLOCK_DEFECTS: readonly Defect[] = [
  {
    name: 'keeps-a-wrong-time',
    is: 'a device never goes back from the wrong time of the twin to the right one',
    always: ['twin-clock'],
    device: () => ({
      agent: ({ clock }) => {
        const learn = clock.learn.bind(clock)
        clock.learn = (evidence) => {
          if (evidence.time >= clock.reading().earliest) learn(evidence)
        }
      },
    }),
  },
  {
    name: 'short-after-a-wrong-time',
    is: 'a device asks for no more tokens once the twin has given it a wrong time',
    always: ['twin-clock'],
    device: () => {
      let wasCorrected = false
      return {
        agent: (agent) => {
          onCorrection(agent, () => {
            wasCorrected = true
          })
        },
        journal: (journal) => ({
          ...journal,
          seal: (order) => journal.seal(wasCorrected ? { ...order, topUpRequests: [], needs: [] } : order),
        }),
      }
    },
  },
  {
    name: 'settles-nothing-after-a-doubt',
    is: 'a twin whose clock was once in doubt settles no silent device any more',
    always: ['twin-clock', 'wipe'],
    twin: () => {
      let hasDoubted = false
      return {
        trustsClock: (isTrusted) => {
          hasDoubted ||= !isTrusted
          return !hasDoubted
        },
      }
    },
  },
  {
    name: 'no-heartbeat-after-a-doubt',
    is: 'a twin whose clock is trusted again charges sessions again and again without a heartbeat',
    always: ['twin-clock', 'session-life'],
    twin: () =>
      afterDoubt((hasTrustedAgain) => ({
        transaction: (tx) => {
          const save: Transaction['sessions']['save'] = (session) =>
            tx.sessions.save(hasTrustedAgain() ? { ...session, heartbeatDue: null } : session)
          return { ...tx, sessions: { ...tx.sessions, save } }
        },
      })),
  },
]
