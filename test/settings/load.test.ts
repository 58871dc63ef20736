import { describe, expect, expectTypeOf, test } from 'vitest'
import { CodedError } from '../../src/protocol/errors.ts'
import { loadSettings, type Sources, usableSettings } from '../../src/settings/load.ts'
import {
  type AbsentSecret,
  bytes,
  choice,
  duration,
  integer,
  optionalSecret,
  path,
  type OptionTable,
  type OptionTree,
  Secret,
  secret,
  text,
  toggle,
  url,
} from '../../src/settings/option.ts'

const table = {
  envPrefix: 'TALLYGATE_AGENT',
  options: {
    name: text({ default: null, help: 'Name of the device.' }),
    socket: { path: path({ default: '/run/agent.sock', help: 'Where applications connect.' }) },
    limits: {
      bodyMax: bytes({ default: '1MiB', min: '1KiB', max: '16MiB', help: 'Largest body.' }),
      connections: integer({ default: 64, min: 1, max: 1024, unit: 'connections', help: 'Most connections.' }),
    },
    sync: { interval: duration({ default: '30s', min: '1s', max: '24h', help: 'Time between rounds.' }) },
    log: { level: choice(['debug', 'info', 'warn'], { default: 'info', help: 'What is logged.' }) },
    push: {
      enabled: toggle({ default: true, help: 'Whether change notifications are taken.' }),
      url: url({ default: null, schemes: ['mqtt', 'mqtts'], help: 'Broker.' }),
      password: secret({ help: 'At the broker.' }),
    },
    enrollment: { token: optionalSecret({ help: 'Token of an administrator.', file: '/etc/token' }) },
  },
} satisfies OptionTable<OptionTree>

function load(
  from: Partial<Sources> & { readonly toml?: string; readonly files?: Readonly<Record<string, string>> } = {},
) {
  const files: Record<string, string> = {
    ...from.files,
    ...(from.toml === undefined ? {} : { '/etc/agent.toml': from.toml }),
  }
  return loadSettings(table, {
    file: from.file ?? (from.toml === undefined ? null : '/etc/agent.toml'),
    env: from.env ?? {},
    flags: from.flags ?? {},
    readText:
      from.readText ??
      ((name) => {
        const content = files[name]
        if (content === undefined) throw Object.assign(new Error('no'), { code: 'ENOENT' })
        return content
      }),
  })
}

function refusal(from: Parameters<typeof load>[0]): CodedError {
  try {
    load(from)
  } catch (error) {
    if (error instanceof CodedError) return error
    throw error
  }
  throw new Error('it was accepted')
}

test('without any source, every setting has the default of the table', () => {
  const settings = load()
  expect(settings).toEqual({
    name: null,
    socket: { path: '/run/agent.sock' },
    limits: { bodyMax: 1_048_576, connections: 64 },
    sync: { interval: 30_000 },
    log: { level: 'info' },
    push: { enabled: true, url: null, password: null },
    enrollment: { token: { source: '/etc/token' } },
  })
  expectTypeOf(settings.name).toEqualTypeOf<string | null>()
  expectTypeOf(settings.limits.bodyMax).toEqualTypeOf<number>()
  expectTypeOf(settings.log.level).toEqualTypeOf<'debug' | 'info' | 'warn'>()
  expectTypeOf(settings.push.url).toEqualTypeOf<string | null>()
  expectTypeOf(settings.push.password).toEqualTypeOf<Secret | null>()
  expectTypeOf(settings.enrollment.token).toEqualTypeOf<Secret | AbsentSecret>()
})

test('a flag beats the environment, the environment beats the file, the file beats the default', () => {
  const toml = '[limits]\nconnections = 2\n'
  const env = { TALLYGATE_AGENT_LIMITS_CONNECTIONS: '3' }
  expect(load({ toml }).limits.connections).toBe(2)
  expect(load({ toml, env }).limits.connections).toBe(3)
  expect(load({ toml, env, flags: { 'limits-connections': '4' } }).limits.connections).toBe(4)
})

test('the file writes camelCase keys in snake_case, the environment in capitals, a flag with dashes', () => {
  expect(load({ toml: 'limits.body_max = "2KiB"' }).limits.bodyMax).toBe(2048)
  expect(load({ env: { TALLYGATE_AGENT_LIMITS_BODY_MAX: '3KiB' } }).limits.bodyMax).toBe(3072)
  expect(load({ flags: { 'limits-body-max': '4KiB' } }).limits.bodyMax).toBe(4096)
})

