/**
 * Serves waiting requests in batches, by arrival: the next batch gathers while one is in progress. Each caller gets its
 * own outcome; a failed batch fails all its requests.
 */

/** Calls after the other events of this turn of the event loop. */
export type Defer = (call: () => void) => void

export interface BatcherOptions<Order, Answer> {
  readonly defer: Defer
  /** Serves a batch of at least one: one outcome per request, in order. */
  readonly serve: (orders: readonly Order[]) => Promise<readonly PromiseSettledResult<Answer>[]>
  readonly weightOf?: (order: Order) => number
  /** Largest weight of a batch; a heavier request is served alone. */
  readonly weightMax: number
}

interface Waiting<Order, Answer> {
  readonly order: Order
  readonly resolve: (answer: Answer) => void
  readonly reject: (reason: unknown) => void
}

export class Batcher<Order, Answer> {
  readonly #options: BatcherOptions<Order, Answer>
  readonly #waiting: Waiting<Order, Answer>[] = []
  #busy = false

  constructor(options: BatcherOptions<Order, Answer>) {
    this.#options = options
  }

  get idle(): boolean {
    return !this.#busy
  }

  ask(order: Order): Promise<Answer> {
    return new Promise<Answer>((resolve, reject) => {
      this.#waiting.push({ order, resolve, reject })
      if (this.#busy) return
      this.#busy = true
      // Requests of the same turn of the event loop join the first batch.
      this.#options.defer(() => void this.#work())
    })
  }

  async #work(): Promise<void> {
    while (this.#waiting.length > 0) await this.#serve(this.#next())
    this.#busy = false
  }

  #next(): readonly Waiting<Order, Answer>[] {
    const { weightOf = () => 1, weightMax } = this.#options
    let weight = 0
    let count = 0
    for (const { order } of this.#waiting) {
      weight += weightOf(order)
      if (count > 0 && weight > weightMax) break
      count += 1
    }
    return this.#waiting.splice(0, count)
  }

  async #serve(batch: readonly Waiting<Order, Answer>[]): Promise<void> {
    try {
      const outcomes = await this.#options.serve(batch.map(({ order }) => order))
      for (const [index, { resolve, reject }] of batch.entries()) {
        const outcome = outcomes[index]
        if (outcome === undefined) reject(new Error('invariant: each order has an outcome'))
        else if (outcome.status === 'fulfilled') resolve(outcome.value)
        else reject(outcome.reason)
      }
    } catch (reason) {
      for (const { reject } of batch) reject(reason)
    }
  }
}
