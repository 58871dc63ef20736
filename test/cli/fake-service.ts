import { generateKeyPairSync } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/** A key to administer a fake service with. */
export const adminKeys = generateKeyPairSync('ec', { namedCurve: 'P-256' })

/** Every file has the private key. */
export const readAdminKey = () => adminKeys.privateKey.export({ format: 'pem', type: 'pkcs8' })

export interface Asked {
  readonly method: string
  readonly url: string
  readonly authorization: string | undefined
  readonly body: unknown
}

export interface FakeService extends AsyncDisposable {
  /** Of a service on a socket: its path. Of one on TCP: its address with the prefix `/dm`. */
  readonly address: string
  readonly asked: readonly Asked[]
}

interface FakeAnswer {
  readonly status?: number
  readonly headers?: Readonly<Record<string, string>>
  readonly body: unknown
}

/** A service that gives the same answers as long as it lives, by `METHOD path`, and remembers what it was asked. */
export async function fakeService(
  where: 'socket' | 'tcp',
  answers: Readonly<Record<string, FakeAnswer>>,
): Promise<FakeService> {
  const directory = mkdtempSync(join(tmpdir(), 'tallygate-cli-'))
  const asked: Asked[] = []
  const server = createServer((request, response) => {
    let text = ''
    request.on('data', (chunk: Buffer) => (text += chunk.toString()))
    request.on('end', () => {
      const { method = '', url = '', headers } = request
      asked.push({
        method,
        url,
        authorization: headers.authorization,
        body: text === '' ? undefined : (JSON.parse(text) as unknown),
      })
      const answer = answers[`${method} ${url}`]
      response.statusCode = answer === undefined ? 404 : (answer.status ?? 200)
      for (const [name, value] of Object.entries(answer?.headers ?? {})) response.setHeader(name, value)
      const body = answer === undefined ? { code: 'NOT_FOUND', message: 'No such route' } : answer.body
      response.end(typeof body === 'string' ? body : JSON.stringify(body))
    })
  })
  const path = join(directory, 'agent.sock')
  await new Promise<void>((resolve) => {
    if (where === 'socket') server.listen(path, resolve)
    else server.listen(0, '127.0.0.1', resolve)
  })
  return {
    address: where === 'socket' ? path : `http://127.0.0.1:${(server.address() as AddressInfo).port}/dm`,
    asked,
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
      rmSync(directory, { recursive: true })
    },
  }
}
