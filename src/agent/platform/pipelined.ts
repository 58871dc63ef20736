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

  /**
   * False: the request must not be handled. The first one above the limit is refused with the last response of its
   * connection, after the responses to earlier requests, which may be charges.
   */
  takes({ socket }: Pick<IncomingMessage, 'socket'>, response: ServerResponse, refuse: () => void): boolean {
    const unsent = this.#unsent.get(socket) ?? 0
    if (unsent < UNSENT_MAX) {
      this.#unsent.set(socket, unsent + 1)
      response.once('close', () => this.#unsent.set(socket, (this.#unsent.get(socket) ?? 1) - 1))
      return true
    }
    if (unsent === Infinity) return false
    this.#unsent.set(socket, Infinity)
    socket.removeAllListeners('data').resume()
    response.shouldKeepAlive = false
    refuse()
    return false
  }
}
