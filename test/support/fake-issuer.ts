// An OpenID Connect issuer with metadata and keys only. Tests make its tokens, also wrong ones, and its responses fail.
import { type RequestListener, createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { type CryptoKey, type JWTPayload, SignJWT, exportJWK, generateKeyPair } from 'jose'

export const CLIENT_ID = 'tallygate'

export class FakeIssuer implements AsyncDisposable {
  readonly issuer: string
  readonly #server: ReturnType<typeof createServer>
  #signer: { readonly kid: string; readonly privateKey: CryptoKey; readonly publicKey: CryptoKey }
  /** Paths of the requests so far. */
  readonly asked: string[] = []
  /** Instead of the usual responses. */
  respond: RequestListener | null = null

  private constructor(server: ReturnType<typeof createServer>, signer: FakeIssuer['signer']) {
    this.#server = server
    this.#signer = signer
    this.issuer = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    server.on('request', (request, response) => {
      this.asked.push(request.url ?? '')
      if (this.respond === null) void this.#answer(request.url ?? '').then((body) => response.end(body))
      else this.respond(request, response)
    })
  }

  static async start(): Promise<FakeIssuer> {
    const server = createServer()
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    return new FakeIssuer(server, await newSigner('first'))
  }

  get signer(): { readonly kid: string; readonly privateKey: CryptoKey; readonly publicKey: CryptoKey } {
    return this.#signer
  }

  async rotate(kid: string): Promise<void> {
    this.#signer = await newSigner(kid)
  }

  /** @param now POSIX ms. @param claims an undefined one is left out */
  async token(
    now: number,
    claims: Readonly<Record<string, unknown>> = {},
    header: Readonly<Record<string, unknown>> = {},
  ): Promise<string> {
    const at = Math.floor(now / 1000)
    const usual = { iss: this.issuer, aud: CLIENT_ID, sub: 'ada', name: 'Ada', iat: at, exp: at + 3_600 }
    const payload = Object.fromEntries(
      Object.entries<unknown>({ ...usual, ...claims }).filter(([, value]) => value !== undefined),
    ) as JWTPayload
    const { kid, privateKey } = this.#signer
    return new SignJWT(payload).setProtectedHeader({ alg: 'ES256', kid, ...header }).sign(privateKey)
  }

  async #answer(path: string): Promise<string> {
    if (path === '/.well-known/openid-configuration')
      return JSON.stringify({ issuer: this.issuer, jwks_uri: `${this.issuer}/keys` })
    const { kid, publicKey } = this.#signer
    return JSON.stringify({ keys: [{ ...(await exportJWK(publicKey)), kid, alg: 'ES256', use: 'sig' }] })
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections()
    await new Promise((resolve) => this.#server.close(resolve))
  }
}

async function newSigner(kid: string) {
  return { kid, ...(await generateKeyPair('ES256', { extractable: true })) }
}
