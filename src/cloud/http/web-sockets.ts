/** MQTT over WebSocket at one path of the cloud's own server, for devices whose network permits only HTTPS. */
import type { IncomingMessage } from 'node:http'
import type { Duplex } from 'node:stream'
import type { FastifyInstance } from 'fastify'
import { WebSocketServer, createWebSocketStream } from 'ws'
import { brokenHead } from '../../protocol/service/refusals.ts'

/** Longest WebSocket message, bytes; far above any MQTT packet of a device. */
const MESSAGE_BYTES_MAX = 64 * 1024

/** Call before the server listens. Other paths and upgrades stay ordinary requests. */
export function serveWebSockets(http: FastifyInstance, path: string, accept: (connection: Duplex) => void): void {
  const sockets = new WebSocketServer({
    noServer: true,
    handleProtocols: (offered) => offered.has('mqtt') && 'mqtt',
    maxPayload: MESSAGE_BYTES_MAX,
    perMessageDeflate: false,
  })
  const shouldUpgradeCallback = (request: IncomingMessage): boolean => {
    const { method, url, headers } = request
    const isHere = method === 'GET' && url?.replace(/\?.*$/s, '') === path
    return isHere && headers.upgrade?.toLowerCase() === 'websocket' && brokenHead(request) === null
  }
  Object.assign(http.server, { shouldUpgradeCallback })
  http.server.on('upgrade', (request, socket, head) => {
    // What follows is no HTTP: it must not reach the reader of requests.
    socket.removeAllListeners('data')
    sockets.handleUpgrade(request, socket, head, (opened) => accept(createWebSocketStream(opened)))
  })
  // The server would wait for them.
  http.addHook('preClose', async () => {
    for (const client of sockets.clients) client.terminate()
  })
}
