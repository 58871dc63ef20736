import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { administering, tallygate } from '../../cli/outside.ts'
import { DAY, HOUR, MINUTE, type Twin, openTwin, pick } from '../harness.ts'
import { Browser, consoleCode } from './browse.ts'

let twin: Twin

beforeEach(async () => {
  twin = await openTwin()
})
afterEach(() => twin[Symbol.asyncDispose]())

describe('a sign-in with a code', () => {
  it('gives the browser a cookie that scripts and other sites cannot use, and opens the overview', async () => {
    const browser = new Browser(twin)
    const { status, headers } = await browser.send('/sign-in', { code: await consoleCode(twin) })
    expect([status, headers.get('location')]).toEqual([303, '/dynamicmonetization/console'])
    expect(headers.get('set-cookie')).toMatch(
      /^tallygate_console=[\w.-]+; Path=\/dynamicmonetization\/console; HttpOnly; SameSite=Strict$/,
    )
    expect((await browser.open('')).status).toBe(200)
  })

  it('names the other way to a browser that runs no script', async () => {
    const { page } = await new Browser(twin).open('/sign-in')
    expect(/<noscript>([^]*?)<\/noscript>/.exec(page)?.[1]).toContain('use an access token')
  })

  it('accepts the token of the command that the page shows', async () => {
    const browser = new Browser(twin)
    const { page } = await browser.open('/sign-in')
    const command = /<code>tallygate (token [^<]*)<\/code>/.exec(page)?.[1] ?? ''
    const keyFile = (path: string): string =>
      path === 'administration-key.pem' ? twin.cloud.administrationKeyFile : path
    const { readText, ...world } = administering(twin)
    const made = await tallygate(command.split(' '), { ...world, readText: (path) => readText(keyFile(path)) })
    expect([made.code, made.err]).toEqual([0, ''])
    expect((await browser.send('/sign-in', { token: made.out.trim() })).status).toBe(303)
  })

  it('is refused for a code that was used already', async () => {
    const code = await consoleCode(twin)
    expect((await new Browser(twin).send('/sign-in', { code })).status).toBe(303)
    const again = await new Browser(twin).send('/sign-in', { code })
    expect([again.status, again.headers.get('set-cookie')]).toEqual([401, null])
    expect(again.page).toContain('The code was used already.')
  })

  it('is refused for a code that has expired', async () => {
    const code = await consoleCode(twin)
    twin.now += 2 * MINUTE
    const late = await new Browser(twin).send('/sign-in', { code })
    expect([late.status, late.headers.get('set-cookie')]).toEqual([401, null])
    expect(late.page).toContain('The code has expired')
  })

  it('is refused for text that is no code, and for the token itself in its place', async () => {
    for (const code of ['', 'nonsense', await twin.administrationToken()]) {
      const { status, headers } = await new Browser(twin).send('/sign-in', { code })
      expect([code, status, headers.get('set-cookie')]).toEqual([code, 401, null])
    }
  })

  it('survives a restart of the cloud between code and browser', async () => {
    const code = await consoleCode(twin)
    await twin.restart()
    expect((await new Browser(twin).send('/sign-in', { code })).status).toBe(303)
  })

  it('ends with its token', async () => {
    const browser = await Browser.signedIn(twin)
    twin.now += 2 * HOUR
    const { status, page } = await browser.open('/devices')
    expect(status).toBe(401)
    expect(page).toContain('Your sign-in has expired. Sign in again. (TOKEN_NOT_IN_TIME)')
    const token = await twin.administrationToken()
    twin.now += 2 * HOUR
    expect((await new Browser(twin).send('/sign-in', { token })).page).toContain('The token has expired')
  })

  it('is refused for a form that another site sends', async () => {
    const code = await consoleCode(twin)
    const { status } = await new Browser(twin).send('/sign-in', { code }, { 'sec-fetch-site': 'cross-site' })
    expect(status).toBe(403)
  })
})

it.each(['[1]', '{"code":5}', 'x'.repeat(1_000_000)])('no form of the console takes JSON', async (body) => {
  const headers = { 'content-type': 'application/json' }
  const sent = await fetch(`${twin.cloud.address}/console/sign-in`, { method: 'POST', headers, body })
  expect(sent.status).toBe(403)
  const page = await sent.text()
  expect(page).toContain('(CONSOLE_FORM_REFUSED)')
  expect(page).not.toContain('application/json')
})

