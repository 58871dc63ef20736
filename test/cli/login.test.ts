// Administrators sign in with a real OpenID Connect provider. The test plays the browser.
import { execFile } from 'node:child_process'
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { HOUR, type Twin, openTwin, pick } from '../cloud/harness.ts'
import { CLIENT_ID, RealProvider, type RealProviderOptions, browse } from '../support/real-provider.ts'
import { withSignInLock } from '../../src/cli/sign-in/kept-sign-in.ts'
import { type Ran, tallygate } from './outside.ts'

/** A user who is not the one of the test. */
const OTHER = 65_534

const ACCESS = [
  { value: 'operators', roles: ['operator' as const] },
  { value: 'admins', roles: ['rules' as const, 'keys' as const] },
]

let provider: RealProvider
let twin: Twin
let directory: string
let aheadMs = 0

async function open(options: RealProviderOptions = {}): Promise<void> {
  provider = await RealProvider.start(options)
  const { issuer } = provider
  twin = await openTwin((settings) => ({
    ...settings,
    // On a busy machine, the provider in this process can take longer than by default.
    oidc: { ...settings.oidc, issuer, clientId: CLIENT_ID, access: ACCESS, timeout: 30_000 },
  }))
  // The provider has no other clock than the machine's.
  twin.followMachine()
}

// The first import takes long on a busy machine.
beforeAll(async () => {
  await (await RealProvider.start())[Symbol.asyncDispose]()
  await import('../../src/cli/sign-in/provider.ts')
})

beforeEach(() => {
  aheadMs = 0
  directory = mkdtempSync(join(tmpdir(), 'tallygate-login-'))
})
afterEach(async () => {
  await twin[Symbol.asyncDispose]()
  await provider[Symbol.asyncDispose]()
  rmSync(directory, { recursive: true })
})

/** What a command writes to standard error, as it comes. */
type Listen = (text: string) => void

async function run(args: readonly string[], onError: Listen = () => undefined, env = {}): Promise<Ran> {
  let err = ''
  const ran = await tallygate(args, {
    env: { HOME: directory, XDG_STATE_HOME: directory, PATH: directory, ...env },
    now: () => Date.now() + aheadMs,
    readText: (path) => readFileSync(path, 'utf8'),
    stderr: {
      write: (text) => {
        err += text
        onError(text)
      },
    },
  })
  return { ...ran, err }
}

const addressIn = (text: string): string | undefined => /http:\/\/127\.0\.0\.1:\d+\/(auth|device)\S*/.exec(text)?.[0]

/** Signs in. The browser starts when the command names an address. */
async function login(user: string, flags: readonly string[] = ['--browser']): Promise<Ran> {
  const browsers: Promise<unknown>[] = []
  const ran = await run(['login', '--url', twin.cloud.address, ...flags], (text) => {
    const [first = '', code] = /http:\S+|[A-Z]{4}-[A-Z]{4}/g[Symbol.match](text) ?? []
    if (code !== undefined) browsers.push(browse(`${first}?user_code=${code}`, user))
    else if (addressIn(text) !== undefined) browsers.push(browse(addressIn(text) ?? '', user))
  })
  await Promise.all(browsers)
  return ran
}

/** Starts a sign-in by browser. Resolves when it waits, with the address for the browser. */
function begin(): { readonly ran: Promise<Ran>; readonly address: Promise<URL> } {
  const address = Promise.withResolvers<URL>()
  const ran = run(['login', '--url', twin.cloud.address, '--browser'], (text) => {
    const found = addressIn(text)
    if (found !== undefined) address.resolve(new URL(found))
  })
  return { ran, address: address.promise }
}

const whoami = (...flags: readonly string[]) => run(['whoami', ...flags])
const files = () => readdirSync(join(directory, 'tallygate/sign-in')).filter((name) => name.endsWith('.json'))
const fileOfSignIn = () => join(directory, 'tallygate/sign-in', files()[0] ?? '')
const kept = () => JSON.parse(readFileSync(fileOfSignIn(), 'utf8')) as Record<string, string>

