/** Notifies the supervisor after each successful probe, which must fail only for reasons that a restart can fix. */
import type { Timers } from '../runtime/timers.ts'

export interface WatchdogDeps {
  readonly everyMs: number
  /** A rejection counts as a failure. */
  readonly look: () => Promise<boolean>
  readonly onWell: () => void
  /** Called once per series of failures, with the error if one was thrown. */
  readonly onIll: (error: unknown) => void
  readonly timers: Timers
}

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
