const TURN_MS_MAX = 15

/** Call it at short intervals during long work, and wait for what it returns; undefined: no wait. */
export type GiveWay = () => Promise<void> | undefined

/** @param stopwatch monotonic, ms */
export function giveWayTo(stopwatch: () => number, defer: (call: () => void) => void): GiveWay {
  let begun: number | undefined
  const begin = () => {
    begun = stopwatch()
    defer(() => (begun = undefined))
  }
  return () => {
    if (begun === undefined) begin()
    else if (stopwatch() - begun >= TURN_MS_MAX) return new Promise((resolve) => defer(resolve))
    return undefined
  }
}
