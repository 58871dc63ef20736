import { generateKeyPairSync } from 'node:crypto'
import { jwtVerify } from 'jose'
import { describe, expect, test } from 'vitest'
import { fakeService } from './fake-service.ts'
import { tallygate } from './outside.ts'

const { privateKey, publicKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
const pem = privateKey.export({ format: 'pem', type: 'pkcs8' })
const instance = '64d2028c-ae87-4069-a624-66089d957ef9'
const now = 1_800_000_000_000

const token = (...args: string[]) =>
  tallygate(['token', '--key', '/key.pem', ...args], { readText: (path) => (path === '/key.pem' ? pem : '') })

test('it prints the token and nothing else', async () => {
  const { code, out, err } = await token('--admin', '--kid', 'k1', '--ttl', '5m')
  expect({ code, err }).toEqual({ code: 0, err: '' })
  expect(out).toMatch(/^[\w-]+\.[\w-]+\.[\w-]+\n$/)
  const { payload } = await jwtVerify(out.trim(), publicKey, { currentDate: new Date(now) })
  expect(payload).toMatchObject({ cnf: { jwk: { kid: 'k1', kty: 'ADMIN' } }, exp: now / 1000 + 300 })
})

test('a client token lists the instances that are given', async () => {
  const other = instance.replace(/9$/, '8')
  const { out } = await token('--client', '--instance', instance, '--instance', other)
  const { payload } = await jwtVerify(out.trim(), publicKey, { currentDate: new Date(now) })
  expect(payload.aud).toEqual([instance, other])
})

test('a client token finds an instance by its name in the cloud of the context', async () => {
  await using twin = await fakeService('tcp', {
    'GET /dm/provisioning/api/v1.1/instances?next=0': {
      body: [{ content: [{ id: instance, shortName: 'Workshop' }], next: 0 }],
    },
  })
  const env = { TALLYGATE_URL: twin.address, TALLYGATE_ADMIN_KEY: '/key.pem' }
  const named = (name: string) =>
    tallygate(['token', '--key', '/key.pem', '--client', '--instance', name], { env, readText: () => pem })
  const { payload } = await jwtVerify((await named('Workshop')).out.trim(), publicKey, { currentDate: new Date(now) })
  expect(payload.aud).toEqual([instance])
  expect((await named('Workshp')).err).toContain('NOT_FOUND: There is no instance Workshp. Did you mean Workshop?')
})

test('an administration token is signed with the key of the selected cloud', async () => {
  const contexts = {
    current: 'prod',
    contexts: {
      prod: { url: 'https://prod/dm', adminKey: '/key.pem', kid: 'k2' },
      people: { url: 'https://people/dm' },
    },
  }
  const made = async (args: readonly string[], env: Record<string, string> = {}) =>
    tallygate(['token', ...args], {
      env: { XDG_CONFIG_HOME: '/config', ...env },
      readText: (path) => (path === '/key.pem' ? pem : JSON.stringify(contexts)),
    })
  const kidOf = async (made: Promise<{ readonly out: string }>): Promise<unknown> =>
    (await jwtVerify((await made).out.trim(), publicKey, { currentDate: new Date(now) })).payload['cnf']
  expect(await kidOf(made(['--admin']))).toMatchObject({ jwk: { kid: 'k2', kty: 'ADMIN' } })
  const env = { TALLYGATE_URL: 'https://other/dm', TALLYGATE_ADMIN_KEY: '/key.pem' }
  expect(await kidOf(made(['--admin', '--kid', 'k3'], env))).toMatchObject({ jwk: { kid: 'k3' } })
  expect(await made(['--admin', '--context', 'people'])).toMatchObject({
    code: 64,
    err: 'tallygate: USAGE: There is no administration key for https://people/dm: give --key. See tallygate token --help.\n',
  })
  expect((await made(['--client', '--instance', instance])).err).toContain('A client token needs --key')
})

describe('what cannot be meant is refused:', () => {
  test.each([
    ['neither kind', []],
    ['a client token for no instance', ['--client']],
    ['an administration token for an instance', ['--admin', '--instance', instance]],
    ['a token that is never valid', ['--admin', '--ttl', '0']],
  ])('%s', async (_what, args) => {
    expect(await token(...args)).toMatchObject({ code: 64, out: '' })
  })
})
