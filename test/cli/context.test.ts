// Contexts: which cloud commands call, and as whom. The clouds are real, or servers that only have a certificate.
import { mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { ERRORS } from '../../src/protocol/errors.ts'
import { temporaryDirectory } from '../agent/harness.ts'
import { type Twin, newKeyPair, openTwin } from '../cloud/harness.ts'
import { Authority } from '../support/certificates.ts'
import { type Ran, tallygate } from './outside.ts'

let [twin, home]: [Twin, string] = [undefined as never, '']
beforeEach(async () => {
  twin = await openTwin()
  home = temporaryDirectory()
})
afterEach(() => twin[Symbol.asyncDispose]())

const run = (args: readonly string[], env: Readonly<Record<string, string>> = {}): Promise<Ran> =>
  tallygate(args, {
    now: () => twin.now,
    env: { XDG_CONFIG_HOME: home, XDG_STATE_HOME: home, ...env },
    readText: (path) => readFileSync(path, 'utf8'),
  })

const origin = (): string => new URL(twin.cloud.address).origin
const add = (name: string): Promise<Ran> =>
  run(['context', 'add', name, '--url', origin(), '--admin-key', twin.cloud.administrationKeyFile])

describe('a context', () => {
  it('replaces --url and --admin-key, and adds the path prefix', async () => {
    expect(await add('prod')).toEqual({
      code: 0,
      out: `Added prod: ${origin()}/dynamicmonetization. Commands use it now.\n`,
      err: '',
    })
    expect(await run(['devices', 'list'])).toEqual({ code: 0, out: 'No devices.\n', err: '' })
    expect((await run(['context', 'add', 'prod', '--url', 'https://cloud.example'])).out).toBe(
      'Replaced prod: https://cloud.example/dynamicmonetization. Commands use it now.\n',
    )
  })

  it('is in a file that only its user can read, without the key', async () => {
    await add('prod')
    const file = join(home, 'tallygate', 'contexts.json')
    expect(statSync(file).mode & 0o777).toBe(0o600)
    const shown = `${readFileSync(file, 'utf8')}${(await run(['context', 'list'])).out}`
    expect(shown).toContain(twin.cloud.administrationKeyFile)
    expect(shown).not.toContain('PRIVATE KEY')
  })

  it('is kept when others are added at the same time', async () => {
    const names = ['one', 'two', 'three', 'four', 'five']
    await Promise.all(names.map(add))
    const listed = (await run(['context', 'list', '--json'])).out.trimEnd().split('\n')
    expect(listed.map((line) => (JSON.parse(line) as { name: string }).name).sort()).toEqual(names.toSorted())
  })

  it.each(['a b', 'a\u001b[31m', 'a\n', '__proto__', '-', 'x'.repeat(101)])('is not named %j', async (name) => {
    const { code, out, err } = await add(name)
    expect([code, out]).toEqual([64, ''])
    expect(err).toContain('Use up to 100 letters, digits, dots, hyphens and underscores, such as prod.')
  })

  it('is named in any script', async () => {
    expect((await add('prüfstand-2.0_東京')).code).toBe(0)
    expect((await run(['context', 'use', 'prüfstand-2.0_東京'])).code).toBe(0)
  })

  it('is not stored where no directory can be made, and the error names the reason', async () => {
    const { code, err } = await tallygate(
      ['context', 'add', 'prod', '--url', origin(), '--admin-key', twin.cloud.administrationKeyFile],
      { env: { HOME: '/proc' }, readText: (path) => readFileSync(path, 'utf8') },
    )
    expect(code).toBe(ERRORS.OUTPUT_UNWRITABLE.exit)
    expect(err).toContain('Cannot write /proc/.config/tallygate: its directory does not exist.')
  })

  it('is chosen by name, by variable or as the current one', async () => {
    await add('prod')
    expect((await run(['context', 'add', 'away', '--url', 'http://127.0.0.1:1'])).out).toBe(
      'Added away: http://127.0.0.1:1/dynamicmonetization. Commands use prod until you run: tallygate context use away\n',
    )
    const list = ['devices', 'list', '--admin-key', twin.cloud.administrationKeyFile]
    const away = 'http://127.0.0.1:1/dynamicmonetization: no process is listening there'
    expect((await run([...list, '--context', 'away'])).err).toContain(away)
    expect((await run(list, { TALLYGATE_CONTEXT: 'away' })).err).toContain(away)
    expect((await run(list)).code).toBe(0)
    expect(await run(['context', 'use', 'away'])).toEqual({
      code: 0,
      out: 'Commands use away now: http://127.0.0.1:1/dynamicmonetization.\n',
      err: '',
    })
    expect((await run(list)).err).toContain(away)
    const [, ...rows] = (await run(['context', 'list'])).out.split('\n')
    expect(rows.map((row) => row.split(/ +/, 2))).toEqual([['', 'prod'], ['*', 'away'], ['']])
    expect((await run(['context', 'remove', 'away'])).out).toBe(
      'Removed away. No context is the current one. Choose one with: tallygate context use <name>\n',
    )
    expect((await run(list)).err).toContain('No cloud is selected.')
    await run(['context', 'use', 'prod'])
    await run(['context', 'add', 'away', '--url', 'http://127.0.0.1:1'])
    expect((await run(['context', 'remove', 'away'])).out).toBe('Removed away. Commands use prod.\n')
  })

  it('lends its key to no other address', async () => {
    await add('prod')
    const { err } = await run(['devices', 'list', '--url', twin.cloud.address])
    expect(err).toMatch(/^tallygate: SIGN_IN_REQUIRED: /)
  })

  it('gives way to variables', async () => {
    await run(['context', 'add', 'away', '--url', 'http://127.0.0.1:1'])
    const env = { TALLYGATE_URL: origin(), TALLYGATE_ADMIN_KEY: twin.cloud.administrationKeyFile }
    expect(await run(['devices', 'list'], env)).toMatchObject({ code: 0, out: 'No devices.\n' })
  })

  it('that does not exist is named with a close one', async () => {
    await add('prod')
    const { code, err } = await run(['devices', 'list', '--context', 'prodd'])
    expect(code).toBe(64)
    expect(err).toContain('There is no context prodd. Did you mean prod?')
    expect((await run(['context', 'use', 'other'])).err).toContain('tallygate context list')
  })

  it('with a key file that cannot be used is not added', async () => {
    const { err } = await run(['context', 'add', 'prod', '--url', origin(), '--admin-key', '/no/key.pem'])
    expect(err).toMatch(/^tallygate: KEY_UNUSABLE: /)
    expect((await run(['context', 'list'])).out).toContain('No contexts.')
  })

  it('of a damaged file is CONFIG_INVALID with its path', async () => {
    await add('prod')
    const file = join(home, 'tallygate', 'contexts.json')
    for (const text of ['{"current": 1}', '{', '{"current":"a","contexts":{"a":{"url":"nowhere"}}}']) {
      writeFileSync(file, text)
      const { code, err } = await run(['devices', 'list'])
      expect([text, code]).toEqual([text, 78])
      expect(err.startsWith(`tallygate: CONFIG_INVALID: ${file}`)).toBe(true)
      expect(err).toMatch(
        /\. Correct the file, or delete it and add the contexts again \(`tallygate context add`\)\.\n$/,
      )
      expect(err).not.toContain('is missing')
      expect(err.includes(`${file} is not JSON`)).toBe(text === '{')
    }
  })

  it('of a file that cannot be read is CONFIG_UNREADABLE, and the file stays', async () => {
    const file = join(home, 'tallygate', 'contexts.json')
    mkdirSync(file, { recursive: true })
    for (const args of [
      ['context', 'list'],
      ['context', 'add', 'prod', '--url', origin()],
    ]) {
      const { code, err } = await run(args)
      expect([args, code, err]).toEqual([
        args,
        78,
        expect.stringContaining(`CONFIG_UNREADABLE: ${file}: it is a directory`),
      ])
    }
  })
})

it('names the variable with an address that is not valid', async () => {
  const { code, err } = await tallygate(['devices', 'list'], { env: { TALLYGATE_URL: 'foo' } })
  expect(code).toBe(64)
  expect(err).toContain(
    'USAGE: The variable TALLYGATE_URL has no valid address. Use an http or https URL, such as http://127.0.0.1:7080. See ',
  )
})

it.for([
  [['devices', 'list'], { TALLYGATE_URL: 'https://me:hunter2@cloud.example.com' }],
  [['devices', 'list'], { TALLYGATE_URL: 'me:hunter2@cloud.example.com' }],
  [['devices', 'list', '--url', 'https://me:hunter2@cloud.example.com'], {}],
  [['context', 'add', 'prod', '--url', 'https://:hunter2@cloud.example.com'], {}],
] as const)('shows no password of an address: %s', async ([args, env]) => {
  const { code, out, err } = await tallygate([...args], { env })
  expect(code).toBe(64)
  expect(err).toMatch(/^tallygate: USAGE: .*(?:contains a user or a password|Use an http or https URL)/)
  expect(out + err).not.toContain('hunter2')
})

it('without any cloud, the error names the ways to select one', async () => {
  const { code, err } = await run(['devices', 'list'])
  expect(code).toBe(64)
  expect(err).toMatch(/tallygate context add.*--url.*TALLYGATE_URL/)
})

it('an administrator reads nothing about grants of a device when the cloud is away', async () => {
  const { err } = await run([
    'devices',
    'list',
    '--url',
    'http://127.0.0.1:1',
    '--admin-key',
    twin.cloud.administrationKeyFile,
  ])
  expect(err).toMatch(/^tallygate: SERVICE_UNREACHABLE: .* Check that the cloud runs, its address/)
  expect(err).not.toContain('device')
})

describe('the certificate of the cloud', () => {
  /** The error of a command that calls a server with this certificate. */
  async function refusal(authority: Authority, untilMs: number, flags: readonly string[]): Promise<string> {
    const { certificate, key } = await authority.certify(untilMs)
    const server = createServer({ cert: certificate, key }, (_request, response) => response.end('{}'))
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const url = `https://127.0.0.1:${(server.address() as AddressInfo).port}`
    try {
      return (await run(['whoami', '--url', url, '--admin-key', twin.cloud.administrationKeyFile, ...flags])).err
    } finally {
      server.closeAllConnections()
      server.close()
    }
  }

  it('is trusted by --ca-file, and named when it has expired or its authority is unknown', async () => {
    await using authority = await Authority.make()
    const caFile = join(home, 'ca.pem')
    writeFileSync(caFile, authority.certificate)
    const [later, before] = [Date.now() + 86_400_000, Date.now() - 60_000]
    const key = join(home, 'key.pem')
    writeFileSync(key, newKeyPair().privatePem)
    expect(await refusal(authority, later, ['--ca-file', key])).toMatch(/USAGE: .*key\.pem has no PEM certificate\./)
    expect(await refusal(authority, later, [])).toMatch(/CERTIFICATE_REFUSED: .*does not know the authority.*--ca-file/)
    expect(await refusal(authority, before, ['--ca-file', caFile])).toMatch(
      /CERTIFICATE_REFUSED: .*has expired\. Renew the certificate of the server/,
    )
    expect(await refusal(authority, later, ['--ca-file', caFile])).toMatch(/ANSWER_UNEXPECTED/)
  })
})
