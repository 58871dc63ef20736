// The network between a node and a server, such as PostgreSQL, which a test may cut, or make silent, at the moment that it
// names.
import { type AddressInfo, type Server, type Socket, connect, createServer } from 'node:net'

/** What becomes of a message and its connection: cut before it arrives, cut before its answer, or left without an answer. */
type Fate = 'LOSE_MESSAGE' | 'LOSE_ANSWER' | 'NO_ANSWER'

export class ServerProxy implements AsyncDisposable {
  readonly #server: Server
  #target: URL
  readonly #pairs = new Set<{ readonly client: Socket; readonly upstream: Socket }>()
  #rule: { readonly text: string; readonly fate: Fate; readonly then: () => void } | undefined
  #silent = false

  private constructor(target: URL, server: Server) {
    this.#target = target
    this.#server = server
    server.on('connection', (client) => this.#carry(client))
  }

  static async open(url: string): Promise<ServerProxy> {
    const server = createServer().listen(0, '127.0.0.1')
    await new Promise((resolve) => server.once('listening', resolve))
    return new ServerProxy(new URL(url), server)
  }

  /** The address of the server by way of this network. */
  get url(): string {
    const url = new URL(this.#target)
    url.hostname = '127.0.0.1'
    url.port = String((this.#server.address() as AddressInfo).port)
    return url.href
  }

  /** Carries new connections to another server. */
  leadTo(url: string): void {
    this.#target = new URL(url)
  }

  /** Of the connection that next sends this text; `then` runs when it is cut. */
  failAt(text: string, fate: Fate, then: () => void = () => undefined): void {
    this.#rule = { text, fate, then }
  }

  cutAll(): void {
    for (const { client, upstream } of this.#pairs) {
      client.destroy()
      upstream.destroy()
    }
  }

  /** Refuses new connections and cuts those that there are. Returns the way back. */
  async refuse(): Promise<() => Promise<void>> {
    const { port } = this.#server.address() as AddressInfo
    const closed = new Promise((resolve) => this.#server.close(resolve))
    this.cutAll()
    await closed
    return async () => {
      this.#server.listen(port, '127.0.0.1')
      await new Promise((resolve) => this.#server.once('listening', resolve))
    }
  }

  /** From now on nothing comes through, and connections stay open. */
  fallInactive(): void {
    this.#silent = true
  }

  speakAgain(): void {
    this.#silent = false
  }

  #carry(client: Socket): void {
    const upstream = connect(Number(this.#target.port || 5432), this.#target.hostname)
    const pair = { client, upstream }
    this.#pairs.add(pair)
    let muted = false
    client.on('data', (data) => {
      if (this.#silent) return
      const rule = this.#rule
      if (rule !== undefined && data.includes(rule.text)) {
        this.#rule = undefined
        muted = true
        if (rule.fate === 'LOSE_MESSAGE') {
          upstream.destroy()
          client.destroy()
          rule.then()
          return
        }
        if (rule.fate === 'LOSE_ANSWER') {
          upstream.once('data', () => {
            upstream.destroy()
            client.destroy()
            rule.then()
          })
        }
      }
      upstream.write(data)
    })
    upstream.on('data', (data) => {
      if (!muted && !this.#silent) client.write(data)
    })
    for (const [one, other] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      one.on('error', () => other.destroy())
      one.on('close', () => {
        other.destroy()
        this.#pairs.delete(pair)
      })
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.cutAll()
    if (this.#server.listening) await new Promise((resolve) => this.#server.close(resolve))
  }
}
