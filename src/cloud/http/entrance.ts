/**
 * Lets a limited number of requests of devices in at the same time; others wait for their turn, by arrival. When all devices
 * come back after an outage, each request that begins takes time from those in progress: for its token, and for its part of
 * each turn of the event loop. Too many at once would end none. Clients and administrators do not wait.
 *
 * Nothing is known about a request that waits, so a limited number do, for a limited time. Others begin at once, and are
 * refused if there is no place (slots.ts).
 */

/** Enough for a batch in progress and the next one. */
const INSIDE_MAX = 64

const WAITING_MAX = 4_096

/** Ms. An agent waits 30 s for a response. */
const WAIT_MS_MAX = 10_000

interface Response {
  readonly closed: boolean
  once(event: 'close', listener: () => void): unknown
  off(event: 'close', listener: () => void): unknown
}

export class Entrance {
  readonly #inside = new Set<Response>()
  /** Earliest first; each lets its request in. */
  readonly #waiting = new Set<() => void>()

  /** Resolves when the request may begin. One whose connection closes while it waits never begins. */
  async enter(response: Response): Promise<void> {
    if (this.#inside.has(response)) return
    const isFull = this.#inside.size >= INSIDE_MAX
    if (isFull && this.#waiting.size >= WAITING_MAX) return
    if (isFull) await this.#turn(response)
    // It would never leave.
    if (response.closed) return
    this.#inside.add(response)
    response.once('close', () => this.leave(response))
  }

  /** For a request that waits for the rest of its body; it enters again. At the end of its response, each one leaves. */
  leave(response: Response): void {
    if (!this.#inside.delete(response)) return
    const [next] = this.#waiting
    next?.()
  }

  #turn(response: Response): Promise<void> {
    return new Promise((resolve) => {
      const end = (): void => {
        this.#waiting.delete(goOn)
        clearTimeout(timer)
        response.off('close', end)
      }
      const goOn = (): void => {
        end()
        resolve()
      }
      const timer = setTimeout(goOn, WAIT_MS_MAX)
      response.once('close', end)
      this.#waiting.add(goOn)
    })
  }
}
