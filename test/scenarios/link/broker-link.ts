// A stretch of wire between the agent and a broker that a test can cut, and forbid.
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net'

export class BrokerLink {
  readonly #server: Server
  readonly #sockets = new Set<Socket>()
  readonly url: string
  /** Connections that were asked for, let through or not. */
  attempts = 0
  /** No connection succeeds. */
  forbidden = false

  private constructor(server: Server) {
    this.#server = server
    this.url = `mqtt://127.0.0.1:${(server.address() as AddressInfo).port}`
  }

  static async to(brokerUrl: string): Promise<BrokerLink> {
    const { hostname, port } = new URL(brokerUrl)
    const server = createServer()
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const wire = new BrokerLink(server)
    server.on('connection', (near) => wire.join(near, connect(Number(port), hostname)))
    return wire
  }

  join(near: Socket, far: Socket): void {
    this.attempts += 1
    for (const [socket, other] of [
      [near, far],
      [far, near],
    ] as const) {
      this.#sockets.add(socket)
      socket.on('error', () => other.destroy())
      socket.on('close', () => {
        this.#sockets.delete(socket)
        other.destroy()
      })
    }
    if (this.forbidden) near.destroy()
    else near.pipe(far).pipe(near)
  }

  /** Every connection stands, and nothing gets through any more. */
  stall(): void {
    for (const socket of this.#sockets) socket.unpipe().pause()
  }

  /** Ends every connection without a word. */
  cut(): void {
    for (const socket of this.#sockets) socket.resetAndDestroy()
  }

  async close(): Promise<void> {
    const closed = new Promise((resolve) => this.#server.close(resolve))
    this.cut()
    await closed
  }
}
