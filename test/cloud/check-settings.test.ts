import { expect, it } from 'vitest'
import { examineAddresses, requireConsistent } from '../../src/cloud/check-settings.ts'
import { type CloudSettings, cloudOptions } from '../../src/cloud/settings.ts'
import { loadSettings } from '../../src/settings/load.ts'

const settingsOf = (flags: Readonly<Record<string, string>>): CloudSettings =>
  loadSettings(cloudOptions, { file: null, env: {}, flags, readText: () => 'secret' })
const check = (flags: Readonly<Record<string, string>>): void => requireConsistent(settingsOf(flags))

const SIGN_IN = { 'oidc-issuer': 'https://login.example', 'oidc-client-id': 'a' }
const ACCESS = { 'oidc-access': '[{"value":"a","roles":["read"]}]' }
const NATS = { 'events-nats-url': 'nats://nats.example' }
const NATS_USER = { ...NATS, 'events-nats-username': 'cloud', 'events-nats-password-file': 'a' }

it('accepts the defaults, and settings that have an effect', () => {
  check({})
  check({ 'db-standby': 'true', db: 'postgres://a@b/c' })
  check({ 'push-broker': 'external', 'push-url': 'mqtt://broker.example' })
  check({ 'push-host': '::' })
  check({ 'push-host': 'fe80::1%eth0', 'push-public-url': 'mqtt://cloud.example' })
  check({ 'http-public-url': 'https://cloud.example/plant' })
  check({ ...SIGN_IN, ...ACCESS })
  check(NATS_USER)
  check({ 'edge-settle-as': 'release', 'edge-settle-after': '7d' })
  check({ 'edge-settle-after': '1h' })
  check({ ...NATS, 'events-nats-credentials-file': 'a' })
})

it.each([
  [{ 'db-standby': 'true' }, 'db_standby needs db or cells'],
  [{ 'push-url': 'mqtt://broker.example' }, 'Set push.broker to "external"'],
  [{ 'push-broker': 'external' }, 'push.url is missing'],
  [{ 'push-broker': 'external', 'push-url': 'mqtt://user:secret@broker.example' }, 'push.url takes no user name'],
  [{ 'push-public-url': 'mqtts://user:secret@broker.example' }, 'push.public_url takes no user name'],
  [{ 'push-host': 'fe80::1%eth0' }, 'Set push.public_url'],
  [{ 'events-nats-url': 'nats://user@nats.example' }, 'events.nats_url takes no user name'],
  [{ 'events-nats-url': 'nats://nats.example', 'events-nats-subject': 'a..b' }, 'takes words with dots'],
  [{ ...NATS, 'events-nats-username': 'cloud' }, 'events.nats_username and events.nats_password_file go together'],
  [{ ...NATS, 'events-nats-password-file': 'a' }, 'events.nats_username and events.nats_password_file go together'],
  [{ ...NATS_USER, 'events-nats-credentials-file': 'b' }, 'are both set'],
  [{ 'events-nats-username': 'cloud' }, 'Set it, or remove the credentials'],
  [{ 'metrics-listen': '127.0.0.1:99999' }, 'with a port from 0 to 65535'],
  [{ 'edge-sync-every': '2h', 'edge-settle-after': '1h' }, 'edge.settle_after must be longer'],
  [{ 'edge-grant-lifetime': '5m' }, 'edge.grant_lifetime must be longer than edge.sync_every'],
  [{ 'edge-policy-usable': '1h', 'edge-sync-every': '2h' }, 'edge.policy_usable must be longer than edge.sync_every'],
  [
    { 'edge-settle-as': 'release', 'edge-settle-after': '6d' },
    'edge.settle_after must be at least edge.grant_lifetime',
  ],
  [{ 'http-public-url': 'https://cloud.example/dynamicmonetization/' }, 'ends with /dynamicmonetization'],
  [{ 'http-public-url': 'https://user:secret@cloud.example' }, 'without user name'],
  [{ 'http-public-url': 'https://cloud.example/?a' }, 'without user name'],
  [{ ...SIGN_IN, ...ACCESS, 'oidc-scopes': 'profile' }, 'must contain openid'],
  [{ ...SIGN_IN, 'oidc-access': '[{"value":"a","roles":["admin"]}]' }, 'oidc-access[0].roles[0]: must be one of'],
  [{ ...SIGN_IN, 'oidc-access': '[]' }, '--oidc-access is "[]", but takes a list'],
  [{ cells: '[{"name":"a","url":"http://b/c"}]' }, 'cells[0].url: must be a URL that begins with postgres://'],
  [{ cells: '[{"name":"a","url":"postgres://b/c"},{"name":"a","url":"postgres://b/d"}]' }, 'cells: names a cell twice'],
])('refuses %o, and says what to change', (flags, message) => {
  expect(() => check(flags)).toThrow(expect.objectContaining({ code: 'CONFIG_INVALID' }))
  expect(() => check(flags)).toThrow(message)
})

it.each([
  [{}, []],
  [{ 'http-host': '192.0.2.7', 'push-host': '192.0.2.7' }, []],
  [{ 'http-host': '::1' }, []],
  [{ 'http-public-url': 'http://localhost:8080' }, []],
  [{ 'http-host': '0.0.0.0', 'push-broker': 'off' }, ['http.public_url']],
  [{ 'http-host': '0.0.0.0', 'push-host': '::' }, ['http.public_url', 'push.public_url']],
  [{ 'http-public-url': 'https://cloud.example' }, ['push.public_url']],
  [{ 'http-public-url': 'https://cloud.example', 'push-public-url': 'wss://cloud.example/push' }, []],
  [{ 'http-public-url': 'https://cloud.example', 'push-broker': 'external', 'push-url': 'mqtts://b.example' }, []],
])('of %j, warns of the addresses %j, which devices cannot use', (flags: Readonly<Record<string, string>>, named) => {
  const warned: string[] = []
  examineAddresses(settingsOf(flags), {
    warn: ({ setting }: { readonly setting: string }, text: string) => {
      expect(text).toMatch(/, (which devices cannot use|and cannot use it): set /)
      warned.push(setting)
    },
  } as never)
  expect(warned).toEqual(named)
})
