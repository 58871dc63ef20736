// A connection pooler in front of PostgreSQL that gives all connections the same session, as one with a pool mode of
// transaction does while no transaction is open.
import { type AddressInfo, type Server, type Socket, connect, createServer } from 'node:net'

export class TransactionPooler implements AsyncDisposable {
  readonly #server: Server
  readonly #target: URL
  readonly #clients = new Set<Socket>()
  #session: { readonly upstream: Socket; readonly greeting: Promise<Buffer> } | undefined
  #current: Socket | undefined

  private constructor(target: URL, server: Server) {
    this.#target = target
    this.#server = server
    server.on('connection', (client) => void this.#serve(client))
  }

  static async open(url: string): Promise<TransactionPooler> {
    const server = createServer().listen(0, '127.0.0.1')
    await new Promise((resolve) => server.once('listening', resolve))
    return new TransactionPooler(new URL(url), server)
  }

  get url(): string {
    const url = new URL(this.#target)
    url.hostname = '127.0.0.1'
    url.port = String((this.#server.address() as AddressInfo).port)
    return url.href
  }

  async #serve(client: Socket): Promise<void> {
    this.#clients.add(client)
    client.on('error', () => undefined)
    const start = await new Promise<Buffer>((resolve) => client.once('data', resolve))
    const isFirst = this.#session === undefined
    const { upstream, greeting } = (this.#session ??= this.#greet(client, start))
    const greeted = await greeting
    if (!isFirst) client.write(greeted)
    client.on('data', (bytes: Buffer) => {
      // The end of a connection does not end the session.
      if (bytes[0] === 'X'.charCodeAt(0)) return
      this.#current = client
      upstream.write(bytes)
    })
  }

  /** Resolves with the greeting of later connections, without the password. */
  #greet(client: Socket, start: Buffer) {
    const { hostname, port } = this.#target
    const upstream = connect(Number(port), hostname)
    upstream.on('error', () => undefined)
    this.#current = client
    upstream.write(start)
    const authenticate = (bytes: Buffer): void => void upstream.write(bytes)
    client.on('data', authenticate)
    const greeting = new Promise<Buffer>((resolve) => {
      let received = Buffer.alloc(0)
      let at = 0
      const kept: Buffer[] = []
      const read = (bytes: Buffer): void => {
        received = Buffer.concat([received, bytes])
        while (received.length >= at + 5 && received.length > at + received.readInt32BE(at + 1)) {
          const message = received.subarray(at, at + 1 + received.readInt32BE(at + 1))
          const kind = String.fromCharCode(message[0] ?? 0)
          // A pooler invents the number of the session.
          if (kind === 'K') message.writeInt32BE(message.readInt32BE(5) + 1, 5)
          if (kind !== 'R' || message.readInt32BE(5) === 0) kept.push(message)
          this.#current?.write(message)
          at += message.length
          if (kind !== 'Z') continue
          upstream.off('data', read)
          upstream.on('data', (answer: Buffer) => void this.#current?.write(answer))
          client.off('data', authenticate)
          resolve(Buffer.concat(kept))
          return
        }
      }
      upstream.on('data', read)
    })
    return { upstream, greeting }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#session?.upstream.destroy()
    for (const client of this.#clients) client.destroy()
    await new Promise((resolve) => this.#server.close(resolve))
  }
}
