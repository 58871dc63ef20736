// A peer that connects to a server with TLS, and says nothing.
import { once } from 'node:events'
import { type Socket, connect } from 'node:net'
import { connect as connectTls } from 'node:tls'

/** Resolves when the server has accepted its connection. */
export async function silentPeer(port: number): Promise<Socket> {
  const silent = connect(port, '127.0.0.1')
  silent.on('error', () => undefined)
  await once(silent, 'connect')
  // Connections are accepted in order.
  const next = connectTls({ port, host: '127.0.0.1', rejectUnauthorized: false })
  next.on('error', () => undefined)
  await once(next, 'secureConnect')
  next.destroy()
  return silent
}
