import type { ServerResponse } from 'node:http'
import type { Socket } from 'node:net'

/** Final responses of connections, for requests that cannot be read. */
export class LastResponses {
  readonly #read = new WeakMap<Socket, ServerResponse>()
  readonly #ending = new WeakSet<Socket>()

  /** @param response to the last request read from the connection */
  track(socket: Socket, response: ServerResponse): void {
    this.#read.set(socket, response)
  }

  /** To the last request read. */
  of(socket: Socket): ServerResponse | undefined {
    return this.#read.get(socket)
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
  send(socket: Socket, text: string): void {
    // After CONNECT nothing else listens for errors, and a stop would wait for a client's half-open connection.
    socket.on('error', () => socket.destroy())
    const end = (): void => {
      if (socket.writable) socket.write(text)
      socket.destroySoon()
    }
    const last = this.#read.get(socket)
    if (last === undefined || last.writableFinished) end()
    // Before Node's own listener, which ends a half-closed connection.
    else last.prependOnceListener('finish', end)
  }
}
