import type { Timers } from './run-repeatedly.ts'

export interface StopLimitDeps {
  readonly timers: Timers
  /** How long a stop may take, ms. A reload may change it. */
  readonly limitMs: () => number
  /** Aborts when the process is to stop, which may be before it has started. */
  readonly stop: AbortSignal
}

/** Limits the time of a stop: when it is over, cuts what does not respond. */
export class StopLimit implements Disposable {
  readonly #deps: StopLimitDeps
  readonly #cuts: (() => void)[] = []
  #cancel = (): void => undefined

  constructor(deps: StopLimitDeps) {
    this.#deps = deps
    deps.stop.addEventListener('abort', this.begin)
  }

  onOver(cut: () => void): void {
    this.#cuts.push(cut)
  }

  /** The stop begins. */
  readonly begin = (): void => {
    const { timers, limitMs } = this.#deps
    this.#cancel()
    this.#cancel = timers.every(limitMs(), () => this.#cuts.forEach((cut) => cut()))
  };

  [Symbol.dispose](): void {
    this.#deps.stop.removeEventListener('abort', this.begin)
    this.#cancel()
  }
}