describe('a sign-in', () => {
  it.each(['--browser', '--device'])(
    'with %s gives all commands for administrators the roles of the user',
    async (flag) => {
      await open()
      const signedIn = await login('ada', [flag])
      const who = `Ada Lovelace (ada at ${provider.issuer})`
      expect(signedIn).toMatchObject({
        code: 0,
        out: `Signed in to ${twin.cloud.address} as ${who}.\nRoles: operator (all instances).\n`,
      })
      expect(statSync(fileOfSignIn()).mode & 0o777).toBe(0o600)
      expect(statSync(join(directory, 'tallygate/sign-in')).mode & 0o777).toBe(0o700)
      const shown = await whoami()
      expect(shown.out).toMatch(/user +Ada Lovelace \(ada at http/)

      const instance = await twin.shop()
      const cloud = ['--url', `${twin.cloud.address}/`]
      const token = await run(['devices', 'enrollment-token', '--instance', instance, ...cloud])
      expect(token).toMatchObject({ code: 0, err: '' })
      const refused = await run([
        'devices',
        'offline-policy',
        '--instance',
        instance,
        '--line-item',
        'ACT-1',
        '--refuse',
        ...cloud,
      ])
      expect(refused.err).toMatch(
        /^tallygate: ROLE_MISSING: .*requires the role rules\. The signed-in user Ada Lovelace/,
      )
      const audit = await run(['audit', 'list', '--limit', '1', ...cloud])
      expect(audit.out).toContain(`${who}  issue enrollment token`)
      const { idToken = '', refreshToken = '' } = kept()
      for (const { out, err } of [signedIn, shown, token, refused, audit]) {
        for (const secret of [idToken, refreshToken, idToken.split('.')[2] ?? ''])
          expect(out + err).not.toContain(secret)
      }
    },
  )

  it('is not kept for a user without a role', async () => {
    await open()
    const refused = await login('mallory')
    expect(refused).toMatchObject({ code: 77, out: '' })
    expect(refused.err).toMatch(/tallygate: SIGN_IN_NOT_MAPPED: .*claim groups.*"visitors"/)
    expect(files()).toEqual([])
    expect((await whoami('--url', twin.cloud.address)).err).toMatch(
      /^tallygate: SIGN_IN_REQUIRED: .*No user is signed in\. Run `tallygate login/,
    )
  })

  it('can happen twice at once', async () => {
    await open()
    const [one, other] = await Promise.all([login('ada'), login('grace')])
    expect([one.code, other.code]).toEqual([0, 0])
    expect((await whoami()).out).toMatch(/Ada Lovelace|Grace Hopper/)
    expect(files()).toHaveLength(1)
  })

  it('is not replaced by a renewal of the previous one that ends later', async () => {
    await open()
    await login('ada')
    const previous = readFileSync(fileOfSignIn())
    const { ran, address } = begin()
    const { href } = await address
    await withSignInLock(
      twin.cloud.address,
      { env: { XDG_STATE_HOME: directory }, stderr: process.stderr },
      async () => {
        await browse(href, 'grace')
        await expect.poll(() => provider.tokenRequests).toBe(2)
        // A sign-in that did not wait would be saved meanwhile.
        for (let round = 0; round < 5; round += 1) await whoami('--url', twin.cloud.address)
        writeFileSync(fileOfSignIn(), previous)
      },
    )
    expect((await ran).code).toBe(0)
    expect((await whoami()).out).toContain('Grace Hopper')
  })

  describe('opens the browser', () => {
    /** With the link that the browser gets. */
    async function beginWithBrowser(): Promise<ReturnType<typeof begin> & { readonly link: string }> {
      await open()
      const seen = join(directory, 'seen')
      writeFileSync(
        join(directory, 'xdg-open'),
        `#!/bin/sh\nprintf '%s\\n' "$#" "$@" >${seen}.part && /bin/mv ${seen}.part ${seen}\n`,
      )
      chmodSync(join(directory, 'xdg-open'), 0o755)
      const begun = begin()
      await expect.poll(() => existsSync(seen)).toBe(true)
      const [count, link = '', ...rest] = readFileSync(seen, 'utf8').split('\n')
      expect([count, rest]).toEqual(['1', ['']])
      return { ...begun, link }
    }

    it('with one argument, which leads it to the provider and has no secret of the sign-in', async () => {
      const { ran, address, link } = await beginWithBrowser()
      expect(link).toMatch(/^http:\/\/127\.0\.0\.1:\d+\/sign-in$/)
      const { status, headers } = await fetch(link, { redirect: 'manual' })
      expect([status, headers.get('location')]).toEqual([302, (await address).href])
      await browse(link, 'ada')
      expect((await ran).code).toBe(0)
    })

    it.runIf(process.getuid?.() === 0)(
      'and does not lead another user to the provider, but shows how to sign in',
      async () => {
        const { ran, link } = await beginWithBrowser()
        const ask = `fetch(process.argv[1], { redirect: 'manual' }).then(async (answer) => console.log(answer.status, answer.headers.get('location'), await answer.text()))`
        const { stdout } = await promisify(execFile)(process.execPath, ['-e', ask, link], { uid: OTHER, cwd: '/' })
        expect(stdout).toMatch(/^403 null .* open the address that tallygate login has printed in its terminal\.\n/)
        await browse(link, 'ada')
        expect((await ran).code).toBe(0)
      },
    )
  })
})

