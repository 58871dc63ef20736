// A real OpenID Connect provider (oidc-provider) on a free port, and a robot that uses its pages as a browser would.
import { type KeyObject, createPublicKey, generateKeyPairSync, randomUUID } from 'node:crypto'
import { type RequestListener, createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { vi } from 'vitest'

export const CLIENT_ID = 'tallygate'

/** Users by their login, with the groups of their ID tokens. */
const GROUPS: Readonly<Record<string, readonly string[]>> = {
  ada: ['operators', 'staff'],
  grace: ['admins'],
  mallory: ['visitors'],
}

const NAMES: Readonly<Record<string, string>> = { ada: 'Ada Lovelace', grace: 'Grace Hopper', mallory: 'Mallory' }

export interface RealProviderOptions {
  /** Of ID tokens, seconds. */
  readonly idTokenSeconds?: number
  readonly grantTypes?: readonly string[]
}

const DEVICE_GRANT = 'urn:ietf:params:oauth:grant-type:device_code'

export class RealProvider implements AsyncDisposable {
  readonly issuer: string
  readonly #server: ReturnType<typeof createServer>
  readonly #options: RealProviderOptions
  #listener: RequestListener | null = null
  /** Grants by their token, while the provider lives: a change of its keys keeps them. */
  readonly #stored = new Map<string, Record<string, unknown>>()
  #keys = [newKey()]
  /** Requests to the token endpoint so far. */
  tokenRequests = 0
  /** Status and error with which the token endpoint refuses; null: it does not refuse. */
  tokenRefusal: readonly [status: number, error: string] | null = null
  /** Called before the token endpoint responds. */
  onTokenRequest: () => void = () => undefined

  private constructor(server: ReturnType<typeof createServer>, options: RealProviderOptions) {
    this.#server = server
    this.#options = options
    this.issuer = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  }

  static async start(options: RealProviderOptions = {}): Promise<RealProvider> {
    const started: { provider?: RealProvider } = {}
    const server = createServer((request, response) => {
      // Without a listener, the provider is down.
      const { provider } = started
      if (provider?.up === true) provider.#listener?.(request, response)
      else request.socket.destroy()
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const provider = new RealProvider(server, options)
    started.provider = provider
    await provider.#load()
    return provider
  }

  up = true

  /** A new signing key; the previous one is listed no more. */
  async rotateKeys(): Promise<void> {
    this.#keys = [newKey()]
    await this.#load()
  }

  /** The public half of the key that signs now. */
  get publicKey(): KeyObject {
    const [jwk] = this.#keys
    return createPublicKey({ key: jwk as never, format: 'jwk' })
  }

  async #load(): Promise<void> {
    // The provider says on the console that its pages and keys are for trials.
    for (const method of ['warn', 'info'] as const) vi.spyOn(console, method).mockImplementation(() => undefined)
    const { default: Provider } = await import('oidc-provider')
    const { idTokenSeconds = 3_600, grantTypes = ['authorization_code', 'refresh_token', DEVICE_GRANT] } = this.#options
    const client = (client_id: string) => ({
      client_id,
      application_type: 'native',
      token_endpoint_auth_method: 'none',
      redirect_uris: ['http://127.0.0.1/callback'],
      response_types: ['code'],
      grant_types: grantTypes,
    })
    const stored = this.#stored
    const provider = new Provider(this.issuer, {
      adapter: adapterIn(stored),
      clients: [client(CLIENT_ID), client('another')],
      jwks: { keys: this.#keys },
      cookies: { keys: ['secret-of-tests'] },
      features: {
        devInteractions: { enabled: true },
        deviceFlow: { enabled: grantTypes.includes(DEVICE_GRANT) },
        revocation: { enabled: true },
      },
      claims: { openid: ['sub', 'groups'], profile: ['name'], email: ['email'] },
      conformIdTokenClaims: false,
      issueRefreshToken: async () => grantTypes.includes('refresh_token'),
      ttl: {
        IdToken: idTokenSeconds,
        AccessToken: 600,
        RefreshToken: 86_400,
        Grant: 86_400,
        Session: 600,
        Interaction: 600,
        DeviceCode: 600,
      },
      findAccount: async (_context: unknown, id: string) => ({
        accountId: id,
        claims: async () => ({ sub: id, groups: GROUPS[id] ?? [], name: NAMES[id] ?? id }),
      }),
    })
    provider.use(async (context, next) => {
      await next()
      // The default makes a client wait for five seconds.
      if (context.oidc?.route === 'device_authorization') Object.assign(context.body as object, { interval: 1 })
    })
    const listener = provider.callback()
    this.#listener = (request, response) => {
      if (request.url === '/token') {
        this.tokenRequests += 1
        this.onTokenRequest()
        if (this.tokenRefusal !== null) {
          const [status, error] = this.tokenRefusal
          response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify({ error }))
          return
        }
      }
      listener(request, response)
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections()
    await new Promise((resolve) => this.#server.close(resolve))
    vi.restoreAllMocks()
  }
}

function newKey(): Record<string, unknown> {
  const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 })
  return { ...privateKey.export({ format: 'jwk' }), kid: randomUUID(), use: 'sig', alg: 'RS256' }
}

/** Keeps what the provider stores in a map, so that it survives a new start with other keys. */
function adapterIn(stored: Map<string, Record<string, unknown>>) {
  return class {
    readonly #name: string
    constructor(name: string) {
      this.#name = name
    }
    async upsert(id: string, payload: Record<string, unknown>): Promise<void> {
      stored.set(`${this.#name} ${id}`, payload)
    }
    async find(id: string): Promise<Record<string, unknown> | undefined> {
      return stored.get(`${this.#name} ${id}`)
    }
    #findBy(name: string, value: string): Record<string, unknown> | undefined {
      const mine = [...stored].filter(([key]) => key.startsWith(`${this.#name} `))
      return mine.find(([, payload]) => payload[name] === value)?.[1]
    }
    async findByUid(uid: string): Promise<Record<string, unknown> | undefined> {
      return this.#findBy('uid', uid)
    }
    async findByUserCode(code: string): Promise<Record<string, unknown> | undefined> {
      return this.#findBy('userCode', code)
    }
    async consume(id: string): Promise<void> {
      Object.assign(stored.get(`${this.#name} ${id}`) ?? {}, { consumed: Math.floor(Date.now() / 1000) })
    }
    async destroy(id: string): Promise<void> {
      stored.delete(`${this.#name} ${id}`)
    }
    async revokeByGrantId(grantId: string): Promise<void> {
      for (const [key, payload] of stored) if (payload['grantId'] === grantId) stored.delete(key)
    }
  }
}

