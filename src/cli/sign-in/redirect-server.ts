/** Receives the browser after a sign-in, on this machine only. Source: RFC 8252, section 7.3. */
import { type IncomingMessage, type Server, type ServerResponse, createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import type { Socket } from 'node:net'
import { orNull } from '../../platform/or-null.ts'

const PATH = '/callback'
const START_PATH = '/sign-in'

const HEADERS = {
  'content-type': 'text/plain; charset=utf-8',
  'cache-control': 'no-store',
  'content-security-policy': "default-src 'none'",
  'x-content-type-options': 'nosniff',
  'referrer-policy': 'no-referrer',
  connection: 'close',
}

const NOT_THIS_USER =
  'This link is for the user who runs tallygate login, and this browser may be of another user. To sign in, open the address that tallygate login has printed in its terminal.\n'

export class RedirectServer implements AsyncDisposable {
  readonly #server: Server
  readonly #received = Promise.withResolvers<URL>()
  #start: string | null = null

  private constructor(state: string) {
    this.#server = createServer((request, response) => this.#receive(state, request, response))
  }

  /** @param state only a redirect with this value counts: other programs and web pages can send requests here, too */
  static async open(state: string): Promise<RedirectServer> {
    const made = new RedirectServer(state)
    made.#server.listen(0, '127.0.0.1')
    await once(made.#server, 'listening')
    return made
  }

  get redirectUri(): string {
    return this.#addressOf(PATH)
  }

  /** Leads programs of this user to the address. Other users can read the arguments of a browser, and so this link only. */
  linkTo(address: string): string {
    this.#start = address
    return this.#addressOf(START_PATH)
  }

  #addressOf(path: string): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}${path}`
  }

  /** @throws the reason of the signal */
  async received(signal: AbortSignal): Promise<URL> {
    const abort = (): void => this.#received.reject(signal.reason)
    signal.addEventListener('abort', abort, { once: true })
    if (signal.aborted) abort()
    try {
      return await this.#received.promise
    } finally {
      signal.removeEventListener('abort', abort)
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const closed = once(this.#server, 'close')
    this.#server.close()
    this.#server.closeIdleConnections()
    setTimeout(() => this.#server.closeAllConnections(), 1_000).unref()
    await closed
  }

  #receive(state: string, { method, url = '', socket }: IncomingMessage, response: ServerResponse): void {
    const target = URL.canParse(url, this.redirectUri) ? new URL(url, this.redirectUri) : null
    if (method === 'GET' && target?.pathname === START_PATH && this.#start !== null) {
      if (mayBeOfAnotherUser(socket)) response.writeHead(403, HEADERS).end(NOT_THIS_USER)
      else response.writeHead(302, { ...HEADERS, location: this.#start }).end()
      return
    }
    if (method !== 'GET' || target?.pathname !== PATH) {
      response.writeHead(404, HEADERS).end('There is nothing here.\n')
      return
    }
    const states = target.searchParams.getAll('state')
    if (states.length !== 1 || states[0] !== state) {
      response.writeHead(400, HEADERS).end('This is not the sign-in that tallygate waits for.\n')
      return
    }
    response.writeHead(200, HEADERS).end('Return to the terminal to see the result. You can close this page.\n')
    this.#received.resolve(target)
  }
}

/** Whether another user, but not root, may have the other end of a connection. False where the system lists no connections. */
function mayBeOfAnotherUser({ localPort = 0, remotePort = 0 }: Socket): boolean {
  const table = orNull(() => readFileSync('/proc/net/tcp', 'utf8'))
  if (table === null) return false
  const [here, there] = [localPort, remotePort].map((port) => `0100007F:${hexOf(port)}`)
  const line = table.split('\n').find((each) => each.includes(` ${there} ${here} `))
  const user = line?.trim().split(/\s+/)[USER_COLUMN]
  return user !== '0' && user !== String(process.getuid?.())
}

/** Of proc_net_tcp(5). */
const USER_COLUMN = 7

function hexOf(port: number): string {
  return port.toString(16).toUpperCase().padStart(4, '0')
}
