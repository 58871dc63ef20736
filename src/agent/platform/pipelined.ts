/**
 * Limits for connections whose client does not wait for responses. Node makes all requests that have arrived at once, and
 * their responses would fill the memory while other clients wait.
 */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'

/** Responses of a connection that are not sent yet. */
const UNSENT_MAX = 4

/** Empty lines in what has arrived at once. Each request has one, and bodies have few. */
const HEAD_ENDS_MAX = 64

const HEAD_END = Buffer.from('\r\n\r\n')

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

/** Closes the connection when far too many requests arrive at once. Call when Node's server has it. */
export function limitReading(socket: Socket): void {
  const [parse] = socket.listeners('data') as ((this: Socket, bytes: Buffer) => void)[]
  if (parse === undefined) throw new Error('invariant: the server reads its connections')
  socket.off('data', parse).on('data', (bytes: Buffer) => {
    if (hasManyHeads(bytes)) socket.destroy()
    else parse.call(socket, bytes)
  })
}

function hasManyHeads(bytes: Buffer): boolean {
  let at = -HEAD_END.length
  for (let count = 0; count <= HEAD_ENDS_MAX; count += 1) {
    at = bytes.indexOf(HEAD_END, at + HEAD_END.length)
    if (at < 0) return false
  }
  return true
}
