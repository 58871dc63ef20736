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

/** At most one call is pending: the earliest of those requested. */
export class Alarm {
  readonly #deps: { readonly timers: Timers; readonly now: () => number }
  readonly #call: () => void
  #cancel: (() => void) | null = null
  #at = Infinity

  /** `now`: monotonic, ms. */
  constructor(deps: { readonly timers: Timers; readonly now: () => number }, call: () => void) {
    this.#deps = deps
    this.#call = call
  }

  /** Calls after `ms`, or earlier if an earlier call is pending. */
  within(ms: number): void {
    const at = this.#deps.now() + ms
    if (this.#cancel !== null && this.#at <= at) return
    this.cancel()
    this.#at = at
    this.#cancel = this.#deps.timers.after(Math.max(0, ms), () => {
      this.#cancel = null
      this.#call()
    })
  }

  cancel(): void {
    this.#cancel?.()
    this.#cancel = null
  }
}
