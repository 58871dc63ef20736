import type { Timers } from '../sync/ports.ts'

/** Calls every `ms`, first after `ms`. Returns a function that stops it. */
export function repeat(timers: Timers, ms: number, call: () => void): () => void {
  const next = (): void => {
    cancel = timers.after(ms, next)
    call()
  }
  let cancel = timers.after(ms, next)
  return () => cancel()
}
