/**
 * Limits for connections whose client does not wait for responses. Node makes all requests that have arrived at once, and
 * their responses would fill the memory while other clients wait.
 */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'

/** Responses of a connection that are not sent yet. */
const UNSENT_MAX = 4

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
