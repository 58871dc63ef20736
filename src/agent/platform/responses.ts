/**
 * Responses of each connection. Those that are not sent yet are limited: Node makes all requests that have arrived at once,
 * and their responses would fill the memory while other clients wait. If no more requests of a connection can be read, it
 * gets a final response.
 */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'

const UNSENT_MAX = 4

export class Responses {
  readonly #unsent = new WeakMap<Socket, number>()
  readonly #last = new WeakMap<Socket, ServerResponse>()
  readonly #ending = new WeakSet<Socket>()

  /**
   * False: the request must not be handled. The first one above the limit is refused with the final response of its
   * connection, after the responses to earlier requests, which may be charges.
   */
  takes({ socket }: Pick<IncomingMessage, 'socket'>, response: ServerResponse, refuse: () => void): boolean {
    const unsent = this.#unsent.get(socket) ?? 0
    if (unsent < UNSENT_MAX) {
      this.#unsent.set(socket, unsent + 1)
      response.once('close', () => this.#unsent.set(socket, (this.#unsent.get(socket) ?? 1) - 1))
      this.#last.set(socket, response)
      return true
    }
    if (unsent === Infinity) return false
    this.takeNoMore(socket)
    this.claim(socket)
    socket.removeAllListeners('data').resume()
    response.shouldKeepAlive = false
    refuse()
    return false
  }

  /** The response to the last request that was taken closes the connection. */
  takeNoMore(socket: Socket): void {
    this.#unsent.set(socket, Infinity)
  }

  /** To the last request read. */
  lastOf(socket: Socket): ServerResponse | undefined {
    return this.#last.get(socket)
  }

  /** False: the connection has its final response already. */
  claim(socket: Socket): boolean {
    if (this.#ending.has(socket)) return false
    this.#ending.add(socket)
    return true
  }

  /**
   * Sends a final response. Earlier pending responses go first: otherwise the client would match this one to an earlier
   * request, retry it and be charged again.
   */
  sendFinal(socket: Socket, text: string): void {
    // After CONNECT nothing else listens for errors, and a stop would wait for a client's half-open connection.
    socket.on('error', () => socket.destroy())
    const end = (): void => {
      if (socket.writable) socket.write(text)
      socket.destroySoon()
    }
    const last = this.#last.get(socket)
    if (last === undefined || last.writableFinished) end()
    // Before Node's own listener, which ends a half-closed connection.
    else last.prependOnceListener('finish', end)
  }
}
