import type { Server, Socket } from 'node:net'

/** How long a TLS handshake may take, ms. */
export const HANDSHAKE_TIMEOUT_MS = 10_000

/** Connections that wait to be accepted: Node's 511 are too few when all clients come back. The kernel may allow fewer. */
export const CONNECTIONS_WAITING_MAX = 4_096

/**
 * Call before the server listens. Returns a function that cuts its connections, also those whose TLS handshake is not
 * complete: a server that closes waits for them, and `closeAllConnections` does not know them.
 */
export function openConnections(server: Server): () => void {
  const open = new Set<Socket>()
  server.on('connection', (socket: Socket) => {
    open.add(socket)
    socket.once('close', () => open.delete(socket))
  })
  return () => open.forEach((socket) => socket.destroy())
}
