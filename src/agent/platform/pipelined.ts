/**
 * Limits the requests of a connection whose responses are not sent yet. Node parses all that has arrived at once: the
 * responses to a client that never reads would fill the memory, and other clients would wait for them.
 */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'

const UNSENT_MAX = 16

export class Pipelined {
  readonly #unsent = new WeakMap<Socket, number>()

  /** Closes the connection above the limit. False: the request must not be handled. */
  takes({ socket }: Pick<IncomingMessage, 'socket'>, response: ServerResponse): boolean {
    const unsent = this.#unsent.get(socket) ?? 0
    if (unsent >= UNSENT_MAX) socket.destroy()
    if (socket.destroyed) return false
    this.#unsent.set(socket, unsent + 1)
    response.once('close', () => this.#unsent.set(socket, (this.#unsent.get(socket) ?? 1) - 1))
    return true
  }
}
