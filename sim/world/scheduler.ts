/**
 * Virtual time. Runs the earliest event next, at equal times the first scheduled; between events all pending work
 * completes. Idle time costs nothing.
 */

export interface Scheduler {
  /** True time, POSIX ms. */
  readonly now: number
  /** Calls once at that instant, or now if it has passed. Returns a function that cancels. */
  at(instant: number, call: () => void): () => void
}

interface Event {
  readonly at: number
  readonly order: number
  call: (() => void) | null
}

export class VirtualTime implements Scheduler {
  #now: number
  #ordered = 0
  #events: Event[] = []

  constructor(begin: number) {
    this.#now = begin
  }

  get now(): number {
    return this.#now
  }

  at(instant: number, call: () => void): () => void {
    const event: Event = { at: Math.max(this.#now, Math.ceil(instant)), order: this.#ordered, call }
    this.#ordered += 1
    this.#push(event)
    return () => {
      event.call = null
    }
  }

  /** Infinity: none. */
  get next(): number {
    for (;;) {
      const first = this.#events[0]
      if (first === undefined) return Infinity
      if (first.call !== null) return first.at
      this.#pop()
    }
  }

  step(): void {
    const event = this.next === Infinity ? undefined : this.#pop()
    if (event === undefined) throw new Error('there is an event to run')
    this.#now = event.at
    const { call } = event
    event.call = null
    call?.()
  }

  /** Advances the time, up to the next event. */
  pass(instant: number): void {
    this.#now = Math.max(this.#now, Math.min(instant, this.next))
  }

  #push(event: Event): void {
    const events = this.#events
    let at = events.length
    events.push(event)
    while (at > 0) {
      const parent = (at - 1) >> 1
      const above = events[parent]
      if (above === undefined || !isBefore(event, above)) break
      events[at] = above
      at = parent
    }
    events[at] = event
  }

  #pop(): Event | undefined {
    const events = this.#events
    const first = events[0]
    const last = events.pop()
    if (first === undefined || last === undefined || events.length === 0) return first
    let at = 0
    for (;;) {
      let child = 2 * at + 1
      const [left, right] = [events[child], events[child + 1]]
      if (left === undefined) break
      let smaller = left
      if (right !== undefined && isBefore(right, left)) {
        smaller = right
        child += 1
      }
      if (!isBefore(smaller, last)) break
      events[at] = smaller
      at = child
    }
    events[at] = last
    return first
  }
}

function isBefore(a: Event, b: Event): boolean {
  return a.at < b.at || (a.at === b.at && a.order < b.order)
}

/** Resolves when all promises that need no event have settled. @param busy more is in progress */
export async function rest(busy: () => boolean): Promise<void> {
  do {
    await new Promise<void>((resolve) => {
      setImmediate(resolve)
    })
  } while (busy())
}
