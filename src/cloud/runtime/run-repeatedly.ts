/** Periodic work. Rounds share no state: a failed round is logged, and the next one starts from the store. */
import { CodedError } from '../../protocol/errors.ts'
import type { Log } from '../../protocol/log.ts'
import { Rarely } from './rarely.ts'

export interface Timers {
  every(ms: number, call: () => void | Promise<void>): () => void
}

export interface RepeatedJobDeps {
  readonly timers: Timers
  readonly log: Pick<Log, 'error'>
}

const ROUND_MAX = 1_000

/**
 * Returns a function that stops it.
 * @param doNext does one piece of work; true if more is left
 */
export function runRepeatedly(
  { timers, log }: RepeatedJobDeps,
  everyMs: number,
  doNext: () => Promise<boolean> | Promise<void>,
  failed: string,
): () => Promise<void> {
  const state: { stopped: boolean; round: Promise<void> | undefined } = { stopped: false, round: undefined }
  // A database that does not respond for hours must not fill the disk.
  let passedMs = 0
  const rarely = new Rarely(() => passedMs)
  const work = async (): Promise<void> => {
    try {
      for (let done = 0; done < ROUND_MAX && !state.stopped && (await doNext()) === true; done += 1) continue
    } catch (error) {
      const kind = error instanceof CodedError ? error.code : 'UNKNOWN'
      rarely.log(kind, (rounds) => log.error({ err: error, rounds }, failed))
    }
  }
  const cancel = timers.every(everyMs, () => {
    passedMs += everyMs
    if (state.stopped) return undefined
    state.round ??= work().finally(() => {
      state.round = undefined
    })
    return state.round
  })
  return async () => {
    state.stopped = true
    cancel()
    await state.round
  }
}
