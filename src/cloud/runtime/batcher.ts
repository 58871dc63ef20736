/** Serves waiting requests in batches, by arrival. A failed batch fails all its requests. */

/** Calls at the end of a turn of the event loop. May wait for several, but not after one at whose end `isEnough`. */
export type Defer = (call: () => void, isEnough: () => boolean) => void

/** A batch of so many requests does not wait for more. */
const ENOUGH = 16

export interface Batch<Order> {
  /** Takes the requests that wait by now, in order, up to the first that does not fit. */
  readonly join: (fits: (order: Order) => boolean) => readonly Order[]
  /** Begins the next batch when so many requests wait, instead of at the end of this one. Default: one. */
  readonly next: (atLeast?: number) => void
}

export interface BatcherOptions<Order, Answer> {
  readonly defer: Defer
  /** Serves a batch of at least one: one outcome per request, in order, those that have joined last. */
  readonly serve: (
    orders: readonly Order[],
    batch: Batch<Order>,
  ) => Promise<readonly PromiseSettledResult<Answer | Promise<Answer>>[]>
  readonly weightOf?: (order: Order) => number
  /** Largest weight of a batch; a heavier request is served alone. */
  readonly weightMax: number
}

interface Waiting<Order, Answer> {
  readonly order: Order
  readonly resolve: (answer: Answer | Promise<Answer>) => void
  readonly reject: (reason: unknown) => void
}

export class Batcher<Order, Answer> {
  readonly #options: BatcherOptions<Order, Answer>
  readonly #waiting: Waiting<Order, Answer>[] = []
  #gathers = false
  #inProgress = 0
  /** Begins the next batch before the end of the last one, once so many requests wait. */
  #early: { readonly atLeast: number; readonly next: () => void } | undefined

  constructor(options: BatcherOptions<Order, Answer>) {
    this.#options = options
  }

  get idle(): boolean {
    return !this.#gathers && this.#inProgress === 0
  }

  ask(order: Order): Promise<Answer> {
    return new Promise<Answer>((resolve, reject) => {
      this.#waiting.push({ order, resolve, reject })
      if (!this.#gathers) this.#gather()
      else if (this.#early !== undefined && this.#waiting.length >= this.#early.atLeast) this.#early.next()
    })
  }

  #gather(): void {
    this.#early = undefined
    this.#gathers = this.#waiting.length > 0
    if (!this.#gathers) return
    // Requests of the same turn of the event loop join the batch.
    this.#options.defer(
      () => void this.#work(),
      () => this.#waiting.length >= ENOUGH,
    )
  }

  async #work(): Promise<void> {
    let isOver = false
    const next = (): void => {
      if (isOver) return
      isOver = true
      this.#gather()
    }
    const batch: Waiting<Order, Answer>[] = []
    this.#take(batch, () => true)
    this.#inProgress += 1
    const early = (atLeast = 1): void => {
      if (this.#waiting.length >= atLeast) next()
      else if (!isOver) this.#early = { atLeast, next }
    }
    await this.#serve(batch, { next: early, join: (fits) => this.#take(batch, fits) })
    this.#inProgress -= 1
    next()
  }

  #take(batch: Waiting<Order, Answer>[], fits: (order: Order) => boolean): readonly Order[] {
    const { weightOf = () => 1, weightMax } = this.#options
    let weight = batch.reduce((sum, { order }) => sum + weightOf(order), 0)
    const taken: Order[] = []
    for (;;) {
      const [first] = this.#waiting
      if (first === undefined || !fits(first.order)) return taken
      weight += weightOf(first.order)
      if (batch.length > 0 && weight > weightMax) return taken
      batch.push(first)
      taken.push(first.order)
      this.#waiting.shift()
    }
  }

  async #serve(waiting: readonly Waiting<Order, Answer>[], batch: Batch<Order>): Promise<void> {
    try {
      const outcomes = await this.#options.serve(
        waiting.map(({ order }) => order),
        batch,
      )
      for (const [index, { resolve, reject }] of waiting.entries()) {
        const outcome = outcomes[index]
        if (outcome === undefined) reject(new Error('invariant: each order has an outcome'))
        else if (outcome.status === 'fulfilled') resolve(outcome.value)
        else reject(outcome.reason)
      }
    } catch (reason) {
      for (const { reject } of waiting) reject(reason)
    }
  }
}
