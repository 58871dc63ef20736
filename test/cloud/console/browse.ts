// The console as a browser without script uses it: pages, forms and one cookie.
import { makeAccessToken } from '../../../src/client/access-token.ts'
import { HOUR, type Twin, newKeyPair, text } from '../harness.ts'

export type Form = Readonly<Record<string, string>>

export interface Shown {
  readonly status: number
  readonly page: string
  readonly headers: Headers
}

export class Browser {
  readonly #twin: Twin
  cookie = ''

  constructor(twin: Twin) {
    this.#twin = twin
  }

  /** Signed in with a code, as after `tallygate console`. */
  static async signedIn(twin: Twin): Promise<Browser> {
    const browser = new Browser(twin)
    const { status } = await browser.send('/sign-in', { code: await consoleCode(twin) })
    if (status !== 303) throw new Error(`the sign-in was answered with ${status}`)
    return browser
  }

  /** Signed in as an administrator with these roles and instances. */
  static async limited(twin: Twin, limits: Parameters<typeof limitedToken>[1]): Promise<Browser> {
    const browser = new Browser(twin)
    await browser.send('/sign-in', { token: await limitedToken(twin, limits) })
    return browser
  }

  async open(path: string, headers: Readonly<Record<string, string>> = {}): Promise<Shown> {
    return this.#fetch(path, { headers })
  }

  /** The values of the form that edits rules, rate tables, line items or instances, as the page shows them. */
  async form(path: string): Promise<Form> {
    const { page } = await this.open(path)
    const form =
      /<form method="post" action="[^"]*(?:rules|rate-tables|line-items|instances)\/[^]*?<\/form>/.exec(page)?.[0] ?? ''
    const inputs = [...form.matchAll(/name="([\w.]+)"\s+value="([^"]*)"/g)]
    const areas = [...form.matchAll(/<textarea name="([\w.]+)"[^>]*>([^<]*)<\/textarea>/g)]
    const selects = [...form.matchAll(/<select name="([\w.]+)"[^>]*>([^]*?)<\/select>/g)].map(
      ([all, name, options = '']) => [
        all,
        name,
        /value="([\w-]*)" selected/.exec(options)?.[1] ?? /value="([\w-]*)"/.exec(options)?.[1] ?? '',
      ],
    )
    const pairs = [...inputs, ...areas, ...selects].map(([, name = '', value = '']) => [name, decoded(value)])
    if (pairs.length === 0) throw new Error(`${path} has no such form`)
    return Object.fromEntries(pairs) as Form
  }

  async send(path: string, form: Form, headers: Readonly<Record<string, string>> = {}): Promise<Shown> {
    return this.#fetch(path, { method: 'POST', body: new URLSearchParams(form), headers })
  }

  async formToken(path = ''): Promise<string> {
    const { page } = await this.open(path)
    return /name="formToken" value="([^"]+)"/.exec(page)?.[1] ?? ''
  }

  async #fetch(path: string, init: RequestInit): Promise<Shown> {
    const response = await fetch(`${this.#twin.cloud.address}/console${path}`, {
      ...init,
      headers: { ...(init.headers as Record<string, string>), cookie: this.cookie },
      redirect: 'manual',
    })
    const [cookie] = response.headers.getSetCookie()
    if (cookie !== undefined) this.cookie = cookie.split(';', 1)[0] ?? ''
    return { status: response.status, page: await response.text(), headers: response.headers }
  }
}

function decoded(value: string): string {
  return value
    .replaceAll('&lt;', '<')
    .replaceAll('&gt;', '>')
    .replaceAll('&quot;', '"')
    .replaceAll('&#39;', "'")
    .replaceAll('&amp;', '&')
}

export async function consoleCode(twin: Twin, token?: string): Promise<string> {
  const options = token === undefined ? {} : { token }
  return text((await twin.call('POST', '/edge/api/v1/console-codes', options)).body, 'code')
}

/** The token of an administrator with these roles and instances. */
export async function limitedToken(
  twin: Twin,
  limits: { readonly roles?: readonly string[]; readonly instances?: readonly string[] },
): Promise<string> {
  const pair = newKeyPair()
  const body = [{ id: 'limited', publicKey: pair.publicPem, ...limits }]
  const { status, text: said } = await twin.call('PUT', '/api/v1.1/administration-keys', { body })
  if (status !== 200) throw new Error(said)
  return makeAccessToken({
    kind: 'ADMIN',
    privateKey: pair.privatePem,
    keyId: 'limited',
    instanceIds: [],
    issuer: 'tests',
    now: twin.wall,
    lifetimeMs: HOUR,
  })
}