describe('a refused setting is named with what it takes:', () => {
  test.each([
    [
      'a word',
      'limits.connections = "many"',
      '/etc/agent.toml: limits.connections is "many", but takes a whole number',
    ],
    ['a number out of range', 'limits.connections = 0', 'from 1 to 1024, in connections'],
    ['a number in quotes', 'limits.connections = "5"', 'limits.connections is "5"'],
    ['a fraction', 'limits.connections = 1.5', 'limits.connections is 1.5'],
    ['a duration without unit', 'sync.interval = 30', 'sync.interval is 30, but takes a duration from "1s" to "24h"'],
    ['a duration out of range', 'sync.interval = "25h"', 'sync.interval is "25h"'],
    ['an unknown word', 'log.level = "loud"', 'takes "debug", "info" or "warn"'],
    ['a foreign scheme', 'push.url = "http://broker"', 'takes a URL that begins with mqtt:// or mqtts://'],
    ['a table in place of a value', '[socket.path]\na = 1', 'socket.path is {"a":1}, but takes a path'],
    ['a value in place of a table', 'socket = 1', 'socket is 1, but must be a table of settings'],
    ['a path with a space before it', 'socket.path = " /run/agent.sock"', 'socket.path is " /run/agent.sock", but'],
    [
      'a path with a line break after it',
      'socket.path = "/run/agent.sock\\n"',
      'but takes a path without spaces around it',
    ],
    ['a path of a space', 'socket.path = " "', 'socket.path is " ", but takes a path without spaces around it'],
    ['a date', 'socket.path = 2026-01-01', 'socket.path is 2026-01-01, but'],
    ['a control character', 'name = "a\\u0000b"', 'name is'],
  ])('%s', (_what, toml, message) => {
    const error = refusal({ toml })
    expect(error.code).toBe('CONFIG_INVALID')
    expect(error.message).toContain(message)
  })
})

test('a number from the environment is read as text, and refused by the variable’s name', () => {
  expect(load({ env: { TALLYGATE_AGENT_PUSH_ENABLED: 'false' } }).push.enabled).toBe(false)
  const error = refusal({ env: { TALLYGATE_AGENT_PUSH_ENABLED: 'no' } })
  expect(error.message).toBe('TALLYGATE_AGENT_PUSH_ENABLED is "no", but takes true or false.')
})

test('a misspelt key of the file is refused with the nearest one that exists', () => {
  const error = refusal({ toml: '[sync]\nintervall = "5s"' })
  expect(error.code).toBe('CONFIG_INVALID')
  expect(error.message).toBe('/etc/agent.toml: unknown key sync.intervall; did you mean sync.interval?')
  expect(refusal({ toml: 'colour = 1' }).message).toBe('/etc/agent.toml: unknown key colour.')
})

test('a misspelt environment variable of the agent is refused, those of a cluster’s services are not', () => {
  expect(refusal({ env: { TALLYGATE_AGENT_SOKET_PATH: '/x' } }).message).toBe(
    'unknown environment variable TALLYGATE_AGENT_SOKET_PATH; did you mean TALLYGATE_AGENT_SOCKET_PATH?',
  )
  expect(refusal({ env: { TALLYGATE_AGENT_PUSSH_PORT: '1883' } }).message).toContain(
    'unknown environment variable TALLYGATE_AGENT_PUSSH_PORT',
  )
  const env = {
    TALLYGATE_AGENT_SERVICE_HOST: '10.0.0.1',
    TALLYGATE_AGENT_PORT: 'tcp://10.0.0.1:80',
    TALLYGATE_AGENT_PORT_80_TCP_ADDR: '10.0.0.1',
    TALLYGATE_AGENT_CONFIG: '/etc/agent.toml',
    OTHER: 'x',
  }
  expect(load({ env }).socket.path).toBe('/run/agent.sock')
})

test('a file that has no name, is missing or is not TOML is refused, with the line', () => {
  const missing = refusal({ file: '/nowhere.toml' })
  expect(missing.code).toBe('CONFIG_UNREADABLE')
  expect(missing.message).toBe('/nowhere.toml: there is no such file.')
  const empty = refusal({ file: '' })
  expect(empty.code).toBe('CONFIG_INVALID')
  expect(empty.message).toMatch(/^The path of the settings file is empty: set TALLYGATE_AGENT_CONFIG or --config/)
  const broken = refusal({ toml: '[socket]\npath = = 1\n' })
  expect(broken.code).toBe('CONFIG_UNREADABLE')
  expect(broken.message).toMatch(/^\/etc\/agent\.toml:2:\d+: /)
  expect(broken.message).not.toContain('\n')
})

