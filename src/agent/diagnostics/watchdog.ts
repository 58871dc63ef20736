/**
 * Tells whoever supervises the process that it is well, again and again, each time after a look that has gone the way of a
 * request. It says nothing when the look fails or does not come back: a supervisor that hears nothing starts the agent
 * anew. So a look must fail only on what a new start could cure.
 */
import type { Timers } from '../sync/ports.ts'

export interface WatchdogDeps {
  /** Between two looks, ms. */
  readonly everyMs: number
  /** Rejecting is failing. */
  readonly look: () => Promise<boolean>
  readonly onWell: () => void
  /** Once for each row of looks that failed; the error of one that threw. */
  readonly onIll: (error: unknown) => void
  readonly timers: Timers
}

/** Looks at once, and begins to look again and again. Returns what ends it. */
export function startWatchdog({ everyMs, look, onWell, onIll, timers }: WatchdogDeps): () => void {
  let isOver = false
  let isIll = false
  let cancel: () => void = () => undefined
  const ill = (error: unknown): void => {
    if (!isIll) onIll(error)
    isIll = true
  }
  const round = async (): Promise<void> => {
    try {
      if (await look()) {
        isIll = false
        if (!isOver) onWell()
      } else ill(null)
    } catch (error) {
      ill(error)
    }
    if (!isOver) cancel = timers.after(everyMs, () => void round())
  }
  void round()
  return () => {
    isOver = true
    cancel()
  }
}
