// What the cloud and its commands reach with the default connections of Node: an S3 store and the OpenID Connect provider, for which
// the network has a proxy, and PostgreSQL. Only the system knows the authority of their certificates.
import { execFile } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import type { RequestListener } from 'node:http'
import { createServer as createHttpsServer } from 'node:https'
import { type AddressInfo, createServer } from 'node:net'
import { join } from 'node:path'
import { TLSSocket, createSecureContext } from 'node:tls'
import { SignJWT, exportJWK, generateKeyPair } from 'jose'
import { beforeEach, expect, it, onTestFinished } from 'vitest'
import { temporaryDirectory } from '../agent/harness.ts'
import { TwinProcess } from '../cloud/twin-process.ts'
import { Authority, type Certified } from '../support/certificates.ts'
import { openProxy } from '../support/http-proxy.ts'
import { COMMAND } from '../support/command.ts'

/** Only the proxy can resolve it. */
const HOST = 'server.test'

let server: Certified
let directory: string
let env: Record<string, string>

beforeEach(async () => {
  await using authority = await Authority.make()
  server = await authority.certify(Date.now() + 86_400_000, HOST)
  directory = temporaryDirectory()
  const file = join(directory, 'authority.pem')
  writeFileSync(file, authority.certificate)
  env = { SSL_CERT_FILE: file, NODE_EXTRA_CA_CERTS: '' }
})

/** Serves https://server.test through the proxy. */
async function serve(listener: RequestListener): Promise<void> {
  const { certificate: cert, key } = server
  const service = createHttpsServer({ cert, key }, listener).listen(0, '127.0.0.1')
  await once(service, 'listening')
  onTestFinished(() => {
    service.closeAllConnections()
    service.close()
  })
  const proxy = await openProxy({ [HOST]: (service.address() as AddressInfo).port })
  Object.assign(env, { HTTPS_PROXY: `127.0.0.1:${proxy.port}`, https_proxy: '', NO_PROXY: '', no_proxy: '' })
}

const tallygate = (args: readonly string[], more: Readonly<Record<string, string>> = {}) =>
  new Promise<string>((resolve) => {
    execFile(process.execPath, [COMMAND, ...args], { env: { ...process.env, ...env, ...more } }, (_error, out, err) =>
      resolve(out + err),
    )
  })

it('reaches an S3 store', async () => {
  await serve((_request, response) => response.end('<ListBucketResult/>'))
  const said = await tallygate(['usage', 'archive', 'verify', 's3://usage/plant'], {
    TALLYGATE_CLOUD_S3_ENDPOINT: `https://${HOST}`,
    TALLYGATE_CLOUD_S3_ACCESS_KEY_ID: 'key',
    TALLYGATE_CLOUD_S3_SECRET_ACCESS_KEY: 'secret',
  })
  expect(said).toContain('s3://usage/plant contains no archive')
})

it('reaches the OpenID Connect provider', async () => {
  const { privateKey, publicKey } = await generateKeyPair('ES256')
  const keys = [await exportJWK(publicKey)]
  const issuer = `https://${HOST}`
  await serve(({ url }, response) =>
    response.end(JSON.stringify(url === '/keys' ? { keys } : { issuer, jwks_uri: `${issuer}/keys` })),
  )
  const access = JSON.stringify([{ value: 'admins', roles: ['read'] }])
  const settings = ['--oidc-issuer', issuer, '--oidc-client-id', 'tallygate', '--oidc-access', access]
  await using twin = await TwinProcess.start(['--store-path', join(directory, 'cloud'), ...settings], env)
  const token = await new SignJWT({ groups: ['admins'] })
    .setProtectedHeader({ alg: 'ES256' })
    .setIssuer(issuer)
    .setAudience('tallygate')
    .setSubject('ada')
    .setIssuedAt()
    .setExpirationTime('1h')
    .sign(privateKey)
  const response = await fetch(`${twin.address}/edge/api/v1/caller`, { headers: { authorization: `Bearer ${token}` } })
  expect([response.status, twin.complaints]).toEqual([200, []])
})

it('reaches PostgreSQL', async () => {
  const handshake = Promise.withResolvers<string>()
  const context = createSecureContext({ cert: server.certificate, key: server.key })
  const database = createServer((socket) => {
    socket.on('error', () => undefined)
    socket.on('close', () => handshake.resolve('closed'))
    // A client requests TLS before anything else.
    socket.once('data', () => {
      socket.write('S')
      const secure = new TLSSocket(socket, { isServer: true, secureContext: context })
      secure.on('error', (error) => handshake.resolve(error.message))
      secure.once('data', () => {
        handshake.resolve('trusted')
        secure.destroy()
      })
    })
  }).listen(0, '127.0.0.1')
  await once(database, 'listening')
  onTestFinished(() => void database.close())
  const url = `postgres://user@127.0.0.1:${(database.address() as AddressInfo).port}/name?sslmode=require`
  const archives = join(directory, 'archives')
  const said = tallygate(['usage', 'archive', '--db', url, '--to', archives, '--until', '2026-01-01'])
  expect(await handshake.promise).toBe('trusted')
  // The driver warns about other modes than verify-full.
  expect(await said).not.toContain('WARNING')
})
