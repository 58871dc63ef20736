// The test clock that the conformance suite asks for, in front of a twin whose clock the test holds.
import { type Server, createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { type Twin, pick } from '../cloud/harness.ts'

export class Clock implements AsyncDisposable {
  readonly url: string
  readonly #server: Server

  private constructor(server: Server) {
    this.#server = server
    this.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`
  }

  static async of(twin: Twin): Promise<Clock> {
    const server = createServer((request, response) => {
      let body = ''
      request.on('data', (chunk: Buffer) => (body += chunk.toString()))
      request.on('end', () => {
        const advanceMs = Number(pick(JSON.parse(body) as unknown, 'advanceMs'))
        void twin.advance(advanceMs).then(
          () => response.end(JSON.stringify({ now: twin.now })),
          (error: unknown) => response.writeHead(500).end(String(error)),
        )
      })
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    return new Clock(server)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections()
    await new Promise((resolve) => this.#server.close(resolve))
  }
}