describe('the loopback address', () => {
  const redirectOf = (address: URL) => address.searchParams.get('redirect_uri') ?? ''
  const stateOf = (address: URL) => address.searchParams.get('state') ?? ''

  it('ignores codes with another state or path, and is closed after the sign-in', async () => {
    await open()
    const { ran, address } = begin()
    const redirect = redirectOf(await address)
    for (const forged of [
      `${redirect}?code=x&state=y`,
      `${redirect}?code=x`,
      `${redirect}?code=x&state=y&state=${stateOf(await address)}`,
    ]) {
      expect((await fetch(forged)).status).toBe(400)
    }
    expect((await fetch(redirect.replace('callback', ''))).status).toBe(404)
    const { page, url } = await browse((await address).href, 'ada')
    expect(page).toMatch(/^Return to the terminal/)
    expect((await ran).code).toBe(0)
    await expect(fetch(url)).rejects.toThrow()
  })

  it('does not accept the code of another sign-in', async () => {
    await open()
    const [one, other] = [begin(), begin()]
    const stolen = new URL((await browse((await one.address).href, 'grace', redirectOf(await one.address))).url)
    stolen.searchParams.set('state', stateOf(await other.address))
    const target = new URL(redirectOf(await other.address))
    target.search = stolen.search
    expect((await fetch(target)).status).toBe(200)
    const refused = await other.ran
    expect(refused).toMatchObject({ code: 77, out: '' })
    expect(refused.err).toMatch(/tallygate: SIGN_IN_FAILED: The provider answered invalid_grant/)
    expect(files()).toEqual([])
    await fetch(
      `${redirectOf(await one.address)}?error=access_denied&state=${stateOf(await one.address)}&iss=${provider.issuer}`,
    )
    expect((await one.ran).err).toMatch(/SIGN_IN_FAILED: The provider answered access_denied/)
  })

  it('does not accept the response of another issuer', async () => {
    await open()
    const { ran, address } = begin()
    await fetch(`${redirectOf(await address)}?code=x&state=${stateOf(await address)}&iss=https://other.example`)
    expect((await ran).err).toMatch(/SIGN_IN_FAILED: /)
  })
})

