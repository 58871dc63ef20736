/**
 * A client that waits for its response often sends its next request at once. If it is the only one, the event loop keeps
 * turning for a short while after the response, so that the request finds the thread awake: to wake it takes longer than
 * to decide. Of several clients, more requests arrive while the thread is woken, and share a commit.
 */

/** In which most of these clients send, on slow machines too, ms. */
const SHORT_WHILE_MS = 0.2

export class StayAwake {
  readonly #mayTurn: boolean
  #unanswered = 0
  #answeredAt = -Infinity
  /** Whether the last request came a short while after a response, and no other one waited. */
  #isPrompt = false
  #isTurning = false

  /** @param processors with a single one, clients need it */
  constructor(processors: number) {
    this.#mayTurn = processors > 1
  }

  received(): void {
    this.#unanswered += 1
    this.#isPrompt = this.#unanswered === 1 && this.#isShortWhile()
  }

  /** Call once for each request received. */
  answered(): void {
    this.#unanswered -= 1
    this.#answeredAt = performance.now()
    if (this.#isTurning || !this.#isPrompt || !this.#mayTurn) return
    this.#isTurning = true
    setImmediate(this.#turn)
  }

  readonly #turn = (): void => {
    this.#isTurning = this.#unanswered === 0 && this.#isShortWhile()
    if (this.#isTurning) setImmediate(this.#turn)
  }

  #isShortWhile(): boolean {
    return performance.now() < this.#answeredAt + SHORT_WHILE_MS
  }
}
