/** Lets other events run during long work. */

/** How long work runs before it gives way, ms. */
const RUN_MS_MAX = 15

/** Call it at short intervals during long work, and wait for what it returns. */
export type GiveWay = () => Promise<void>

/**
 * @param stopwatch monotonic, ms
 * @param defer calls after waiting events
 */
export function giveWayTo(stopwatch: () => number, defer: (call: () => void) => void): GiveWay {
  let resumedAt = -Infinity
  return async () => {
    if (stopwatch() - resumedAt < RUN_MS_MAX) return
    await new Promise<void>((resolve) => defer(resolve))
    resumedAt = stopwatch()
  }
}
