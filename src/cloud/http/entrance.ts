/**
 * Limits how many short requests of devices are served at the same time; others wait for their turn, by arrival. When all
 * devices come back after an outage, each request that begins takes time from those in progress: for its token, and for its
 * part of each turn of the event loop. With too many at once, none would end. Clients and administrators do not wait.
 *
 * The caller of a waiting request is not known yet, so the number of those that wait and their time are limited. Others begin
 * at once, and are refused if there is no place (slots.ts).
 */
import type { IncomingHttpHeaders } from 'node:http'

/** Enough for a batch in progress and the next one. */
const INSIDE_MAX = 128

const WAITING_MAX = 4_096

/** Ms. An agent waits 30 s for a response. */
const WAIT_MS_MAX = 10_000

/** Longer bodies are segments that have their own turns: they would hold up short ones. */
const BODY_BYTES_MAX = 8_192

interface Response {
  readonly closed: boolean
  once(event: 'close', listener: () => void): unknown
  off(event: 'close', listener: () => void): unknown
}

export class Entrance {
  readonly #inside = new Set<Response>()
  /** Earliest first; each lets its request in. */
  readonly #waiting = new Set<() => void>()

  get waiting(): number {
    return this.#waiting.size
  }

  /** Resolves when the request may begin. Undefined: at once. One whose connection closes while it waits never begins. */
  enter(response: Response, headers: IncomingHttpHeaders): Promise<void> | undefined {
    // One that has closed would never leave.
    if (response.closed || !hasShortBody(headers)) return undefined
    if (this.#inside.size < INSIDE_MAX) {
      this.#begin(response)
      return undefined
    }
    if (this.#waiting.size >= WAITING_MAX) return undefined
    return new Promise((resolve) => {
      const end = (): void => {
        this.#waiting.delete(begin)
        clearTimeout(timer)
        response.off('close', end)
      }
      const begin = (): void => {
        end()
        this.#begin(response)
        resolve()
      }
      const timer = setTimeout(begin, WAIT_MS_MAX)
      response.once('close', end)
      this.#waiting.add(begin)
    })
  }

  /** Call when only its client can still delay it: its body is arriving, or its response waits for an earlier one. */
  leave(response: Response): void {
    // Those whose time was over have begun above the limit.
    if (!this.#inside.delete(response) || this.#inside.size >= INSIDE_MAX) return
    const [next] = this.#waiting
    next?.()
  }

  #begin(response: Response): void {
    this.#inside.add(response)
    response.once('close', () => this.leave(response))
  }
}

function hasShortBody(headers: IncomingHttpHeaders): boolean {
  return headers['transfer-encoding'] === undefined && Number(headers['content-length'] ?? 0) <= BODY_BYTES_MAX
}
