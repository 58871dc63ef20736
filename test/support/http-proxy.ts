// The proxy of a factory: it lets nothing through but CONNECT to port 443 of the hosts that it knows, for users with a password.
import { type AddressInfo, type Socket, connect } from 'node:net'
import { type IncomingMessage, createServer } from 'node:http'
import { onTestFinished } from 'vitest'

export interface HttpProxy {
  readonly port: number
  /** `CONNECT host:port` or another request line, with the status of the response. */
  readonly log: string[]
}

/**
 * @param ports on this machine, of the hosts whose port 443 the proxy leads to
 * @param user name:password; null: everybody
 */
export async function openProxy(
  ports: Readonly<Record<string, number>>,
  user: string | null = null,
): Promise<HttpProxy> {
  const log: string[] = []
  const sockets = new Set<Socket>()
  const server = createServer((request, response) => {
    log.push(`${request.method} ${request.url} 403`)
    response.writeHead(403).end()
  })
  const expected = user === null ? undefined : `Basic ${Buffer.from(user).toString('base64')}`
  server.on('connect', (request: IncomingMessage, client: Socket, head: Buffer) => {
    const [host = '', port] = request.url?.split(':') ?? []
    const target = port === '443' ? ports[host] : undefined
    const status = request.headers['proxy-authorization'] !== expected ? 407 : target === undefined ? 403 : 200
    log.push(`CONNECT ${request.url} ${status}`)
    client.on('error', () => client.destroy())
    if (status !== 200 || target === undefined) {
      const how = status === 407 ? 'Proxy-Authenticate: Basic realm="factory"\r\n' : ''
      client.end(`HTTP/1.1 ${status} Refused\r\n${how}Content-Length: 0\r\nConnection: close\r\n\r\n`)
      return
    }
    const upstream = connect(target, '127.0.0.1', () => {
      client.write('HTTP/1.1 200 Connection established\r\n\r\n')
      upstream.write(head)
      upstream.pipe(client).pipe(upstream)
    })
    sockets.add(client).add(upstream)
    upstream.on('error', () => client.destroy())
    upstream.on('close', () => client.destroy())
    client.on('close', () => upstream.destroy())
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy()
    server.closeAllConnections()
    server.close()
  })
  return { port: (server.address() as AddressInfo).port, log }
}