describe('a secret', () => {
  const tokenOf = (from: Parameters<typeof load>[0]): unknown => {
    const { token } = load(from).enrollment
    return token instanceof Secret ? token.reveal() : token
  }

  test('comes from a file that the settings file, the environment or a flag names, or from the environment', () => {
    const files = { '/run/token': ' s3cret\n' }
    const all = [
      { files, toml: 'enrollment.token_file = "/run/token"' },
      { files, env: { TALLYGATE_AGENT_ENROLLMENT_TOKEN_FILE: '/run/token' } },
      { files, flags: { 'enrollment-token-file': '/run/token' } },
      { env: { TALLYGATE_AGENT_ENROLLMENT_TOKEN: 's3cret' } },
    ]
    expect(all.map(tokenOf)).toEqual(Array(4).fill('s3cret'))
  })

  test('comes from its default file, if that exists and nothing else is set', () => {
    const files = { '/etc/token': 'default\n', '/run/token': 's3cret' }
    expect(tokenOf({ files })).toBe('default')
    const env = { TALLYGATE_AGENT_ENROLLMENT_TOKEN_FILE: '/run/token' }
    expect(tokenOf({ files, env })).toBe('s3cret')
    for (const none of [{}, { '/etc/token': ' ' }]) expect(tokenOf({ files: none })).toEqual({ source: '/etc/token' })
  })

  test('that is optional is absent if the file that a setting names is missing or empty, whatever the default one has', () => {
    const env = { TALLYGATE_AGENT_ENROLLMENT_TOKEN_FILE: '/run/token' }
    const files = { '/etc/token': 'default' }
    for (const from of [
      { files, env },
      { files: { ...files, '/run/token': '\n' }, env },
    ]) {
      expect(tokenOf(from)).toEqual({ source: '/run/token' })
    }
    const readText = (): never => {
      throw Object.assign(new Error('no'), { code: 'EACCES' })
    }
    expect(refusal({ env, readText }).message).toBe(
      'TALLYGATE_AGENT_ENROLLMENT_TOKEN_FILE: /run/token: this user may not read it.',
    )
    const inPlaceOfPath = { TALLYGATE_AGENT_ENROLLMENT_TOKEN_FILE: 'eyJhbGciOi.s3cret' }
    expect(refusal({ env: inPlaceOfPath }).message).toBe(
      'TALLYGATE_AGENT_ENROLLMENT_TOKEN_FILE does not name a file that can be read: there is no such file.',
    )
  })

  test('is not taken from the settings file itself', () => {
    expect(refusal({ toml: 'enrollment.token = "s3cret"' }).message).toBe(
      '/etc/agent.toml: unknown key enrollment.token; did you mean enrollment.token_file?',
    )
  })

  test('shows itself in no message, log line or JSON', () => {
    const { password } = load({ env: { TALLYGATE_AGENT_PUSH_PASSWORD: 's3cret' } }).push
    expect([String(password), JSON.stringify({ password }), password?.toString()].join()).not.toContain('s3cret')
    for (const error of [
      refusal({ env: { TALLYGATE_AGENT_ENROLLMENT_TOKEN: ' ' } }),
      refusal({ env: { TALLYGATE_AGENT_PUSH_PASSWORD_FILE: '/missing' } }),
      refusal({ toml: 'push.url = "http://user:s3cret@broker"' }),
      refusal({ toml: 'push.url = "http://user:path/s3cret@broker"' }),
      refusal({ toml: 'push.url = "user:s3cret@broker:8883"' }),
      refusal({ toml: 'push = "user:s3cret@broker:8883"' }),
      refusal({ toml: `push.url = "http://user:my s3cret${'x'.repeat(100)}@broker"` }),
      refusal({ toml: `push.url = 'http://user:my "s3cret@broker'` }),
      refusal({ toml: 'push.url = "http://broker?user=x&password=s3cret"' }),
    ]) {
      expect(JSON.stringify([error.message, error.details])).not.toContain('s3cret')
    }
  })

  test('whose file is missing or empty is refused with both names', () => {
    const env = { TALLYGATE_AGENT_PUSH_PASSWORD_FILE: '/run/token' }
    expect(refusal({ env }).message).toBe('TALLYGATE_AGENT_PUSH_PASSWORD_FILE: /run/token: there is no such file.')
    for (const secret of ['s3cret', 'eyJhbGciOi.s3cret/x', '/s3cret\n-----END PRIVATE KEY-----']) {
      const set = { TALLYGATE_AGENT_PUSH_PASSWORD_FILE: secret }
      expect(refusal({ env: set }).message).toMatch(/^TALLYGATE_AGENT_PUSH_PASSWORD_FILE.*: there is no such file\.$/)
      expect(refusal({ env: set }).message).not.toContain('s3cret')
    }
    expect(refusal({ env, files: { '/run/token': '\n' } }).message).toContain('the file /run/token is empty')
  })
})

test('of invalid settings, each valid one is found in a file that is read once', () => {
  const read: string[] = []
  const readText = (path: string) => {
    read.push(path)
    return 'name = "press 7"\nlimits.connections = 0\npush = "x"\nunknown = 1\nsync.interval = "5s"'
  }
  const settings = usableSettings(table, { file: '/etc/agent.toml', env: {}, flags: {}, readText })
  expect(settings).toMatchObject({ name: 'press 7', limits: { connections: 64 }, sync: { interval: 5_000 } })
  expect(settings.push).toEqual(load().push)
  expect(read.filter((path) => path === '/etc/agent.toml')).toHaveLength(1)
})
