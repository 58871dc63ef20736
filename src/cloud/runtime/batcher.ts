/** Serves waiting requests in batches, by arrival. A failed batch fails all its requests. */

/** Calls at the end of a turn of the event loop. May wait for several, but not after one at whose end `isEnough`. */
export type Defer = (call: () => void, isEnough: () => boolean) => void

/** A batch of so many requests does not wait for more. */
const ENOUGH = 16

export interface Batch<Request> {
  /** Takes the requests that wait by now, in order, up to the first that does not fit. */
  readonly join: (fits: (request: Request) => boolean) => readonly Request[]
  /** Begins the next batch when so many requests wait, instead of at the end of this one. Default: one. */
  readonly next: (atLeast?: number) => void
}

export interface BatcherOptions<Request, Answer> {
  readonly defer: Defer
  /** Serves a batch of at least one: one outcome per request, in order, those that have joined last. */
  readonly serve: (
    requests: readonly Request[],
    batch: Batch<Request>,
  ) => Promise<readonly PromiseSettledResult<Answer | Promise<Answer>>[]>
  readonly weightOf?: (request: Request) => number
  /** Largest weight of a batch; a heavier request is served alone. */
  readonly weightMax: number
}

interface Waiting<Request, Answer> extends PromiseWithResolvers<Answer> {
  readonly request: Request
}

export class Batcher<Request, Answer> {
  readonly #options: BatcherOptions<Request, Answer>
  readonly #waiting: Waiting<Request, Answer>[] = []
  #gathers = false
  #inProgress = 0
  /** Begins the next batch before the end of the last one, once so many requests wait. */
  #early: { readonly atLeast: number; readonly next: () => void } | undefined

  constructor(options: BatcherOptions<Request, Answer>) {
    this.#options = options
  }

  get idle(): boolean {
    return !this.#gathers && this.#inProgress === 0
  }

  submit(request: Request): Promise<Answer> {
    const waiting = { request, ...Promise.withResolvers<Answer>() }
    this.#waiting.push(waiting)
    if (!this.#gathers) this.#gather()
    else if (this.#early !== undefined && this.#waiting.length >= this.#early.atLeast) this.#early.next()
    return waiting.promise
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
    const batch: Waiting<Request, Answer>[] = []
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

  #take(batch: Waiting<Request, Answer>[], fits: (request: Request) => boolean): readonly Request[] {
    const { weightOf = () => 1, weightMax } = this.#options
    let weight = batch.reduce((sum, { request }) => sum + weightOf(request), 0)
    const taken: Request[] = []
    for (;;) {
      const [first] = this.#waiting
      if (first === undefined || !fits(first.request)) return taken
      weight += weightOf(first.request)
      if (batch.length > 0 && weight > weightMax) return taken
      batch.push(first)
      taken.push(first.request)
      this.#waiting.shift()
    }
  }

  async #serve(waiting: readonly Waiting<Request, Answer>[], batch: Batch<Request>): Promise<void> {
    try {
      const outcomes = await this.#options.serve(
        waiting.map(({ request }) => request),
        batch,
      )
      for (const [index, { resolve, reject }] of waiting.entries()) {
        const outcome = outcomes[index]
        if (outcome === undefined) reject(new Error('invariant: each request has an outcome'))
        else if (outcome.status === 'fulfilled') resolve(outcome.value)
        else reject(outcome.reason)
      }
    } catch (reason) {
      for (const { reject } of waiting) reject(reason)
    }
  }
}
