import type { Socket } from 'node:net'

/** How long a connection stays open after its last response, ms. */
const LINGER_MS = 1_000

const lingering = new WeakSet<Socket>()

/** The connection takes no more requests: their responses could not be sent. */
export function isLingering(socket: Socket): boolean {
  return lingering.has(socket)
}

/** Closes the connection a little after its last response: a client that is still sending would lose the response. */
export function linger(socket: Socket): void {
  lingering.add(socket)
  socket.destroySoon = () => {
    socket.end()
    socket.resume()
    setTimeout(() => socket.destroy(), LINGER_MS).unref()
  }
}
