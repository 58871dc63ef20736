export interface Timers {
  /** Calls once after `ms`; the returned function cancels it. */
  after(ms: number, call: () => void): () => void
}

/** Calls every `ms`, first after `ms`. Returns a function that stops it. */
export function repeat(timers: Timers, ms: number, call: () => void): () => void {
  const next = (): void => {
    cancel = timers.after(ms, next)
    call()
  }
  let cancel = timers.after(ms, next)
  return () => cancel()
}