it('no form of the console takes a large body', async () => {
  const body = new URLSearchParams({ token: 'x'.repeat(64 * 1024) })
  const sent = await fetch(`${twin.cloud.address}/console/sign-in`, { method: 'POST', body })
  expect(sent.status).toBe(413)
})

describe('a sign-in with a token', () => {
  it('takes the token of an administrator', async () => {
    const browser = new Browser(twin)
    expect((await browser.send('/sign-in', { token: await twin.administrationToken() })).status).toBe(303)
    expect((await browser.open('')).status).toBe(200)
  })

  it('refuses a token of a client', async () => {
    const token = await twin.clientToken(await twin.instance())
    const { status, page } = await new Browser(twin).send('/sign-in', { token })
    expect(status).toBe(401)
    expect(page).toContain('CONSOLE_SIGN_IN_REFUSED')
    expect(page).toContain('Run <code>tallygate console</code> again')
  })
})

describe('a page', () => {
  it('asks for a sign-in without a cookie, and with one that is no token', async () => {
    const browser = new Browser(twin)
    for (const cookie of ['', 'tallygate_console=nonsense']) {
      browser.cookie = cookie
      const { status, page } = await browser.open('')
      expect(status).toBe(401)
      expect(page).toContain('tallygate console')
    }
  })

  it('forbids scripts, other sites and caches', async () => {
    const { headers } = await (await Browser.signedIn(twin)).open('')
    const policy = headers.get('content-security-policy') ?? ''
    expect(policy).toContain("default-src 'none'")
    expect(policy).not.toContain('script-src')
    expect(headers.get('cache-control')).toBe('no-store')
  })

  it('contains neither the token nor the code', async () => {
    const code = await consoleCode(twin)
    const browser = new Browser(twin)
    await browser.send('/sign-in', { code })
    const { page } = await browser.open('')
    const [, token = ''] = browser.cookie.split('=', 2)
    expect(token.length).toBeGreaterThan(100)
    expect(page).not.toContain(token)
    expect(page).not.toContain(code)
  })
})

describe('a sign-out', () => {
  it('needs the token of the form', async () => {
    const browser = await Browser.signedIn(twin)
    expect((await browser.send('/sign-out', { formToken: 'guessed' })).status).toBe(403)
    expect((await browser.open('')).status).toBe(200)
  })

  it('removes the cookie', async () => {
    const browser = await Browser.signedIn(twin)
    const { headers } = await browser.send('/sign-out', { formToken: await browser.formToken() })
    expect(headers.get('set-cookie')).toMatch(/^tallygate_console=; .*Max-Age=0$/)
  })

  it('is possible from the page of an error, and after the sign-in has expired', async () => {
    const browser = await Browser.signedIn(twin)
    const formToken = await browser.formToken('/devices/nope')
    twin.now += DAY
    expect((await browser.open('')).status).toBe(401)
    const { status, headers } = await browser.send('/sign-out', { formToken })
    expect([status, headers.get('set-cookie')]).toEqual([303, expect.stringContaining('Max-Age=0') as string])
  })
})

it('a limited administrator sees only the own instances', async () => {
  const [mine, other] = [await twin.instance('mine'), await twin.instance('other')]
  const browser = await Browser.limited(twin, { roles: ['read'], instances: [mine] })
  expect((await browser.open('')).page).not.toContain(other)
  expect((await browser.open(`?instance=${other}`)).status).toBe(403)
  expect((await browser.open(`?instance=${mine}`)).status).toBe(200)
})

it('a cloud that other machines can reach serves no console unless it is set', async () => {
  for (const [host, serves, expected] of [
    ['0.0.0.0', 'loopback', 404],
    ['0.0.0.0', 'on', 401],
    ['127.0.0.1', 'off', 404],
  ] as const) {
    await using other = await openTwin((settings) => ({
      ...settings,
      http: { ...settings.http, host, console: serves },
    }))
    const address = other.cloud.address.replace('0.0.0.0', '127.0.0.1')
    expect([host, serves, (await fetch(`${address}/console`)).status]).toEqual([host, serves, expected])
    if (expected !== 404) continue
    const token = await other.administrationToken()
    const refused = await fetch(`${address}/edge/api/v1/console-codes`, {
      method: 'POST',
      headers: { authorization: `Bearer ${token}` },
    })
    expect(pick(await refused.json(), 'code')).toBe('CONSOLE_OFF')
  }
})

it('no response of the console differs from its declaration', async () => {
  const browser = await Browser.signedIn(twin)
  for (const path of ['', '/devices', '/sign-in', '/nowhere']) await browser.open(path)
  expect(twin.wrongAnswers).toEqual([])
})