/**
 * Opens an address, signs in as this user, agrees to everything, and follows the redirects to their end. Returns the last
 * address with the page there.
 * @param stopAt does not open addresses that begin so, and returns them
 */
export async function browse(address: string, login: string, stopAt?: string): Promise<{ url: string; page: string }> {
  const cookies = new Map<string, string>()
  let request: { readonly url: string; readonly form?: URLSearchParams } = { url: address }
  for (let steps = 0; steps < 20; steps += 1) {
    const { url, form } = request
    if (stopAt !== undefined && url.startsWith(stopAt)) return { url, page: '' }
    const response = await fetch(url, {
      redirect: 'manual',
      headers: { cookie: [...cookies].map(([name, value]) => `${name}=${value}`).join('; ') },
      ...(form === undefined ? {} : { method: 'POST', body: form }),
    })
    for (const cookie of response.headers.getSetCookie()) {
      const [, name = '', value = ''] = /^([^=]+)=([^;]*)/.exec(cookie) ?? []
      cookies.set(name, value)
    }
    const page = await response.text()
    const location = response.headers.get('location')
    const next = location === null ? formOf(page, login, url) : { url: new URL(location, url).href }
    if (next === undefined) return { url, page }
    request = next
  }
  throw new Error(`the sign-in at ${address} does not end`)
}

function formOf(
  page: string,
  login: string,
  url: string,
): { readonly url: string; readonly form: URLSearchParams } | undefined {
  const [, attributes, content = ''] = /<form([^>]*)>([^]*?)<\/form>/.exec(page) ?? []
  const action = /action="([^"]*)"/.exec(attributes ?? '')?.[1]
  if (action === undefined) return undefined
  const form = new URLSearchParams()
  for (const [, input = ''] of content.matchAll(/<input\s([^>]*)>/g)) {
    const name = /name="([^"]*)"/.exec(input)?.[1]
    if (name !== undefined) form.set(name, name === 'login' ? login : (/value="([^"]*)"/.exec(input)?.[1] ?? 'x'))
  }
  return { url: new URL(action, url).href, form }
}
