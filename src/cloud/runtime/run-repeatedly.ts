/**
 * Work that is looked for again and again. It carries nothing from one round to the next: a round that fails is logged, and
 * the next one starts from what is stored.
 */

export interface Timers {
  /** Calls again and again, `ms` apart, until the returned function is called. */
  every(ms: number, call: () => void | Promise<void>): () => void
}

export interface RepeatedJobLog {
  error(fields: Record<string, unknown>, message: string): void
}

export interface RepeatedJob {
  /** Ends the round under way and begins no other. */
  stop(): Promise<void>
}

/** Most pieces of work in one round: the next round goes on. */
const ROUND_MAX = 1_000

/**
 * @param doNext does one piece of work; false when there is none
 * @param failed what the log says when it throws
 */
export function runRepeatedly(
  timers: Timers,
  everyMs: number,
  doNext: () => Promise<boolean>,
  log: RepeatedJobLog,
  failed: string,
): RepeatedJob {
  const state: { stopped: boolean; round: Promise<void> | undefined } = { stopped: false, round: undefined }
  const work = async (): Promise<void> => {
    try {
      for (let done = 0; done < ROUND_MAX && !state.stopped && (await doNext()); done += 1) continue
    } catch (error) {
      log.error({ err: error }, failed)
    }
  }
  const cancel = timers.every(everyMs, () => {
    if (state.stopped) return undefined
    state.round ??= work().finally(() => {
      state.round = undefined
    })
    return state.round
  })
  return {
    async stop() {
      state.stopped = true
      cancel()
      await state.round
    },
  }
}
