// Servers whose TLS a client cannot use, as Node reports them.
import { type Server, type Socket, createServer } from 'node:net'
import { type TlsOptions, connect, createServer as createTlsServer } from 'node:tls'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { certificateReason, tlsReason } from '../../src/protocol/tls-reason.ts'
import { Authority, type Certified } from '../support/certificates.ts'

const HOUR_MS = 3_600_000

let authority: Authority
let other: Authority
beforeAll(async () => ([authority, other] = await Promise.all([Authority.make(), Authority.make()])))
afterAll(async () => {
  await Promise.all([authority[Symbol.asyncDispose](), other[Symbol.asyncDispose]()])
})

async function failure(server: Server): Promise<Error> {
  const { promise, resolve } = Promise.withResolvers<Error>()
  await new Promise<void>((listening) => server.listen(0, '127.0.0.1', listening))
  const { port } = server.address() as { port: number }
  const client = connect({ port, host: '127.0.0.1', servername: 'localhost', ca: authority.certificate })
  client.on('error', resolve).on('secureConnect', () => client.write('hello'))
  const error = await promise
  client.destroy()
  server.close()
  return error
}

const ignoring = (socket: Socket): Socket => socket.on('error', () => undefined)
const secure = ({ certificate, key }: Certified, options: TlsOptions = {}): Server =>
  createTlsServer({ cert: certificate, key, ...options }, (socket) => void ignoring(socket).resume())

test('a certificate that cannot be trusted', async () => {
  const [expired, named, foreign] = await Promise.all([
    authority.certify(Date.now() - HOUR_MS),
    authority.certify(Date.now() + HOUR_MS, 'other.example'),
    other.certify(Date.now() + HOUR_MS),
  ])
  expect(certificateReason(await failure(secure(expired)))).toBe('its certificate has expired')
  expect(certificateReason(await failure(secure(named)))).toBe('its certificate is for another host name')
  expect(certificateReason(await failure(secure(foreign)))).toBe(
    'this machine does not know the authority of its certificate',
  )
})

test.each(['TLSv1.2', 'TLSv1.3'] as const)(
  'a server that requires a certificate of the client, by %s',
  async (version) => {
    const options = { requestCert: true, ca: authority.certificate, maxVersion: version, minVersion: version }
    const error = await failure(secure(await authority.certify(Date.now() + HOUR_MS), options))
    expect(tlsReason(error)).toMatch(/require a certificate of the client$|^it requires a certificate of the client$/)
    expect(certificateReason(error)).toBeNull()
  },
)

test('a port without TLS', async () => {
  const answering = createServer(
    (socket) => void ignoring(socket).once('data', () => socket.end('HTTP/1.1 400 \r\n\r\n')),
  )
  expect(tlsReason(await failure(answering))).toBe('it does not use TLS on this port')
  const closing = createServer((socket) => void ignoring(socket).once('data', () => socket.end()))
  expect(tlsReason(await failure(closing))).toMatch(/it may not use TLS on this port$/)
})

test('other failures have no reason of TLS', () => {
  expect(tlsReason(Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' }))).toBeNull()
  expect(tlsReason('text')).toBeNull()
})