describe('a sign-in that has expired', () => {
  it('is renewed once, also by commands at the same time', async () => {
    await open()
    await login('ada')
    const before = kept()
    expect(provider.tokenRequests).toBe(1)
    aheadMs = 2 * HOUR
    const all = await Promise.all([whoami(), whoami(), whoami(), whoami()])
    expect(all.map(({ code, err }) => [code, err])).toEqual(all.map(() => [0, '']))
    expect(provider.tokenRequests).toBe(2)
    expect(kept()['refreshToken']).not.toBe(before['refreshToken'])
  })

  it('is renewed with the next key of the provider, and tokens of the previous key are refused', async () => {
    await open()
    await login('ada')
    const { idToken = '' } = kept()
    await provider.rotateKeys()
    twin.now += 11_000 + 10 * 60_000
    aheadMs = 2 * HOUR
    expect((await whoami()).code).toBe(0)
    const { body } = await twin.call('GET', '/edge/api/v1/caller', { token: idToken })
    expect(pick(body, 'code')).toBe('TOKEN_INVALID')
  })

  it('asks for a new one if the provider gave no refresh token', async () => {
    await open({ grantTypes: ['authorization_code'] })
    await login('ada')
    aheadMs = 2 * HOUR
    const { code, err } = await whoami()
    expect(code).toBe(77)
    expect(err).toMatch(/SIGN_IN_REQUIRED: http.*The sign-in has expired\. Run `tallygate login/)
  })

  it('is renewed also with a clock that was set back', async () => {
    await open()
    await login('ada')
    aheadMs = -2 * HOUR
    expect((await whoami()).code).toBe(0)
    expect(provider.tokenRequests).toBe(2)
    expect((await whoami()).code).toBe(0)
    expect(provider.tokenRequests).toBe(2)
  })

  it('serves the command even if the renewed one cannot be saved', async () => {
    await open()
    await login('ada')
    aheadMs = 2 * HOUR
    const path = fileOfSignIn()
    provider.onTokenRequest = () => {
      rmSync(path)
      mkdirSync(path)
    }
    const { code, err } = await whoami('--url', twin.cloud.address)
    expect(code).toBe(0)
    expect(err).toMatch(/^The renewed sign-in cannot be saved\./)
  })

  it.each([
    [503, 'server_error'],
    [429, 'slow_down'],
    [400, 'temporarily_unavailable'],
  ])('is not over if the provider responds to its renewal with %i %s', async (status, error) => {
    await open()
    await login('ada')
    aheadMs = 2 * HOUR
    provider.tokenRefusal = [status, error]
    const { code, err } = await whoami()
    expect(err).toMatch(/^tallygate: SIGN_IN_UNAVAILABLE: The provider cannot be used: /)
    expect(code).toBe(69)
    provider.tokenRefusal = [400, 'invalid_grant']
    expect((await whoami()).err).toMatch(/^tallygate: SIGN_IN_REQUIRED: The provider has ended the sign-in: /)
    provider.tokenRefusal = null
    twin.now = Date.now() + aheadMs
    await whoami()
    expect(provider.tokenRequests).toBe(4)
  })

  it('cannot be renewed while the provider is down, and keys work', async () => {
    await open()
    await login('ada')
    aheadMs = 2 * HOUR
    provider.up = false
    const { code, err } = await whoami()
    expect(code).toBe(69)
    expect(err).toMatch(/^tallygate: SIGN_IN_UNAVAILABLE: The provider cannot be used/)
    twin.now = Date.now() + aheadMs
    const key = ['--url', twin.cloud.address, '--admin-key', twin.cloud.administrationKeyFile]
    expect((await whoami(...key)).out).toMatch(/roles +read, operator, rules, keys \(all instances\)/)
  })
})

describe('tallygate logout', () => {
  it('deletes the tokens and revokes them at the provider', async () => {
    await open()
    await login('ada')
    const [path, copy] = [fileOfSignIn(), readFileSync(fileOfSignIn(), 'utf8')]
    expect(await run(['logout'])).toMatchObject({ code: 0, out: `Signed out of ${twin.cloud.address}.\n`, err: '' })
    expect(files()).toEqual([])
    const again = { code: 0, out: `No user was signed in to ${twin.cloud.address}.\n`, err: '' }
    expect(await run(['logout', '--url', twin.cloud.address])).toMatchObject(again)
    writeFileSync(path, copy)
    aheadMs = 2 * HOUR
    expect((await whoami()).err).toMatch(/SIGN_IN_REQUIRED: The provider has ended the sign-in/)
  })

  it('deletes the tokens while the provider is down, and reports it', async () => {
    await open()
    await login('ada')
    provider.up = false
    const { code, err } = await run(['logout', '--url', twin.cloud.address])
    expect({ code, err }).toMatchObject({ code: 0, err: expect.stringMatching(/could not be revoked/) as string })
    expect(files()).toEqual([])
  })
})

describe('a sign-in that cannot succeed', () => {
  it('is refused before the user does anything', async () => {
    await open({ grantTypes: ['authorization_code'] })
    const address = ['login', '--url', twin.cloud.address]
    writeFileSync(join(directory, 'file'), '')
    const unwritable = await run([...address, '--browser'], undefined, { XDG_STATE_HOME: join(directory, 'file') })
    expect(unwritable).toMatchObject({
      code: 73,
      err: expect.stringMatching(/^tallygate: OUTPUT_UNWRITABLE/) as string,
    })
    const byDevice = await run([...address, '--device'])
    expect(byDevice.err).toMatch(/^tallygate: SIGN_IN_NOT_OFFERED: .* offers no sign-in by code\. Use --browser, or an/)
    const remote = await run([...address], undefined, { DISPLAY: ':0', SSH_CONNECTION: 'x' })
    expect(remote.err).toBe(byDevice.err)
    const plain = await run(['login', '--url', 'http://cloud.example/dm'])
    expect(plain).toMatchObject({ code: 64, err: expect.stringMatching(/requires https/) as string })
    provider.up = false
    expect((await run([...address])).err).toMatch(/^tallygate: SIGN_IN_UNAVAILABLE/)
  })

  it('revokes the tokens if they cannot be saved', async () => {
    await open()
    await login('ada')
    const path = fileOfSignIn()
    rmSync(path)
    mkdirSync(path)
    const full = await login('ada')
    expect(full).toMatchObject({ code: 73, out: '' })
    expect(full.err).toMatch(/tallygate: OUTPUT_UNWRITABLE/)
    expect(readdirSync(join(directory, 'tallygate/sign-in')).filter((name) => name.endsWith('.partial'))).toEqual([])
  })

  it('is refused by a cloud without a provider', async () => {
    await open()
    await twin.stop()
    await twin.start((settings) => ({
      ...settings,
      oidc: { ...settings.oidc, issuer: null, clientId: null, access: null },
    }))
    const { code, err } = await run(['login', '--url', twin.cloud.address])
    expect(code).toBe(69)
    expect(err).toMatch(/^tallygate: SIGN_IN_NOT_OFFERED: Administrators of this cloud use keys only\. Use an admin/)
    expect(err).not.toMatch(/--device|--browser/)
  })
})
