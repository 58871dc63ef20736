/** Shortest interval between two lines of one kind, ms. */
const LOGGED_EVERY_MS = 60_000

/** Limits log lines that clients or a long outage can cause, by kind: they must not fill the disk. */
export class Rarely {
  readonly #now: () => number
  readonly #kinds = new Map<string, { at: number; times: number }>()

  /** @param now monotonic, ms */
  constructor(now: () => number) {
    this.#now = now
  }

  /**
   * @param kind one of few, or an id that callers cannot make up: each is kept
   * @param log called at most once a minute, with how often it happened since the last call
   */
  log(kind: string, log: (times: number) => void): void {
    const own = this.#kinds.get(kind) ?? { at: -Infinity, times: 0 }
    this.#kinds.set(kind, own)
    own.times += 1
    const now = this.#now()
    if (now - own.at < LOGGED_EVERY_MS) return
    log(own.times)
    own.at = now
    own.times = 0
  }
}
